//! A limit in Envoy's terms: a token bucket whose tokens can be divided.

use tidegate_core::{Limit, Micros, Timestamp};

use super::{RateLimitStrategy, Strategy, TokenBucket};

/// What may be lent of a limit: `capacity` requests in each `fill_seconds`.
///
/// A share is a whole number of these requests, so a limit that is smaller than the number of Envoys is lent to those with the
/// largest demand, and the others have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) capacity: u64,
    pub(super) fill_seconds: u32,
    /// How many requests all shares together may pass at once; each share has at least one.
    burst: u64,
}

const SECOND: u64 = 1_000_000;

impl Terms {
    /// The terms of `limit` at `now`; none if it is not a rate.
    pub(super) fn of(limit: &Limit, now: Timestamp) -> Option<Self> {
        if limit.takes_lease() {
            return None;
        }
        let (count, period) = match limit.rate() {
            Some(rate) => (rate.count(), rate.period()),
            None => (limit.quota(), window(limit, now)?),
        };
        // Envoy knows whole seconds; rounded up, because it takes a span below one for no limit.
        let fill_seconds = period.as_secs_ceil().max(1);
        let capacity =
            u128::from(count) * u128::from(fill_seconds * SECOND) / u128::from(period.get().max(1));
        let capacity = u64::try_from(capacity).unwrap_or(u64::MAX).min(u64::from(u32::MAX));
        // A change of a share fills its bucket again, so a burst is short compared with the five seconds between changes, unless
        // so few requests remain of it that an even load would be refused.
        let burst_seconds = (fill_seconds / 10).clamp(1, 10);
        let mut burst = capacity.saturating_mul(burst_seconds) / fill_seconds;
        if limit.rate().is_some() {
            burst = burst.min(limit.quota());
        }
        let fill_seconds = u32::try_from(fill_seconds).unwrap_or(u32::MAX);
        Some(Terms { capacity, fill_seconds, burst })
    }

    /// Requests within `span` as requests of these terms, rounded up.
    pub(super) fn rate_of(&self, hits: u64, span: Micros) -> u64 {
        let scaled = u128::from(hits) * u128::from(self.fill_seconds) * u128::from(SECOND);
        u64::try_from(scaled.div_ceil(u128::from(span.get().max(1)))).unwrap_or(u64::MAX)
    }

    /// The share that a holder of these terms certainly has that passed `hits` within `span`, if its bucket was full before.
    pub(super) fn proven_by(&self, hits: u64, span: Micros) -> u64 {
        let burst_span = u128::from(self.burst) * u128::from(self.fill_seconds) * u128::from(SECOND)
            / u128::from(self.capacity.max(1));
        let span = u128::from(span.get()) + burst_span;
        let scaled = u128::from(hits.saturating_sub(1)) * u128::from(self.fill_seconds) * u128::from(SECOND);
        u64::try_from(scaled / span.max(1)).unwrap_or(u64::MAX)
    }

    /// The share that is as fast as `share` of `other` terms, rounded up.
    pub(super) fn converted(&self, share: u64, other: &Terms) -> u64 {
        let scaled = u128::from(share) * u128::from(self.fill_seconds);
        u64::try_from(scaled.div_ceil(u128::from(other.fill_seconds))).unwrap_or(u64::MAX)
    }

    /// Whether `share` is slower than `other` of other terms.
    pub(super) fn is_slower(&self, share: u64, (other, terms): (u64, &Terms)) -> bool {
        u128::from(share) * u128::from(terms.fill_seconds) < u128::from(other) * u128::from(self.fill_seconds)
    }

    /// A share's requests per second, in thousandths.
    pub(super) fn per_second_milli(&self, share: u64) -> u64 {
        share.saturating_mul(1_000) / u64::from(self.fill_seconds)
    }

