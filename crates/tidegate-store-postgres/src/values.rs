//! Rows that are no cells: records, marks of refunds, and the list of live limiters.
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

/// The live limiters: each with when it counts as gone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Members(Vec<(u64, Timestamp)>);

/// More limiters than a fleet has; further ones are not counted.
const MOST_MEMBERS: usize = 16_384;
/// A clock that stepped back must not keep members for long.
const LONGEST_TTL: Micros = Micros::from_secs(600);

impl Members {
    pub(crate) fn read(state: &[u8], now: Timestamp) -> Self {
        let entry = |entry: &[u8; 16]| {
            let [member, until] = [0, 8].map(|start| {
                u64::from_le_bytes(*entry[start..].first_chunk().expect("an entry is two numbers"))
            });
            (member, Timestamp::from_micros(until))
        };
        let (entries, _) = value(state, now).unwrap_or_default().as_chunks();
        let live = entries.iter().map(entry).filter(|(_, until)| now < *until && *until <= now + LONGEST_TTL);
        Members(live.collect())
    }

    /// Registers one for another `ttl`, and counts all.
    pub(crate) fn register(&mut self, member: u64, now: Timestamp, ttl: Micros) -> usize {
        self.remove(member);
        if self.0.len() < MOST_MEMBERS {
            self.0.push((member, now + ttl));
        }
        self.0.len()
    }

    pub(crate) fn remove(&mut self, member: u64) {
        self.0.retain(|(known, _)| *known != member);
    }

    pub(crate) fn content(&self, now: Timestamp) -> Content {
        let until = self.0.iter().map(|(_, until)| until.since(now)).max();
        let bytes: Vec<u8> = self
            .0
            .iter()
            .flat_map(|(member, until)| [member.to_le_bytes(), until.as_micros().to_le_bytes()])
            .flatten()
            .collect();
        until.map_or_else(|| gone(now), |ttl| content(&bytes, now, ttl))
    }
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

    #[test]
    fn members_that_are_silent_or_sign_off_are_not_counted() {
        let mut members = Members::default();
        assert_eq!((members.register(1, NOW, TTL), members.register(2, NOW, TTL)), (1, 2));
        let later = NOW + Micros::from_secs(3);
        let mut members = Members::read(&members.content(NOW).state, later);
        assert_eq!(members.register(1, later, TTL), 2);
        let mut members = Members::read(&members.content(later).state, NOW + TTL);
        assert_eq!(members.register(3, NOW + TTL, TTL), 2, "the second was silent");
        members.remove(1);
        assert_eq!(Members::read(&members.content(later).state, later).0.len(), 1);
    }
}
