//! Base64 in the spellings that lenient servers accept.
//!
//! A credential that is signed or encoded has one canonical spelling. Python, PHP and Node decode others to the same bytes:
//! padding more or less, the other alphabet, characters between that do not belong there, other bits at the end.

use smallvec::SmallVec;

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
#[cfg(feature = "jwt")]
const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The canonical texts, padded, that `text` may stand for.
pub(super) fn canonical(text: &[u8]) -> SmallVec<[Vec<u8>; 2]> {
    let padded = |digits: Digits| {
        let mut text = spell(&digits, STANDARD);
        text.resize(text.len().next_multiple_of(4), b'=');
        text
    };
    readings(text).into_iter().map(padded).collect()
}

/// The tokens of three parts, with a canonical signature, that `value` may contain.
///
/// Only the signature can be spelled in other ways: it signs the text of the other two parts.
#[cfg(feature = "jwt")]
pub(super) fn tokens(value: &[u8]) -> SmallVec<[Vec<u8>; 2]> {
    let mut parts = value.rsplitn(3, |byte| *byte == b'.');
    let (Some(signature), Some(claims), Some(before)) = (parts.next(), parts.next(), parts.next()) else {
        return SmallVec::new();
    };
    let apart = before.iter().rposition(|byte| !URL.contains(byte));
    let header = &before[apart.map_or(0, |at| at + 1)..];
    let whole = |digits: Digits| [header, claims, &spell(&digits, URL)].join(&b'.');
    readings(signature).into_iter().map(whole).collect()
}

/// Six bits each.
type Digits = Vec<u8>;

/// The digits of `text`: all of them, as PHP reads it, and up to complete padding, as Python does.
fn readings(text: &[u8]) -> SmallVec<[Digits; 2]> {
    let all: Digits = text.iter().filter_map(|byte| digit(*byte)).collect();
    let mut first = Digits::new();
    let mut padding = 0;
    for byte in text {
        match digit(*byte) {
            Some(digit) => {
                first.push(digit);
                padding = 0;
            }
            None if *byte == b'=' => padding += 1,
            None => {}
        }
        let in_group = first.len() % 4;
        if padding > 0 && in_group >= 2 && in_group + padding >= 4 {
            break;
        }
    }
    if first == all { SmallVec::from_iter([all]) } else { SmallVec::from_iter([all, first]) }
}

fn digit(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    })
}

/// Digits as text, without those bits at the end that belong to no byte.
fn spell(digits: &[u8], alphabet: &[u8; 64]) -> Vec<u8> {
    let (whole, left_over) = match digits.len() % 4 {
        1 => (digits.len() - 1, 0),
        2 => (digits.len(), 0b1111),
        3 => (digits.len(), 0b11),
        _ => (digits.len(), 0),
    };
    let mut text: Vec<u8> = digits[..whole].iter().map(|digit| alphabet[usize::from(*digit)]).collect();
    if let (Some(last), Some(digit)) = (text.last_mut(), digits[..whole].last()) {
        *last = alphabet[usize::from(digit & !left_over)];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_one_canonical_spelling() {
        for text in [
            "dXNlcjpwdw==",
            "dXNlcjpwdw",
            "dXNlcjpwdw=",
            "dXNlcjpwdx==",
            "dXNl.cjpw dw==",
            "dXNlcjpwdw===",
            "=dXNlcjpwdw",
        ] {
            assert_eq!(canonical(text.as_bytes()).to_vec(), [b"dXNlcjpwdw==".to_vec()], "{text}");
        }
        assert_eq!(canonical(b"-_8=").to_vec(), [b"+/8=".to_vec()]);
        // Python ends at the padding, PHP does not.
        assert_eq!(canonical(b"QUI=QUI=").to_vec(), [b"QUIQUA==".to_vec(), b"QUI=".to_vec()]);
    }

    #[cfg(feature = "jwt")]
    #[test]
    fn a_token_is_found_behind_any_scheme() {
        for value in
            ["Bearer a.b.QUI", "Bearer\u{a0}a.b.QUI=", "JWT a.b.QU-I".replace('-', " ").as_str(), "a.b.QUJ"]
        {
            assert_eq!(tokens(value.as_bytes()).to_vec(), [b"a.b.QUI".to_vec()], "{value}");
        }
        assert!(tokens(b"Bearer opaque").is_empty() && tokens(b"a.b").is_empty());
    }
}
