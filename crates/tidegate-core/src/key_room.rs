//! The room that a store has for what it keeps of one key tuple.

use crate::cell::CellForm;
use crate::limit::Limit;

/// The room that a store has for all limits of one key tuple together, where that is bounded: an item of Memcached or DynamoDB is.
///
/// Counters need none of it: they are a few words each. Leases and logged hits share it: half as many of one leave room for half
/// as many of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct KeyRoom {
    /// The store's name, for messages.
    pub store: &'static str,
    /// The most leases.
    pub leases: u64,
    /// The most hits in logs.
    pub logged: u64,
}

impl KeyRoom {
    /// All of it, in millionths.
    pub const WHOLE: u64 = 1_000_000;

    /// Room for so many leases, or so many hits in logs.
    #[must_use]
    pub const fn new(store: &'static str, leases: u64, logged: u64) -> Self {
        KeyRoom { store, leases, logged }
    }

    /// What the fullest cell of `limit` takes of it, in millionths, rounded up.
    #[must_use]
    pub fn taken_by(&self, limit: &Limit) -> u64 {
        let part = |count: u64, most: u64| count.saturating_mul(Self::WHOLE).div_ceil(most.max(1));
        match limit.form() {
            CellForm::Counter => 0,
            CellForm::Log { hits, .. } => part(hits, self.logged),
            CellForm::Leases { most } => part(most, self.leases),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::concurrency::Concurrency;
    use crate::sliding_log::{RefusedHits, SlidingLog};
    use crate::token_bucket::TokenBucket;
    use crate::{Micros, Rate};

    #[test]
    fn leases_and_logged_hits_share_the_room_and_counters_need_none() {
        let (room, minute) = (KeyRoom::new("a store", 1_000, 3_000), Micros::from_secs(60));
        let leases = |most| Limit::Concurrency(Concurrency::new(most, minute, RefusedHits::Forget).unwrap());
        let log = |hits| {
            Limit::SlidingLog(SlidingLog::new(hits, minute, Micros::ZERO, RefusedHits::Forget).unwrap())
        };
        assert_eq!(room.taken_by(&leases(1_000)), KeyRoom::WHOLE);
        assert!(room.taken_by(&leases(1_001)) > KeyRoom::WHOLE);
        assert_eq!(room.taken_by(&leases(500)) + room.taken_by(&log(1_500)), KeyRoom::WHOLE);
        assert_eq!(room.taken_by(&log(1)), 334, "rounded up");
        let rate = Rate::new(1_000_000, minute).unwrap();
        assert_eq!(room.taken_by(&Limit::TokenBucket(TokenBucket::new(rate, 1_000_000).unwrap())), 0);
    }
}