    /// A share as Envoy takes it.
    pub(super) fn strategy(&self, share: u64) -> RateLimitStrategy {
        if share == 0 {
            return super::session::blanket(super::BlanketRule::DenyAll);
        }
        let burst = u128::from(self.burst) * u128::from(share) / u128::from(self.capacity.max(1));
        let fill_interval = prost_types::Duration {
            seconds: i64::from(self.fill_seconds),
            // Envoy 1.40 keeps the old bucket if only the seconds differ, but compares the nanoseconds too, and rounds them off.
            nanos: i32::try_from(self.fill_seconds % 1_000_000_000).expect("below a billion"),
        };
        let bucket = TokenBucket {
            max_tokens: u32::try_from(burst).unwrap_or(u32::MAX).max(1),
            tokens_per_fill: Some(u32::try_from(share).unwrap_or(u32::MAX)),
            fill_interval: Some(fill_interval),
        };
        RateLimitStrategy { strategy: Some(Strategy::TokenBucket(bucket)) }
    }
}

/// The span in which a window's limit is used.
fn window(limit: &Limit, now: Timestamp) -> Option<Micros> {
    let of_a_calendar = || limit.window_around(now).map(|(start, end)| end - start);
    limit.quota_window().or_else(of_a_calendar)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{FixedWindow, Rate, TokenBucket as Bucket};

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    fn window_of(limit: u64, span: Micros) -> Terms {
        Terms::of(&Limit::FixedWindow(FixedWindow::new(limit, span).unwrap()), NOW).unwrap()
    }

    fn tokens(terms: Terms, share: u64) -> (u32, u32, i64) {
        let Some(Strategy::TokenBucket(bucket)) = terms.strategy(share).strategy else { panic!("no bucket") };
        (bucket.max_tokens, bucket.tokens_per_fill.unwrap(), bucket.fill_interval.unwrap().seconds)
    }

    #[test]
    fn a_share_of_a_window_is_whole_requests_in_each_window() {
        let minute = window_of(100, Micros::from_secs(60));
        assert_eq!(tokens(minute, 33), (3, 33, 60));
        assert_eq!(tokens(window_of(100, Micros::from_secs(1)), 40), (40, 40, 1));
        assert_eq!(tokens(window_of(5, Micros::from_secs(86_400)), 1), (1, 1, 86_400));
    }

    #[test]
    fn a_window_below_a_second_fills_once_a_second_at_the_same_rate() {
        assert_eq!(tokens(window_of(10, Micros::from_millis(200)), 50), (50, 50, 1));
        // Two whole seconds of 1.5: not rounded up.
        assert_eq!(window_of(10, Micros::from_millis(1_500)).capacity, 13);
    }

    #[test]
    fn a_bucket_lends_no_more_than_its_burst() {
        let bucket = Bucket::new(Rate::new(100, Micros::from_secs(1)).unwrap(), 20).unwrap();
        let terms = Terms::of(&Limit::TokenBucket(bucket), NOW).unwrap();
        assert_eq!(tokens(terms, 50), (10, 50, 1));
        let large = Bucket::new(Rate::new(10, Micros::from_secs(1)).unwrap(), 500).unwrap();
        let terms = Terms::of(&Limit::TokenBucket(large), NOW).unwrap();
        assert_eq!(tokens(terms, 10), (10, 10, 1), "a second's worth, since each change fills it again");
    }

    #[test]
    fn no_share_is_a_denial() {
        let denied = window_of(100, Micros::from_secs(1)).strategy(0);
        assert_eq!(denied.strategy, Some(Strategy::BlanketRule(super::super::BlanketRule::DenyAll.into())));
    }

    #[test]
    fn a_holder_that_used_all_of_its_share_proves_no_more_than_that() {
        let terms = window_of(100, Micros::from_secs(1));
        // A share of 30 passes a burst of 30 and five seconds' worth.
        assert!(terms.proven_by(30 + 150, Micros::from_secs(5)) <= 30);
        assert!(terms.proven_by(30 + 150, Micros::from_secs(5)) >= 29);
    }
}
