//! The Redis key of a cell, and the slot or shard it maps to.
//!
//! ```text
//! PREFIX : 2 A F {TAG} BODY
//!          | | |   |    what else names the cell: its scope and its key
//!          | | |   what cells must share to live together; Redis Cluster hashes what stands between the braces
//!          | | the form of TAG and BODY, below
//!          | the algorithm (or both sliding ones), so that no limit reads what another wrote
//!          the version of this layout
//! ```
//! | F | TAG | BODY |
//! |---|---|---|
//! | `k` | the key, which is its own tag | the scope |
//! | `t` | the tag | the length-prefixed scope, then the key |
//! | `d` | the tag | SHA-256 of scope and key, if they are long |
//! | `h` | 16 hex digits of the tag's SHA-256, if it is long, empty, or contains a brace | SHA-256 of tag, scope and key |
//!
//! The encoding of a tag depends only on the tag, so cells that share a tag share a slot. Parts are never joined as plain text:
//! each is length-prefixed, so they may contain any bytes. Callers choose keys, so the hash that replaces long parts is
//! collision-resistant.

use sha2::{Digest, Sha256};
use tidegate_core::append_part;
use tidegate_store::{CellKey, RefundId};

use crate::sample::KeyKind;

/// The layout version of keys and values; nodes with another version use separate cells.
const LAYOUT: u8 = b'2';
/// The layout version of keys and values: nodes with different layouts count separately.
pub const KEY_LAYOUT: &str = "2";
/// Replaces the algorithm letter: a reservation, not a cell.
const RESERVATION: u8 = b'r';
/// Replaces the algorithm letter: marks that a cell has received a refund.
const REFUND: u8 = b'g';
/// Replaces the algorithm letter: the current holders of part of a cell (`holds.lua`).
const HOLDERS: u8 = b'o';
/// Replaces the algorithm letter: live limiters.
const MEMBERS: u8 = b'm';
/// Replaces the algorithm letter: a record.
const RECORD: u8 = b'n';

const LONGEST_TAG: usize = 64;
const LONGEST_BODY: usize = 160;

/// Writes keys with a common prefix.
#[derive(Clone, Debug)]
pub(crate) struct KeyWriter {
    prefix: Box<[u8]>,
}

impl KeyWriter {
    /// `prefix` must not contain a brace; the caller checks this.
    pub(crate) fn new(prefix: &str) -> Self {
        KeyWriter { prefix: prefix.as_bytes().into() }
    }

    /// Appends the key of `cell` for a limit whose algorithm is `letter`.
    pub(crate) fn append(&self, out: &mut Vec<u8>, letter: u8, cell: &CellKey<'_>) {
        let scope = cell.scope.as_bytes();
        let plain = is_plain(cell.tag);
        let short = scope.len() + cell.key.len() <= LONGEST_BODY;
        let form = match (plain, short) {
            (true, true) if cell.tag == cell.key => b'k',
            (true, true) => b't',
            (true, false) => b'd',
            (false, _) => b'h',
        };
        self.append_head(out, letter, form);
        append_tag(out, cell.tag);
        match form {
            b'k' => out.extend_from_slice(scope),
            b't' => {
                append_part(out, scope);
                out.extend_from_slice(cell.key);
            }
            _ => {
                let mut parts = Vec::with_capacity(cell.tag.len() + scope.len() + cell.key.len() + 8);
                append_part(&mut parts, if plain { b"" } else { cell.tag });
                append_part(&mut parts, scope);
                parts.extend_from_slice(cell.key);
                out.extend_from_slice(&Sha256::digest(&parts));
            }
        }
    }

    /// Appends the key that stores what reservation `id` spent on the node of `tag`.
    pub(crate) fn append_reservation(&self, out: &mut Vec<u8>, tag: &[u8], id: u128) {
        self.append_head(out, RESERVATION, b'k');
        append_tag(out, tag);
        out.extend_from_slice(&id.to_le_bytes());
    }

    /// Appends the key that marks `cell` as having received refund `id`.
    pub(crate) fn append_refund(&self, out: &mut Vec<u8>, cell: &CellKey<'_>, id: RefundId) {
        let mut parts = Vec::with_capacity(cell.scope.as_bytes().len() + cell.key.len() + 24);
        parts.extend_from_slice(&id.to_bytes());
        append_part(&mut parts, cell.scope.as_bytes());
        parts.extend_from_slice(cell.key);
        self.append_head(out, REFUND, b'd');
        append_tag(out, cell.tag);
        out.extend_from_slice(&Sha256::digest(&parts)[..16]);
    }

    /// The key of the list of current holders of the cell with this key.
    pub(crate) fn holders_of(&self, cell: &[u8]) -> Vec<u8> {
        let mut list = cell.to_vec();
        list[self.prefix.len() + 2] = HOLDERS;
        list
    }

    /// The position of the algorithm letter in a key, from 1 as Lua counts.
    pub(crate) fn letter_at(&self) -> u16 {
        u16::try_from(self.prefix.len() + 3).expect("a prefix is short")
    }

    /// Appends the key of the list of live limiters.
    pub(crate) fn append_members(&self, out: &mut Vec<u8>, tag: &[u8]) {
        self.append_head(out, MEMBERS, b'k');
        append_tag(out, tag);
    }

    /// A key for data that nodes exchange, next to the list of limiters. It does not depend on the cell layout.
    pub(crate) fn fleet_key(&self, tag: &[u8], name: &[u8]) -> Vec<u8> {
        let mut key = self.prefix.to_vec();
        key.extend_from_slice(b":fleet");
        append_tag(&mut key, tag);
        key.extend_from_slice(name);
        key
    }

