//! Names of items, and of the limits in them.
//!
//! An item's name is a hash of what identifies it: short however long a key is, printable whatever bytes it has, and without any key
//! in the server. Callers choose keys, so the hash is collision-resistant; half of SHA-256 is enough, as a key with the name of
//! somebody else's takes 2^128 tries.

use sha2::{Digest, Sha256};
use tidegate_core::append_part;
use tidegate_store::{CellKey, RefundId};

/// The name of an item: `tg` and 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name([u8; 16]);

impl Name {
    /// Appends it to a command.
    pub fn append(&self, command: &mut Vec<u8>) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        command.extend(b"tg");
        for byte in self.0 {
            command.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }
}

/// The name of what an item holds: a limit's state, or the mark of a refund.
pub type Part = [u8; 8];
/// The only part of an item that holds one value.
pub const WHOLE: Part = [0; 8];

/// Names items with a common prefix.
#[derive(Clone, Debug)]
pub struct Namer {
    prefix: Box<[u8]>,
}

impl Namer {
    /// Names that begin alike.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Namer { prefix: prefix.as_bytes().into() }
    }

    /// The item with all limits of a key tuple. (Rules that colocate keep theirs elsewhere.)
    pub(crate) fn tuple(&self, cell: &CellKey<'_>) -> Name {
        self.of(b"tuple", &[cell.tag, cell.key])
    }

    pub(crate) fn record(&self, name: &[u8]) -> Name {
        self.of(b"record", &[name])
    }

    /// A value of the fleet.
    pub(crate) fn value(&self, name: &[u8]) -> Name {
        self.of(b"value", &[name])
    }

    /// An item of this process.
    #[must_use]
    pub fn own(&self, kind: &[u8], process: [u8; 8], number: u64) -> Name {
        self.of(kind, &[&process, &number.to_le_bytes()])
    }

    /// An item that all nodes know.
    #[must_use]
    pub fn common(&self, kind: &[u8]) -> Name {
        self.of(kind, &[])
    }

    fn of(&self, kind: &[u8], parts: &[&[u8]]) -> Name {
        let parts = [&self.prefix, kind].into_iter().chain(parts.iter().copied());
        Name(*digest(parts).first_chunk().expect("a digest is longer"))
    }
}

pub(crate) fn limit_part(cell: &CellKey<'_>) -> Part {
    *digest([&b"limit"[..], cell.scope.as_bytes()].into_iter()).first_chunk().expect("a digest is longer")
}

/// The mark that a cell has received a refund.
pub(crate) fn refund_part(cell: &CellKey<'_>, id: RefundId) -> Part {
    let parts = [&b"refund"[..], &id.to_bytes(), cell.scope.as_bytes()];
    *digest(parts.into_iter()).first_chunk().expect("a digest is longer")
}

fn digest<'a>(parts: impl Iterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut bytes = Vec::with_capacity(96);
    parts.for_each(|part| append_part(&mut bytes, part));
    Sha256::digest(&bytes).into()
}

#[cfg(test)]
mod tests {
    use tidegate_core::Scope;

    use super::*;

    #[test]
    fn keys_of_any_bytes_have_short_printable_names() {
        let (namer, scope) = (Namer::new("tidegate"), Scope::from_bytes(b"limit"));
        let long = [b'\n'; 5_000];
        let mut names = Vec::new();
        for key in [&b"a b\r\nflush_all\r\n"[..], b"", &long, b"\0"] {
            let mut name = Vec::new();
            namer.tuple(&CellKey { scope: &scope, key, tag: key }).append(&mut name);
            assert!(name.len() <= 250 && name.iter().all(u8::is_ascii_alphanumeric));
            assert!(!names.contains(&name));
            names.push(name);
        }
    }

    #[test]
    fn limits_of_one_key_share_an_item_and_no_part() {
        let (namer, one, two) = (Namer::new("t"), Scope::from_bytes(b"one"), Scope::from_bytes(b"two"));
        let [one, two] = [&one, &two].map(|scope| CellKey { scope, key: b"k", tag: b"k" });
        assert_eq!(namer.tuple(&one), namer.tuple(&two));
        assert_ne!(limit_part(&one), limit_part(&two));
    }

    #[test]
    fn fleets_with_different_prefixes_share_no_item() {
        assert_ne!(Namer::new("a").common(b"members"), Namer::new("b").common(b"members"));
    }
}
