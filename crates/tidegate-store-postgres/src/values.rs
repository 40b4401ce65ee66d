//! Rows that are no cells: records, marks of refunds, and the fleet's values.
//!
//! Each knows by itself when it ends: the sweep may come later.

use tidegate_core::{Micros, Timestamp};

use crate::transaction::Content;

/// A value that ends, as it is stored.
pub(crate) fn content(value: &[u8], now: Timestamp, ttl: Micros) -> Content {
    let ends = now + ttl;
    let mut state = ends.as_micros().to_le_bytes().to_vec();
    state.extend_from_slice(value);
    Content { state, ends }
}

/// Deletes a row.
pub(crate) fn gone(now: Timestamp) -> Content {
    Content { state: Vec::new(), ends: now }
}

/// The stored value, if it has not ended.
pub(crate) fn value(state: &[u8], now: Timestamp) -> Option<&[u8]> {
    let (ends, value) = state.split_first_chunk()?;
    (now < Timestamp::from_micros(u64::from_le_bytes(*ends))).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
    const TTL: Micros = Micros::from_secs(5);

    #[test]
    fn a_value_ends_with_its_time() {
        let stored = content(b"value", NOW, TTL).state;
        assert_eq!(value(&stored, NOW + Micros::from_millis(4_999)), Some(&b"value"[..]));
        assert_eq!(value(&stored, NOW + TTL), None);
        assert_eq!(value(b"", NOW), None);
    }
}
