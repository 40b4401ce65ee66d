//! Cell scopes: names and values encoded as unambiguous bytes.

use std::hash::{DefaultHasher, Hasher};

/// The limit that a cell belongs to: domain, rule, limit name, algorithm and period, each length-prefixed, so that
/// ("a_b", "c") and ("a", "b_c") differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    bytes: Box<[u8]>,
    digest: [u64; 2],
}

impl Scope {
    /// The scope of these parts, in this order.
    #[must_use]
    pub fn new(parts: &[&[u8]]) -> Self {
        let mut bytes = Vec::new();
        for part in parts {
            append_part(&mut bytes, part);
        }
        Scope::from_vec(bytes)
    }

    /// The scope with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Scope::from_vec(bytes.to_vec())
    }

    fn from_vec(bytes: Vec<u8>) -> Self {
        // Rule authors choose scopes, not callers: an unkeyed hash is enough, and all processes agree on it.
        let digest = [0, 1].map(|seed| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u8(seed);
            hasher.write(&bytes);
            hasher.finish()
        });
        Scope { bytes: bytes.into_boxed_slice(), digest }
    }

    /// The bytes that a store writes into a key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A short hash of the bytes, for stores that hash.
    #[must_use]
    pub fn digest(&self) -> [u64; 2] {
        self.digest
    }
}

/// Appends `part`, prefixed by its length in seven-bit groups: one extra byte for short parts.
pub fn append_part(bytes: &mut impl Extend<u8>, part: &[u8]) {
    let mut rest = part.len();
    while rest >= 0x80 {
        bytes.extend([(rest & 0x7f | 0x80) as u8]);
        rest >>= 7;
    }
    bytes.extend([rest as u8]);
    bytes.extend(part.iter().copied());
}

/// Splits a part written by [`append_part`] off the front of `bytes`: the part and the rest. None if there is no whole
/// part.
#[must_use]
pub fn take_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut length = 0usize;
    for (place, byte) in bytes.iter().enumerate().take(4) {
        length |= usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return bytes[place + 1..].split_at_checked(length);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_taken_as_it_was_appended_and_half_of_one_is_none() {
        for length in [0, 1, 127, 128, 300, 20_000] {
            let mut bytes = Vec::new();
            append_part(&mut bytes, &vec![7; length]);
            bytes.push(9);
            assert_eq!(take_part(&bytes), Some((&vec![7; length][..], &[9][..])));
            assert_eq!(take_part(&bytes[..length / 2]), None);
        }
    }

    #[test]
    fn parts_that_join_to_the_same_text_are_different_scopes() {
        let one = Scope::new(&[b"a_b", b"c"]);
        let other = Scope::new(&[b"a", b"b_c"]);
        assert_ne!(one.as_bytes(), other.as_bytes());
        assert_ne!(one.digest(), other.digest());
    }

    #[test]
    fn a_long_part_says_its_length_in_groups_of_seven_bits() {
        let mut bytes = Vec::new();
        append_part(&mut bytes, &[7; 300]);
        assert_eq!(bytes[..2], [0xac, 0x02]);
        assert_eq!(bytes.len(), 302);
    }
}
