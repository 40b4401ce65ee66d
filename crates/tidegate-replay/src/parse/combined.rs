//! nginx's and Apache's combined format, and the common format that it extends:
//! `203.0.113.7 - alice [16/Nov/2026:02:30:16 +0000] "GET /items HTTP/1.1" 200 612 "-" "curl/8.5"`.

use std::borrow::Cow;

use memchr::memchr;
use tidegate_core::Timestamp;

use super::time::{NO_TIME, common};
use super::{BadLine, Recorded, address, path};

/// Parses combined logs. Many lines share a second, so the last timestamp is cached as text.
#[derive(Debug)]
pub(super) struct Combined {
    written: [u8; 26],
    at: Timestamp,
}

impl Default for Combined {
    fn default() -> Self {
        Combined { written: [0; 26], at: Timestamp::from_micros(0) }
    }
}

const NO_REQUEST: BadLine = BadLine("it has no quoted request line");

impl Combined {
    pub(super) fn read<'a>(&mut self, line: &'a [u8], recorded: &mut Recorded<'a>) -> Result<(), BadLine> {
        let open = memchr(b'[', line).ok_or(NO_TIME)?;
        let time = line.get(open + 1..open + 27).ok_or(NO_TIME)?;
        if self.written != time {
            self.at = common(time).ok_or(NO_TIME)?;
            self.written.copy_from_slice(time);
        }
        recorded.at = self.at;
        let mut before = line[..open].split(|byte| *byte == b' ');
        let peer = before.next().unwrap_or_default();
        // Apache writes a host name here if it resolves addresses.
        recorded.attributes.push((Cow::Borrowed("ip"), address(peer).unwrap_or(Cow::Borrowed(peer))));
        let user = before.nth(1).unwrap_or_default();
        if !matches!(user, b"" | b"-" | b"\"\"") {
            recorded.attributes.push((Cow::Borrowed("user"), Cow::Borrowed(user)));
        }
        let rest = line[open + 27..].strip_prefix(b"] \"").ok_or(NO_REQUEST)?;
        let end = end_of_quoted(rest).ok_or(NO_REQUEST)?;
        let (request, rest) = (&rest[..end], &rest[end + 1..]);
        read_request(request, recorded)?;
        let status = rest.strip_prefix(b" ").and_then(|rest| rest.get(..3)).unwrap_or_default();
        recorded.refused = status.iter().all(u8::is_ascii_digit).then_some(status == b"429");
        Ok(())
    }
}

/// Parses `GET /items HTTP/1.1`. Anything else from a broken client is not a request that a rule could see.
fn read_request<'a>(request: &'a [u8], recorded: &mut Recorded<'a>) -> Result<(), BadLine> {
    const BROKEN: BadLine = BadLine("its request line is not an HTTP request");
    let (first, last) = (memchr(b' ', request).ok_or(BROKEN)?, memchr::memrchr(b' ', request).ok_or(BROKEN)?);
    // HTTP/0.9 has no version.
    let target = if first == last { &request[first + 1..] } else { &request[first + 1..last] };
    let method = &request[..first];
    if target.is_empty() || method.is_empty() || !method.iter().all(|byte| byte.is_ascii_uppercase()) {
        return Err(BROKEN);
    }
    recorded.attributes.push((Cow::Borrowed("method"), Cow::Borrowed(method)));
    recorded.attributes.push((Cow::Borrowed("path"), path(unescaped(target))));
    Ok(())
}

/// The index of the closing quote.
fn end_of_quoted(text: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let found = from + memchr::memchr2(b'"', b'\\', &text[from..])?;
        if text[found] == b'"' {
            return Some(found);
        }
        from = found + 2;
        if from > text.len() {
            return None;
        }
    }
}

/// nginx writes `"`, `\` and non-printable bytes as `\xHH`; Apache puts a backslash before the first two.
fn unescaped(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr(b'\\', text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let hex = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let (byte, later) = match (first, after) {
            (b'\\', [b'x', high, low, later @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, later),
                _ => (b'\\', after),
            },
            (b'\\', [escaped @ (b'"' | b'\\'), later @ ..]) => (*escaped, later),
            _ => (*first, after),
        };
        plain.push(byte);
        rest = later;
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Vec<(String, String)>, BadLine> {
        let mut recorded = Recorded::default();
        Combined::default().read(line.as_bytes(), &mut recorded)?;
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        Ok(recorded.attributes.iter().map(|(name, value)| (name.to_string(), text(value))).collect())
    }

    #[track_caller]
    fn check(line: &str, expected: &[(&str, &str)]) {
        let read = read(line).unwrap();
        let read: Vec<(&str, &str)> = read.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(read, expected);
    }

    #[test]
    fn combined_and_common_lines_are_read() {
        let line = r#"203.0.113.7 - alice [16/Nov/2026:02:30:16 +0000] "GET /items?id=1 HTTP/1.1" 429 612 "-" "curl""#;
        check(line, &[("ip", "203.0.113.7"), ("user", "alice"), ("method", "GET"), ("path", "/items")]);
        let mut recorded = Recorded::default();
        Combined::default().read(line.as_bytes(), &mut recorded).unwrap();
        assert_eq!((recorded.refused, recorded.at.as_micros()), (Some(true), 1_794_796_216_000_000));
        let common = r#"::1 - - [16/Nov/2026:02:30:16 +0000] "POST / HTTP/2.0" 200 -"#;
        check(common, &[("ip", "::/64"), ("method", "POST"), ("path", "/")]);
    }

    #[test]
    fn quotes_within_a_request_do_not_end_it() {
        let line = r#"10.0.0.1 - - [16/Nov/2026:02:30:16 +0000] "GET /a\x22b HTTP/1.1" 200 1 "-" "-""#;
        check(line, &[("ip", "10.0.0.1"), ("method", "GET"), ("path", "/a\"b")]);
        let line = r#"10.0.0.1 - - [16/Nov/2026:02:30:16 +0000] "GET /a\"b HTTP/1.1" 200 1 "-" "-""#;
        check(line, &[("ip", "10.0.0.1"), ("method", "GET"), ("path", "/a\"b")]);
    }

    #[test]
    fn broken_lines_say_why() {
        let why = |line: &str| read(line).unwrap_err().0;
        assert_eq!(why(""), NO_TIME.0);
        assert_eq!(why("203.0.113.7 - - [yesterday]"), NO_TIME.0);
        assert_eq!(why("1.2.3.4 - - [16/Nov/2026:02:30:16 +0000] \"GET / HTTP"), NO_REQUEST.0);
        assert!(why("1.2.3.4 - - [16/Nov/2026:02:30:16 +0000] \"\\x16\\x03\" 400 0").contains("not an HTTP"));
    }
}
