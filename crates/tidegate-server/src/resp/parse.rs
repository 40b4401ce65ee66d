//! Parses commands: arrays of bulk strings, and inline commands that a person types.
//!
//! [`parse`] checks whether a whole command is at the front of a buffer. It keeps no state between calls, never recurses,
//! never trusts a length before the bytes have arrived, and copies only the words of an inline command. Words are bytes, not
//! necessarily text.

use std::fmt;

use smallvec::SmallVec;

/// Bounds of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Words of a command, including its name.
    pub max_words: usize,
    /// Bytes of one word.
    pub max_word_bytes: usize,
    /// Bytes of a whole command as sent.
    pub max_command_bytes: usize,
    /// Bytes of an inline command.
    pub max_line_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            // A check with 64 attributes has 132.
            max_words: 256,
            // The longest lease.
            max_word_bytes: 64 * 1024,
            max_command_bytes: 128 * 1024,
            max_line_bytes: 16 * 1024,
        }
    }
}

impl Bounds {
    /// Bounds for an unauthenticated peer: enough to log in, and no more.
    #[must_use]
    pub fn for_stranger(self) -> Self {
        let word = self.max_word_bytes.min(4 * 1024);
        Self {
            max_words: self.max_words.min(16),
            max_word_bytes: word,
            max_command_bytes: self.max_command_bytes.min(16 * 1024),
            max_line_bytes: self.max_line_bytes.min(word),
        }
    }
}

/// The words of a command, as slices of the buffer.
pub type Words<'b> = SmallVec<[&'b [u8]; 8]>;

/// What is at the front of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A command; one without words is skipped.
    Command {
        /// Its length in bytes.
        length: usize,
    },
    /// An inline command.
    Line {
        /// Its words, unquoted.
        words: Vec<Vec<u8>>,
        /// Its length in bytes.
        length: usize,
    },
    /// The beginning of a command.
    Incomplete {
        /// The length of the buffer at which it may be complete.
        at_least: usize,
    },
    /// Not a command: where the next one begins is unknown.
    Malformed(Malformed),
}

/// What is wrong with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The number of words is not a number.
    WordCount,
    /// More words than allowed.
    TooManyWords {
        /// The bound.
        most: usize,
    },
    /// A word does not start with `$`.
    NotAWord {
        /// Its first byte.
        found: u8,
    },
    /// The length of a word is not a number.
    WordLength,
    /// A longer word than allowed.
    WordTooLong {
        /// The bound.
        most: usize,
    },
    /// A word is longer than its length.
    WordEnd,
    /// A longer command than allowed.
    CommandTooLong {
        /// The bound.
        most: usize,
    },
    /// A longer line than allowed.
    LineTooLong {
        /// The bound.
        most: usize,
    },
    /// A quote that is not closed, or is followed by more of the same word.
    Quotes,
    /// An HTTP request. A web page may make a browser send one here with commands in its body, so nothing of it is executed.
    Http,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::WordCount => f.write_str("invalid multibulk length"),
            Self::TooManyWords { most } => {
                write!(f, "invalid multibulk length, at most {most} arguments are allowed")
            }
            Self::NotAWord { found } => write!(f, "expected '$', got '{}'", found.escape_ascii()),
            Self::WordLength => f.write_str("invalid bulk length"),
            Self::WordTooLong { most } => write!(f, "invalid bulk length, at most {most} bytes are allowed"),
            Self::WordEnd => f.write_str("expected CRLF after an argument"),
            Self::CommandTooLong { most } => write!(f, "too big request, at most {most} bytes are allowed"),
            Self::LineTooLong { most } => {
                write!(f, "too big inline request, at most {most} bytes are allowed")
            }
            Self::Quotes => f.write_str("unbalanced quotes in request"),
            Self::Http => f.write_str("this is not an HTTP port"),
        }
    }
}

impl std::error::Error for Malformed {}

/// Parses the command at the front of `buffer`. For a [`Parsed::Command`] its words replace the content of `words`;
/// otherwise the content of `words` is unspecified.
#[must_use]
#[inline]
pub fn parse<'b>(buffer: &'b [u8], bounds: &Bounds, words: &mut Words<'b>) -> Parsed {
    words.clear();
    let parsed = match buffer {
        [] => Err(Stop::Short { missing: 1 }),
        [b'*', array @ ..] => parse_array(buffer, array, bounds, words),
        _ => parse_line(buffer, bounds),
    };
    parsed.unwrap_or_else(|stop| match stop {
        Stop::Short { missing } => Parsed::Incomplete { at_least: buffer.len() + missing },
        Stop::Bad(what) => Parsed::Malformed(what),
    })
}

/// Why there is no command.
enum Stop {
    /// At least this many more bytes are needed.
    Short {
        missing: usize,
    },
    Bad(Malformed),
}

