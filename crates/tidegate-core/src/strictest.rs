//! Two limits on one cell: a request under both must satisfy both.

use crate::concurrency::Concurrency;
use crate::error::LimitError;
use crate::fixed_window::FixedWindow;
use crate::leaky_bucket::LeakyBucket;
use crate::limit::Limit;
use crate::meter::Rate;
use crate::sliding_log::{RefusedHits, SlidingLog};
use crate::sliding_window::SlidingWindow;
use crate::token_bucket::TokenBucket;

impl Limit {
    /// The limit that admits no more than this one and no more than `other`, number by number: either of two tiers of a
    /// rule may be the stricter in some number. None if the family of the algorithms or the period differ, because they then
    /// use different cells.
    #[must_use]
    pub fn strictest(&self, other: &Limit) -> Option<Limit> {
        // Valid limits with smaller numbers stay valid.
        (self.period() == other.period()).then(|| both(self, other).and_then(Result::ok)).flatten()
    }

    /// Whether its quota refills continuously at its rate, not per window.
    #[must_use]
    pub fn refills(&self) -> bool {
        matches!(self, Limit::TokenBucket(_) | Limit::LeakyBucket(_))
    }

    /// The same for a caller that cannot wait in a queue; none if the limit has no queue.
    #[must_use]
    pub fn without_waiting(&self) -> Option<Limit> {
        match self {
            Limit::LeakyBucket(bucket) => Some(Limit::LeakyBucket(bucket.without_waiting())),
            _ => None,
        }
    }

    /// The same with at most `most` leases at once; limits without leases are unchanged.
    #[must_use]
    pub fn with_leases_at_most(&self, most: u64) -> Limit {
        match self {
            Limit::Concurrency(limit) => {
                let fewer = Concurrency::new(limit.limit().min(most), limit.ttl(), limit.refused_hits());
                fewer.map_or_else(|_| self.clone(), Limit::Concurrency)
            }
            _ => self.clone(),
        }
    }
}

fn both(one: &Limit, other: &Limit) -> Option<Result<Limit, LimitError>> {
    let slower = |one: Rate, other: Rate| Rate::new(one.count().min(other.count()), one.period());
    let refused = |one, other| match (one, other) {
        (RefusedHits::Forget, RefusedHits::Forget) => RefusedHits::Forget,
        _ => RefusedHits::Count,
    };
    Some(match (one, other) {
        (Limit::TokenBucket(one), Limit::TokenBucket(other)) => slower(one.rate(), other.rate())
            .and_then(|rate| TokenBucket::new(rate, one.burst().min(other.burst())))
            .map(Limit::TokenBucket),
        (Limit::LeakyBucket(one), Limit::LeakyBucket(other)) => slower(one.rate(), other.rate())
            .and_then(|rate| LeakyBucket::new(rate, one.max_delay().min(other.max_delay())))
            .map(Limit::LeakyBucket),
        (Limit::FixedWindow(one), Limit::FixedWindow(other)) => {
            let limit = one.limit().min(other.limit());
            match (one.window(), one.boundaries()) {
                (Some(window), _) => FixedWindow::new(limit, window),
                (None, boundaries) => FixedWindow::calendar(limit, boundaries.unwrap_or_default().into()),
            }
            .map(Limit::FixedWindow)
        }
        (Limit::SlidingWindow(one), Limit::SlidingWindow(other)) => {
            SlidingWindow::new(one.limit().min(other.limit()), one.window()).map(Limit::SlidingWindow)
        }
        (Limit::SlidingLog(one), Limit::SlidingLog(other)) => SlidingLog::new(
            one.limit().min(other.limit()),
            one.window(),
            one.min_interval().max(other.min_interval()),
            refused(one.refused_hits(), other.refused_hits()),
        )
        .map(Limit::SlidingLog),
        // A log admits no more than a counter of the same number; only a ban cannot be one.
        (Limit::SlidingLog(log), Limit::SlidingWindow(window))
        | (Limit::SlidingWindow(window), Limit::SlidingLog(log)) => match window.limit().min(log.limit()) {
            0 => SlidingWindow::new(0, window.window()).map(Limit::SlidingWindow),
            limit => SlidingLog::new(limit, log.window(), log.min_interval(), log.refused_hits())
                .map(Limit::SlidingLog),
        },
        (Limit::Concurrency(one), Limit::Concurrency(other)) => Concurrency::new(
            one.limit().min(other.limit()),
            one.ttl().max(other.ttl()),
            refused(one.refused_hits(), other.refused_hits()),
        )
        .map(Limit::Concurrency),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Micros;

    #[test]
    fn of_two_buckets_the_slower_rate_and_the_smaller_burst_count() {
        let bucket = |count, burst| {
            let rate = Rate::new(count, Micros::from_secs(1)).unwrap();
            Limit::TokenBucket(TokenBucket::new(rate, burst).unwrap())
        };
        assert_eq!(bucket(1, 100).strictest(&bucket(50, 5)), Some(bucket(1, 5)));
    }

    #[test]
    fn of_a_log_and_a_counter_the_log_counts_up_to_the_smaller_number() {
        let minute = Micros::from_secs(60);
        let log = |limit| {
            Limit::SlidingLog(SlidingLog::new(limit, minute, Micros::ONE, RefusedHits::Forget).unwrap())
        };
        let window = |limit| Limit::SlidingWindow(SlidingWindow::new(limit, minute).unwrap());
        assert_eq!(log(100).strictest(&window(900)), Some(log(100)));
        assert_eq!(window(50).strictest(&log(100)), Some(log(50)));
        assert_eq!(log(100).strictest(&window(0)), Some(window(0)));
    }

    #[test]
    fn limits_of_different_cells_have_nothing_in_common() {
        let window = |seconds| Limit::FixedWindow(FixedWindow::new(5, Micros::from_secs(seconds)).unwrap());
        let sliding = Limit::SlidingWindow(SlidingWindow::new(5, Micros::from_secs(1)).unwrap());
        assert_eq!(window(1).strictest(&window(2)), None);
        assert_eq!(window(1).strictest(&sliding), None);
    }
}
