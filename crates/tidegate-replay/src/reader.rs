//! Splits a stream into lines, in blocks: without an allocation per line, and with a bound on their length.

use std::io::{self, Read};
use std::ops::Range;

/// The longest line; a longer one counts as unreadable.
pub const MOST_LINE_BYTES: usize = 64 * 1024;

const BLOCK: usize = 1 << 20;
/// The block size for one of very many logs.
const SMALL_BLOCK: usize = 1 << 16;
/// Some programs write this at the start of a UTF-8 file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads lines.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// Empty before the first read.
    buffer: Vec<u8>,
    block: usize,
    /// The filled length of the buffer, and the start of the next line.
    filled: usize,
    next: usize,
    /// Whether no line was read yet, and whether the input is at its end.
    at_start: bool,
    at_end: bool,
    /// Whether the current line is too long and its rest is being skipped.
    skips: bool,
    bytes: u64,
}

/// The result of a scan of the buffer.
pub(crate) enum Scan {
    /// A line at this range.
    Line(Range<usize>),
    /// A line that is too long.
    TooLong,
    /// An incomplete line.
    NeedsMore,
    /// The end of the input.
    AtEnd,
}

/// A line of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// Its text, without the line break.
    Text(&'a [u8]),
    /// It is longer than [`MOST_LINE_BYTES`].
    TooLong,
}

impl<R: Read> Reader<R> {
    /// Reads from `input`, in blocks of a megabyte.
    #[must_use]
    pub fn new(input: R) -> Self {
        Reader::in_blocks(input, BLOCK)
    }

    /// Reads from `input`, one of very many that are read together, in blocks of 64 KiB.
    #[must_use]
    pub fn small(input: R) -> Self {
        Reader::in_blocks(input, SMALL_BLOCK)
    }

    fn in_blocks(input: R, block: usize) -> Self {
        Reader {
            input,
            buffer: Vec::new(),
            block,
            filled: 0,
            next: 0,
            at_start: true,
            at_end: false,
            skips: false,
            bytes: 0,
        }
    }

    /// The number of bytes read so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next line; `None` at the end. Empty lines are skipped.
    ///
    /// # Errors
    /// The input cannot be read.
    pub fn next_line(&mut self) -> io::Result<Option<Line<'_>>> {
        loop {
            match self.scan() {
                Scan::Line(line) => return Ok(Some(Line::Text(&self.buffer[line]))),
                Scan::TooLong => return Ok(Some(Line::TooLong)),
                Scan::AtEnd => return Ok(None),
                Scan::NeedsMore => self.fill()?,
            }
        }
    }

    /// The next line in the buffer; its range is valid until [`Reader::fill`] is called.
    pub(crate) fn scan(&mut self) -> Scan {
        loop {
            let rest = &self.buffer[self.next..self.filled];
            let (line, is_whole) = match memchr::memchr(b'\n', rest) {
                Some(end) => (self.next..self.next + end, true),
                None => (self.next..self.filled, self.at_end),
            };
            if !is_whole {
                if rest.len() > MOST_LINE_BYTES || self.skips {
                    (self.skips, self.next) = (true, self.filled);
                }
                return Scan::NeedsMore;
            }
            if line.is_empty() && line.end == self.filled && !self.skips {
                return Scan::AtEnd;
            }
            self.next = self.filled.min(line.end + 1);
            if std::mem::take(&mut self.skips) || line.len() > MOST_LINE_BYTES {
                self.at_start = false;
                return Scan::TooLong;
            }
            let line = self.bare(line);
            if !self.buffer[line.clone()].trim_ascii().is_empty() {
                self.at_start = false;
                return Scan::Line(line);
            }
        }
    }

    /// A line that was found since the last call of [`Reader::fill`].
    pub(crate) fn text(&self, line: Range<usize>) -> &[u8] {
        &self.buffer[line]
    }

    /// A line without the byte order mark and the line break.
    #[inline]
    fn bare(&self, line: Range<usize>) -> Range<usize> {
        let text = &self.buffer[line.clone()];
        let end = line.end - usize::from(text.ends_with(b"\r"));
        let marked = self.at_start && text.starts_with(BYTE_ORDER_MARK);
        line.start + if marked { BYTE_ORDER_MARK.len() } else { 0 }..end
    }

    /// Moves the rest to the front, and reads more behind it.
    pub(crate) fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.next..self.filled, 0);
        (self.filled, self.next) = (self.filled - self.next, 0);
        // At most one incomplete line remains.
        let room = self.filled + self.block;
        if self.buffer.len() < room {
            self.buffer.resize(room, 0);
        }
        loop {
            match self.input.read(&mut self.buffer[self.filled..]) {
                Ok(read) => {
                    self.at_end = read == 0;
                    self.filled += read;
                    self.bytes += read as u64;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream that gives a few bytes at a time.
    struct Trickle<'a>(&'a [u8]);

    impl Read for Trickle<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let n = self.0.len().min(7).min(into.len());
            into[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    fn lines(input: impl Read) -> Vec<String> {
        let (mut reader, mut all) = (Reader::new(input), Vec::new());
        while let Some(line) = reader.next_line().unwrap() {
            all.push(match line {
                Line::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
                Line::TooLong => "too long".to_owned(),
            });
        }
        all
    }

    #[test]
    fn lines_come_whole_however_the_stream_is_cut() {
        let text = b"first\r\n\nsecond line that is longer than seven\n  \nlast without end";
        let expected = ["first", "second line that is longer than seven", "last without end"];
        assert_eq!(lines(Trickle(text)), expected);
        assert_eq!(lines(&text[..]), expected);
        assert_eq!(lines(&b""[..]), [] as [&str; 0]);
        let marked = [BYTE_ORDER_MARK, text].concat();
        assert_eq!((lines(Trickle(&marked)), lines(&marked[..])), (lines(&text[..]), lines(&text[..])));
        assert_eq!(lines(&[BYTE_ORDER_MARK, b"only"].concat()[..]), ["only"]);
    }

    #[test]
    fn a_line_that_never_ends_is_named_and_the_next_one_read() {
        let text = [vec![b'x'; 3 << 20], b"\nshort\n".to_vec()].concat();
        assert_eq!(lines(&text[..]), ["too long", "short"]);
        assert_eq!(lines(&vec![b'x'; 3 << 20][..]), ["too long"]);
    }

    #[test]
    fn small_blocks_give_the_same_lines() {
        let long = [vec![b'x'; MOST_LINE_BYTES], vec![b'y'; MOST_LINE_BYTES + 1]].join(&b'\n');
        let text = [b"short\n".to_vec(), long, b"\nlast".to_vec()].concat();
        let lengths = |mut reader: Reader<&[u8]>| {
            let mut all = Vec::new();
            while let Some(line) = reader.next_line().unwrap() {
                all.push(if let Line::Text(text) = line { Some(text.len()) } else { None });
            }
            all
        };
        let expected = [Some(5), Some(MOST_LINE_BYTES), None, Some(4)];
        assert_eq!(lengths(Reader::small(&text)), expected);
        assert_eq!(lengths(Reader::new(&text)), expected);
    }

    #[test]
    fn many_blocks_lose_no_line() {
        let text: String = (0..300_000).map(|n| format!("line {n}\n")).collect();
        let read = lines(text.as_bytes());
        assert_eq!(read.len(), 300_000);
        assert!(read.iter().enumerate().all(|(n, line)| *line == format!("line {n}")));
    }
}
