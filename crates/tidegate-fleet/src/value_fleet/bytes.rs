//! Values as bytes: parts with their lengths. Anyone who can write to the store chose them, so nothing is taken for granted.

use tidegate_core::{append_part, take_part};

pub(super) fn append(bytes: &mut Vec<u8>, part: &[u8]) {
    append_part(bytes, part);
}

pub(super) fn append_number(bytes: &mut Vec<u8>, number: u64) {
    append_part(bytes, &number.to_le_bytes());
}

/// Reads parts from the front.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn part(&mut self) -> Option<&'a [u8]> {
        let (part, rest) = take_part(self.0)?;
        self.0 = rest;
        Some(part)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.part()?.try_into().ok()?))
    }

    pub(super) fn text(&mut self) -> Option<String> {
        Some(String::from_utf8_lossy(self.part()?).into_owned())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
