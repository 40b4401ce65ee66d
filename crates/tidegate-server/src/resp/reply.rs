//! Writes replies, in both versions of the protocol.

/// The protocol version of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RespVersion {
    #[default]
    Resp2,
    Resp3,
}

/// Replies, one after another.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    bytes: Vec<u8>,
    version: RespVersion,
}

impl Replies {
    /// Continues writing into `buffer`, which is empty.
    pub(crate) fn lend(&mut self, buffer: Vec<u8>) {
        self.bytes = buffer;
    }

    /// Returns the buffer with the replies.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    pub(crate) fn version(&self) -> RespVersion {
        self.version
    }

    /// Writes later replies in `version`.
    pub(crate) fn set_version(&mut self, version: RespVersion) {
        self.version = version;
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// A short fixed text.
    pub(crate) fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// An error: its first word is a code by which clients distinguish errors.
    pub(crate) fn error(&mut self, text: &str) {
        self.line(b'-', text);
    }

    pub(crate) fn integer(&mut self, number: i64) {
        self.header(b':', number);
    }

    /// Bytes of any kind.
    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', signed(bytes.len()));
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// No value.
    pub(crate) fn nil(&mut self) {
        self.bytes.extend_from_slice(match self.version {
            RespVersion::Resp2 => b"$-1\r\n",
            RespVersion::Resp3 => b"_\r\n",
        });
    }

    /// An array; its items follow.
    pub(crate) fn array(&mut self, items: usize) {
        self.header(b'*', signed(items));
    }

    /// A map; keys and values follow alternately.
    pub(crate) fn map(&mut self, pairs: usize) {
        match self.version {
            RespVersion::Resp2 => self.array(2 * pairs),
            RespVersion::Resp3 => self.header(b'%', signed(pairs)),
        }
    }

    /// A reply with a prepared beginning that ends with three integers.
    #[inline]
    pub(crate) fn opened_with(&mut self, opening: &[u8], numbers: [i64; 3]) {
        self.bytes.extend_from_slice(opening);
        let mut block = [0; 3 * LONGEST_INTEGER];
        let mut at = 0;
        for number in numbers {
            at += write_integer(&mut block[at..], number);
        }
        self.bytes.extend_from_slice(&block[..at]);
    }

    #[inline]
    fn header(&mut self, kind: u8, number: i64) {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(number).as_bytes();
        self.bytes.push(kind);
        self.bytes.extend_from_slice(digits);
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &str) {
        self.bytes.push(kind);
        // A line break inside would end the reply early and forge another one: the text may quote a peer's bytes.
        self.bytes.extend(text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
        self.bytes.extend_from_slice(b"\r\n");
    }
}

/// A colon, a sign, nineteen digits and the line break.
const LONGEST_INTEGER: usize = 23;

/// Writes an integer reply to the front of `to`; returns its length.
#[inline]
fn write_integer(to: &mut [u8], number: i64) -> usize {
    if number == -1 {
        to[..5].copy_from_slice(b":-1\r\n");
        return 5;
    }
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(number).as_bytes();
    let end = 1 + digits.len();
    to[0] = b':';
    to[1..end].copy_from_slice(digits);
    to[end..end + 2].copy_from_slice(b"\r\n");
    end + 2
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A few of a peer's bytes, for an error message.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    const LONGEST: usize = 64;
    let more = if bytes.len() > LONGEST { "…" } else { "" };
    format!("'{}{more}'", bytes[..bytes.len().min(LONGEST)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: RespVersion, write: impl FnOnce(&mut Replies)) -> String {
        let mut replies = Replies::default();
        replies.set_version(version);
        write(&mut replies);
        String::from_utf8(replies.take()).unwrap()
    }

    #[test]
    fn a_peers_line_end_in_an_error_does_not_end_the_reply() {
        assert_eq!(written(RespVersion::Resp2, |to| to.error("ERR a\r\n+OK")), "-ERR a  +OK\r\n");
        assert_eq!(quoted(b"a\r\n\xff"), r"'a\r\n\xff'");
    }

    #[test]
    fn maps_and_nothing_differ_between_the_versions() {
        let write = |to: &mut Replies| {
            to.map(1);
            to.bulk(b"proto");
            to.nil();
        };
        assert_eq!(written(RespVersion::Resp2, write), "*2\r\n$5\r\nproto\r\n$-1\r\n");
        assert_eq!(written(RespVersion::Resp3, write), "%1\r\n$5\r\nproto\r\n_\r\n");
    }

    #[test]
    fn integers_are_written_with_their_sign() {
        let write = |to: &mut Replies| {
            to.opened_with(b"*3\r\n", [0, -1, 10]);
            to.opened_with(b"*3\r\n", [i64::MAX, i64::MIN, i64::MIN]);
            to.integer(-10);
        };
        let least = ":-9223372036854775808\r\n".repeat(2);
        let expected = format!("*3\r\n:0\r\n:-1\r\n:10\r\n*3\r\n:9223372036854775807\r\n{least}:-10\r\n");
        assert_eq!(written(RespVersion::Resp2, write), expected);
    }
}
