//! Distinguishes limits on the same cell, and says how long their refusals stay valid.

use crate::limit::Limit;

/// The numbers of a limit. Two limits on the same cell are equal if their fingerprints are: the family of the algorithm and the
/// period are part of the cell's key, the numbers are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LimitFingerprint([u64; 3]);

/// How long a refusal until a given time may be repeated from the deny cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalHolds {
    /// Until that time.
    UntilThen,
    /// Only for requests that came before the limit refused: a lease may end at any time.
    AtThatMoment,
    /// Not at all: each refusal must be counted.
    Never,
}

impl Limit {
    /// Distinguishes this limit from others on the same cell.
    #[must_use]
    pub fn fingerprint(&self) -> LimitFingerprint {
        LimitFingerprint(self.facts().numbers)
    }

    /// How long its refusal may be repeated without asking the store again.
    #[must_use]
    pub fn refusal_holds(&self) -> RefusalHolds {
        if self.counts_refused() {
            RefusalHolds::Never
        } else if self.takes_lease() {
            RefusalHolds::AtThatMoment
        } else {
            RefusalHolds::UntilThen
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Concurrency, FixedWindow, Micros, Rate, RefusedHits, SlidingLog, SlidingWindow, TokenBucket,
    };

    const SECOND: Micros = Micros::from_secs(1);

    #[test]
    fn limits_of_one_cell_with_other_numbers_have_other_fingerprints() {
        let bucket = |count, burst| {
            Limit::TokenBucket(TokenBucket::new(Rate::new(count, SECOND).unwrap(), burst).unwrap())
        };
        let log = |interval| {
            Limit::SlidingLog(SlidingLog::new(9, SECOND, Micros::new(interval), RefusedHits::Forget).unwrap())
        };
        assert_eq!(bucket(1, 2).fingerprint(), bucket(1, 2).fingerprint());
        assert_ne!(bucket(1, 2).fingerprint(), bucket(1, 3).fingerprint());
        assert_ne!(bucket(1, 2).fingerprint(), bucket(2, 2).fingerprint());
        assert_ne!(log(0).fingerprint(), log(5).fingerprint());
        let window = Limit::SlidingWindow(SlidingWindow::new(9, SECOND).unwrap());
        assert_ne!(window.fingerprint(), log(0).fingerprint());
    }

    #[test]
    fn a_refusal_is_repeated_unless_it_may_end_early_or_must_be_counted() {
        let log = |refused| Limit::SlidingLog(SlidingLog::new(9, SECOND, Micros::ZERO, refused).unwrap());
        let leases = |refused| Limit::Concurrency(Concurrency::new(9, SECOND, refused).unwrap());
        let window = Limit::FixedWindow(FixedWindow::new(9, SECOND).unwrap());
        let (forget, count) = (RefusedHits::Forget, RefusedHits::Count);
        for (limit, holds) in [
            (window, RefusalHolds::UntilThen),
            (log(forget), RefusalHolds::UntilThen),
            (log(count), RefusalHolds::Never),
            (leases(forget), RefusalHolds::AtThatMoment),
            (leases(count), RefusalHolds::Never),
        ] {
            assert_eq!(limit.refusal_holds(), holds, "{limit:?}");
        }
    }
}