    /// Appends the key of the record `name`, which is its own tag.
    pub(crate) fn append_record(&self, out: &mut Vec<u8>, name: &[u8]) {
        self.append_head(out, RECORD, if is_plain(name) { b'k' } else { b'h' });
        append_tag(out, name);
        if !is_plain(name) {
            out.extend_from_slice(&Sha256::digest(name));
        }
    }

    /// Classifies a key read from the server.
    pub(crate) fn kind_of(&self, key: &[u8]) -> KeyKind {
        let ours = key.strip_prefix(&*self.prefix).and_then(|rest| rest.strip_prefix(b":"));
        match ours {
            None => KeyKind::Foreign,
            Some(rest) if rest.starts_with(b"fleet{") => KeyKind::Fleet,
            Some([LAYOUT, MEMBERS, ..]) => KeyKind::Fleet,
            Some([LAYOUT, RESERVATION | HOLDERS | REFUND, ..]) => KeyKind::Reservation,
            Some([LAYOUT, RECORD, ..]) => KeyKind::Record,
            Some([LAYOUT, _, ..]) => KeyKind::Cell,
            Some([layout, ..]) if layout.is_ascii_digit() => KeyKind::OtherLayout,
            Some(_) => KeyKind::Foreign,
        }
    }

    fn append_head(&self, out: &mut Vec<u8>, letter: u8, form: u8) {
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(&[b':', LAYOUT, letter, form]);
    }
}

/// The Redis Cluster slot of cells with this tag.
pub(crate) fn slot_of(tag: &[u8]) -> u16 {
    let mut written = Vec::with_capacity(LONGEST_TAG + 2);
    append_tag(&mut written, tag);
    crc16(&written[1..written.len() - 1]) % SLOTS
}

/// The number of slots in a cluster.
pub(crate) const SLOTS: u16 = 16_384;

fn is_plain(tag: &[u8]) -> bool {
    (1..=LONGEST_TAG).contains(&tag.len()) && !tag.contains(&b'}')
}

fn append_tag(out: &mut Vec<u8>, tag: &[u8]) {
    out.push(b'{');
    if is_plain(tag) {
        out.extend_from_slice(tag);
    } else {
        for byte in &Sha256::digest(tag)[..8] {
            out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 0xf)]]);
        }
    }
    out.push(b'}');
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// CRC-16/XMODEM, which Redis Cluster uses to assign slots.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)])
}

const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::Scope;

    use super::*;
    use crate::limits::REFUSED_LETTER;

    fn written(scope: &[u8], key: &[u8], tag: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let scope = Scope::from_bytes(scope);
        KeyWriter::new("tg").append(&mut out, b'b', &CellKey { scope: &scope, key, tag });
        out
    }

    #[test]
    fn a_key_that_is_its_own_tag_is_written_once() {
        assert_eq!(written(b"scope", b"key", b"key"), b"tg:2bk{key}scope");
    }

    #[test]
    fn refused_requests_of_a_limit_are_no_record() {
        let keys = KeyWriter::new("tg");
        let scope = Scope::from_bytes(b"scope");
        let (mut refused, mut record) = (Vec::new(), Vec::new());
        keys.append(&mut refused, REFUSED_LETTER, &CellKey { scope: &scope, key: b"key", tag: b"key" });
        keys.append_record(&mut record, b"name");
        assert_eq!([&refused, &record].map(|key| keys.kind_of(key)), [KeyKind::Cell, KeyKind::Record]);
    }

    #[test]
    fn a_long_key_is_hashed() {
        let key = [7; 10_000];
        assert!(written(b"scope", &key, &key).len() < 64);
        assert_ne!(written(b"scope", &key, &key), written(b"scope", &key[1..], &key[1..]));
    }

    #[test]
    fn a_slot_is_what_the_cluster_specification_says() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"123456789"), 0x31c3 % SLOTS);
    }

    /// Short strings of bytes that could break the encoding, and some long ones.
    fn part() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop::sample::select(b"{}:ab\x00\x01\x02".to_vec());
        prop_oneof![
            8 => prop::collection::vec(byte.clone(), 0..4),
            1 => prop::collection::vec(byte, 60..200),
        ]
    }

    proptest! {
        #[test]
        fn different_cells_have_different_keys(one in (part(), part(), part()), other in (part(), part(), part())) {
            prop_assume!(one != other);
            prop_assert_ne!(written(&one.0, &one.1, &one.2), written(&other.0, &other.1, &other.2));
        }

        #[test]
        fn cells_of_one_tag_share_a_slot_with_each_other_their_reservations_and_refunds(
            tag in part(), one in (part(), part()), other in (part(), part())
        ) {
            let slot = tidegate_testkit::slot_of(&written(&one.0, &one.1, &tag));
            prop_assert_eq!(slot, slot_of(&tag));
            prop_assert_eq!(slot, tidegate_testkit::slot_of(&written(&other.0, &other.1, &tag)));
            let mut reservation = Vec::new();
            KeyWriter::new("tg").append_reservation(&mut reservation, &tag, 7);
            prop_assert_eq!(slot, tidegate_testkit::slot_of(&reservation));
            let (scope, mut refund) = (Scope::from_bytes(&one.0), Vec::new());
            let cell = CellKey { scope: &scope, key: &one.1, tag: &tag };
            KeyWriter::new("tg").append_refund(&mut refund, &cell, RefundId::new([7; 16]));
            prop_assert_eq!(slot, tidegate_testkit::slot_of(&refund));
        }
    }
}
