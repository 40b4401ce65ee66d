//! Percent-encoding: decoded once, or normalised as in RFC 3986.

/// Decodes every `%xx`, once: what is escaped twice stays escaped.
pub(super) fn unescape(text: &str) -> Vec<u8> {
    unescape_bytes(text.as_bytes())
}

pub(super) fn unescape_bytes(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = escape(rest).unwrap_or((*first, after));
        bytes.push(byte);
        rest = after;
    }
    bytes
}

/// The byte of the escape at the start of `text`, and the rest.
pub(super) fn escape(text: &[u8]) -> Option<(u8, &[u8])> {
    let [b'%', high, low, rest @ ..] = text else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()?;
    Some((byte, rest))
}

/// RFC 3986, 6.2.2: unreserved characters are not escaped, and escapes use capitals.
pub(super) fn canonical(path: &str) -> String {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let (byte, after, plain) = match escape(rest) {
            Some((byte, after)) => (byte, after, byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)),
            // A control character or a byte beyond ASCII does not belong in a request line; and a `%` that begins no escape
            // must not come to begin one.
            None => (*first, after, matches!(first, b'!'..=b'~') && *first != b'%'),
        };
        if plain {
            out.push(byte)
        } else {
            push_escape(&mut out, byte, HEX_UPPER)
        }
        rest = after;
    }
    String::from_utf8(out).expect("everything but ASCII is escaped")
}

/// Bytes as text: invalid UTF-8, control characters and `%` itself are written as `%xx`, so that no two paths become one.
pub(super) fn printable(bytes: &[u8]) -> String {
    let mut text = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '%' => text.extend_from_slice(b"%25"),
                control if control.is_ascii_control() => push_escape(&mut text, control as u8, HEX_LOWER),
                other => text.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        for byte in chunk.invalid() {
            push_escape(&mut text, *byte, HEX_LOWER);
        }
    }
    String::from_utf8(text).expect("only whole characters were taken over")
}

const HEX_UPPER: &[u8; 16] = b"0123456789ABCDEF";
const HEX_LOWER: &[u8; 16] = b"0123456789abcdef";

fn push_escape(out: &mut Vec<u8>, byte: u8, digits: &[u8; 16]) {
    out.extend_from_slice(&[b'%', digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]);
}