#[inline]
fn parse_array<'b>(
    buffer: &'b [u8],
    array: &'b [u8],
    bounds: &Bounds,
    words: &mut Words<'b>,
) -> Result<Parsed, Stop> {
    let (count, mut rest) = read_number(array, Malformed::WordCount)?;
    if count > bounds.max_words {
        return Err(Stop::Bad(Malformed::TooManyWords { most: bounds.max_words }));
    }
    for _ in 0..count {
        let header = match rest {
            [b'$', header @ ..] => header,
            [found, ..] => return Err(Stop::Bad(Malformed::NotAWord { found: *found })),
            [] => return Err(Stop::Short { missing: 1 }),
        };
        let (length, after) = read_number(header, Malformed::WordLength)?;
        if length > bounds.max_word_bytes {
            return Err(Stop::Bad(Malformed::WordTooLong { most: bounds.max_word_bytes }));
        }
        let start = buffer.len() - after.len();
        if start + length + 2 > bounds.max_command_bytes {
            return Err(Stop::Bad(Malformed::CommandTooLong { most: bounds.max_command_bytes }));
        }
        let Some((word, after)) = after.split_at_checked(length) else {
            return Err(Stop::Short { missing: length + 2 - after.len() });
        };
        rest = match after {
            [b'\r', b'\n', rest @ ..] => rest,
            [] | [b'\r'] => return Err(Stop::Short { missing: 2 - after.len() }),
            _ => return Err(Stop::Bad(Malformed::WordEnd)),
        };
        words.push(word);
    }
    Ok(Parsed::Command { length: buffer.len() - rest.len() })
}

/// The number on the line at the front of `bytes`, and the rest after the line.
#[inline]
fn read_number(bytes: &[u8], wrong: Malformed) -> Result<(usize, &[u8]), Stop> {
    // Almost all numbers are this short.
    match bytes {
        [one @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => Ok((usize::from(one - b'0'), rest)),
        [ten @ b'0'..=b'9', one @ b'0'..=b'9', b'\r', b'\n', rest @ ..] => {
            Ok((usize::from(ten - b'0') * 10 + usize::from(one - b'0'), rest))
        }
        _ => read_long_number(bytes, wrong),
    }
}

/// More digits cannot be an allowed length.
const MAX_DIGITS: usize = 10;

fn read_long_number(bytes: &[u8], wrong: Malformed) -> Result<(usize, &[u8]), Stop> {
    let digits = bytes.iter().take(MAX_DIGITS + 1).take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = bytes.split_at(digits);
    match rest {
        _ if digits > MAX_DIGITS => Err(Stop::Bad(wrong)),
        [] => Err(Stop::Short { missing: 1 }),
        [b'\r'] if digits > 0 => Err(Stop::Short { missing: 1 }),
        [b'\r', b'\n', rest @ ..] if digits > 0 => {
            let number = number.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
            Ok((number, rest))
        }
        _ => Err(Stop::Bad(wrong)),
    }
}

fn parse_line(buffer: &[u8], bounds: &Bounds) -> Result<Parsed, Stop> {
    let too_long = Stop::Bad(Malformed::LineTooLong { most: bounds.max_line_bytes });
    let within = &buffer[..buffer.len().min(bounds.max_line_bytes + 1)];
    let Some(end) = within.iter().position(|byte| *byte == b'\n') else {
        let is_full = within.len() > bounds.max_line_bytes;
        return Err(if is_full { too_long } else { Stop::Short { missing: 1 } });
    };
    let line = &buffer[..end];
    let words = split_line(line.strip_suffix(b"\r").unwrap_or(line), bounds).map_err(Stop::Bad)?;
    let first = words.first().map_or(&[][..], Vec::as_slice);
    if first.eq_ignore_ascii_case(b"post") || first.eq_ignore_ascii_case(b"host:") {
        return Err(Stop::Bad(Malformed::Http));
    }
    Ok(Parsed::Line { words, length: end + 1 })
}

/// The words of a line. `"…"` may contain escapes, `'…'` only `\'`.
fn split_line(line: &[u8], bounds: &Bounds) -> Result<Vec<Vec<u8>>, Malformed> {
    let mut words = Vec::new();
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        if words.len() == bounds.max_words {
            return Err(Malformed::TooManyWords { most: bounds.max_words });
        }
        let (word, after) = take_word(rest)?;
        words.push(word);
        rest = after.trim_ascii_start();
    }
    Ok(words)
}

fn take_word(line: &[u8]) -> Result<(Vec<u8>, &[u8]), Malformed> {
    let mut word = Vec::new();
    let mut rest = line;
    loop {
        match *rest {
            [] => return Ok((word, rest)),
            [quote @ (b'"' | b'\''), ref after @ ..] => {
                rest = take_quoted(after, quote, &mut word)?;
                // A closing quote ends its word.
                return match rest.first() {
                    Some(next) if !next.is_ascii_whitespace() => Err(Malformed::Quotes),
                    _ => Ok((word, rest)),
                };
            }
            [space, ..] if space.is_ascii_whitespace() => return Ok((word, rest)),
            [byte, ref after @ ..] => {
                word.push(byte);
                rest = after;
            }
        }
    }
}

/// Appends the quoted text at the front of `text` to `word`; returns the rest after the closing quote.
fn take_quoted<'t>(text: &'t [u8], quote: u8, word: &mut Vec<u8>) -> Result<&'t [u8], Malformed> {
    let mut rest = text;
    loop {
        rest = match (quote, rest) {
            (_, []) => return Err(Malformed::Quotes),
            (b'"', [b'\\', b'x', high, low, after @ ..])
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                word.push(hex_value(*high) << 4 | hex_value(*low));
                after
            }
            (b'"', [b'\\', escaped, after @ ..]) => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                after
            }
            (b'\'', [b'\\', b'\'', after @ ..]) => {
                word.push(b'\'');
                after
            }
            (_, [byte, after @ ..]) if *byte == quote => return Ok(after),
            (_, [byte, after @ ..]) => {
                word.push(*byte);
                after
            }
        };
    }
}

fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}
