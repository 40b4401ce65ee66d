//! Extrapolates a limit's recent answer to now, assuming no requests in between.
//!
//! The caller of a remote store has its answer, not its state. For buckets and fixed windows the answer determines everything, to
//! the microsecond; for sliding windows and logs it is exact for the cost that was asked, and a lower bound for others.

use crate::{Ask, Cell, Charge, Hits, Limit, Micros, Outcome, Timestamp, Verdict};

/// The last answer about a cell; nothing else is known here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastAnswer {
    /// Remaining hits at that time.
    pub remaining: u64,
    /// When the full quota is back.
    pub reset_after: Micros,
}

impl LastAnswer {
    /// The answer in `outcome`.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Self {
        LastAnswer { remaining: outcome.remaining, reset_after: outcome.reset_after }
    }

    /// The same after the limit's number changed from `quota`: what was spent stays spent.
    #[must_use]
    pub fn under(self, quota: u64, limit: &Limit) -> Self {
        let spent = quota.saturating_sub(self.remaining);
        let remaining = limit.quota().saturating_sub(spent);
        // A bucket's reset follows from what was spent.
        let reset_after = match limit.quota_window().filter(|_| limit.refills()) {
            Some(window) => {
                let most = u128::from(window.get()) * u128::from(spent);
                let span = most.div_ceil(u128::from(limit.quota().max(1)));
                Micros::new(u64::try_from(span).unwrap_or(u64::MAX))
            }
            None => self.reset_after,
        };
        LastAnswer { remaining, reset_after }
    }

    /// What remains `elapsed` later, and when the full quota is back; none if it is back by then.
    #[must_use]
    pub fn left_after(self, limit: &Limit, elapsed: Micros) -> Option<Outcome> {
        let reset_after = self.reset_after.saturating_sub(elapsed);
        if reset_after == Micros::ZERO {
            return None;
        }
        let bucket = bucket_after(limit, reset_after, Hits::ZERO);
        let remaining = bucket.map_or(self.remaining, |bucket| bucket.remaining);
        Some(Outcome { verdict: Verdict::Admitted { delay: Micros::ZERO }, remaining, reset_after })
    }

    /// The refusal of `wanted` hits `elapsed` later, given that `refused` hits, at most as many, are refused for another `wait`
    /// or forever.
    #[must_use]
    pub fn refusal_after(
        self,
        limit: &Limit,
        elapsed: Micros,
        wanted: Hits,
        refused: Hits,
        wait: Option<Micros>,
    ) -> Outcome {
        // A look counts as one hit.
        let never = wanted.get().max(1) > limit.quota();
        if elapsed >= self.reset_after {
            // The full quota is back, and the request still never fits.
            let reset_after = next_window_end(limit, elapsed.saturating_sub(self.reset_after));
            let verdict = Verdict::Refused { retry_after: wait.filter(|_| !never) };
            return Outcome { verdict, remaining: limit.quota(), reset_after };
        }
        let reset_after = self.reset_after.saturating_sub(elapsed);
        let bucket = bucket_after(limit, reset_after, wanted);
        let retry_after = match bucket {
            _ if never => None,
            // Sooner if the store said so: another request may put back the missing quota.
            _ if limit.facts().ends_at_once => {
                Some(wait.map_or(reset_after, |wait| wait.min(reset_after)).max(Micros::ONE))
            }
            _ if wanted.get().max(1) == refused.get() => wait,
            // The answer is rounded to whole microseconds: it is a refusal, so the wait is at least one.
            Some(bucket) => Some(bucket.retry_after().unwrap_or(Micros::ONE)),
            // More hits may have to wait longer; only the store knows how long.
            None => wait,
        };
        let remaining = match bucket {
            Some(bucket) => bucket.remaining,
            None if refused == Hits::ONE && limit.min_interval() == Micros::ZERO => 0,
            None => self.remaining,
        };
        // Fewer remain than are known to be refused.
        let remaining = remaining.min(refused.get().saturating_sub(1).max(self.remaining));
        Outcome { verdict: Verdict::Refused { retry_after }, remaining, reset_after }
    }
}

/// The time until the current window ends, `since` after an earlier one ended: only fixed windows end without a hit in them.
fn next_window_end(limit: &Limit, since: Micros) -> Micros {
    match limit.quota_window().filter(|_| limit.facts().ends_at_once) {
        Some(window) => Micros::new(window.get() - since.get() % window.get()),
        None => Micros::ZERO,
    }
}

/// The outcome of `hits` on a bucket that is full again in `reset_after`, which alone determines its level. None for other
/// limits.
fn bucket_after(limit: &Limit, reset_after: Micros, hits: Hits) -> Option<Outcome> {
    let refill = limit.quota_window().filter(|_| limit.refills())?;
    // Any time works that is later than the longest refill, because only spans are returned.
    let now = Timestamp::MAX;
    // After a live decrease, a limit may have to drain more than it can hold.
    let beyond = reset_after.saturating_sub(refill);
    let mut cell = Cell::Vacant;
    // Answers are in whole microseconds: assume the highest possible level, so that the remaining quota is never too high.
    let spent_at = now.back(refill.saturating_sub(reset_after + Micros::ONE));
    limit.charge(&mut cell, spent_at, Charge::now(Hits::new(limit.quota())));
    let outcome = limit.look(&cell, now, Ask::hits(hits.get()));
    let verdict = match outcome.verdict {
        Verdict::Refused { retry_after } => {
            Verdict::Refused { retry_after: retry_after.map(|wait| wait + beyond) }
        }
        other => other,
    };
    Some(Outcome { verdict, reset_after, ..outcome })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{FixedWindow, LeakyBucket, Rate, RefusedHits, SlidingLog, SlidingWindow, TokenBucket};

    fn any_limit() -> impl Strategy<Value = Limit> {
        let (count, quota, span) = (1..2_000u64, 1..50u64, 1_000..5_000_000u64);
        (0..5, count, quota, span).prop_map(|(kind, count, quota, span)| {
            let (rate, span) = (Rate::new(count, Micros::new(span)).unwrap(), Micros::new(span));
            match kind {
                0 => Limit::TokenBucket(TokenBucket::new(rate, quota).unwrap()),
                1 => Limit::LeakyBucket(LeakyBucket::new(rate, span).unwrap()),
                2 => Limit::FixedWindow(FixedWindow::new(quota, span).unwrap()),
                3 => Limit::SlidingWindow(SlidingWindow::new(quota, span).unwrap()),
                _ => Limit::SlidingLog(
                    SlidingLog::new(quota, span, Micros::ZERO, RefusedHits::Forget).unwrap(),
                ),
            }
        })
    }

    #[test]
    fn a_fixed_window_that_the_store_may_free_soon_is_not_said_to_take_until_its_end() {
        let limit = Limit::FixedWindow(FixedWindow::new(10, Micros::from_secs(3_600)).unwrap());
        let last = LastAnswer { remaining: 0, reset_after: Micros::from_secs(1_800) };
        let soon = Some(Micros::from_millis(90));
        let told = last.refusal_after(&limit, Micros::from_millis(10), Hits::ONE, Hits::ONE, soon);
        assert_eq!(told.retry_after(), soon);
    }

    proptest! {
        #[test]
        fn a_refusal_told_later_is_what_the_limit_itself_says_then(
            limit in any_limit(),
            start in 1_800_000_000_000_000..1_800_000_010_000_000u64,
            spends in proptest::collection::vec((1..20u64, 0..300_000u64), 1..60),
            part in 0.0..1.0f64,
            more in 0..5u64,
        ) {
            let mut cell = Cell::Vacant;
            let mut now = Timestamp::from_micros(start);
            let refusal = spends.iter().find_map(|(hits, pause)| {
                now = now + Micros::new(*pause);
                let outcome = limit.decide(&mut cell, now, Ask::hits(*hits));
                (!outcome.is_admitted()).then_some((*hits, outcome))
            });
            let Some((cost, first)) = refusal else { return Ok(()) };
            let held = first.retry_after().unwrap_or(Micros::from_secs(1)).get();
            let elapsed = Micros::new((held as f64 * part) as u64).saturating_sub(Micros::ONE);
            let wanted = cost + more;
            let wait = first.retry_after().map(|wait| wait.saturating_sub(elapsed));
            let told = LastAnswer::of(&first).refusal_after(&limit, elapsed, Hits::new(wanted), Hits::new(cost), wait);
            let truth = limit.look(&cell, now + elapsed, Ask::hits(wanted));

            prop_assert!(!truth.is_admitted(), "the cache may still say no");
            prop_assert_eq!(told.reset_after, truth.reset_after);
            match (told.retry_after(), truth.retry_after()) {
                (Some(told), Some(truth)) if more == 0 => prop_assert_eq!(told, truth),
                (Some(told), Some(truth)) if limit.is_bucket_or_fixed() => prop_assert!(told.get().abs_diff(truth.get()) <= 2, "{told} for {truth}"),
                (Some(told), Some(truth)) => prop_assert!(told <= truth, "{told} for {truth}"),
                (told, truth) => prop_assert_eq!(told, truth),
            }
            if limit.is_bucket_or_fixed() {
                let early = limit.look(&cell, now + elapsed.saturating_sub(Micros::new(2)), Ask::hits(wanted));
                prop_assert!((early.remaining..=truth.remaining).contains(&told.remaining), "{} for {}", told.remaining, truth.remaining);
            } else if cost == 1 {
                prop_assert_eq!(told.remaining, truth.remaining);
            } else {
                prop_assert!(told.remaining <= truth.remaining);
            }
        }
    }

    #[test]
    fn a_look_at_a_ban_is_told_no_time_to_come_back() {
        let ban = Limit::FixedWindow(FixedWindow::new(0, Micros::from_secs(60)).unwrap());
        let told = LastAnswer { remaining: 0, reset_after: Micros::from_secs(30) };
        for hits in [Hits::ZERO, Hits::ONE] {
            let refusal = told.refusal_after(&ban, Micros::from_secs(1), hits, Hits::ONE, None);
            assert_eq!(refusal.retry_after(), None);
        }
    }

    #[test]
    fn a_bucket_that_refills_over_centuries_reports_what_is_left() {
        // One hit per ten years, a burst of 25: full after 250 years.
        let rate = Rate::new(1, Micros::from_secs(10 * 365 * 86_400)).unwrap();
        let limit = Limit::TokenBucket(TokenBucket::new(rate, 25).unwrap());
        let (mut cell, now) = (Cell::Vacant, Timestamp::from_micros(1_800_000_000_000_000));
        let spent = limit.decide(&mut cell, now, Ask::hits(5));
        let refused = limit.decide(&mut cell, now, Ask::hits(21));
        assert_eq!((spent.remaining, refused.is_admitted()), (20, false));
        let elapsed = Micros::from_secs(1);
        let truth = limit.look(&cell, now + elapsed, Ask::hits(21));
        let (wanted, wait) = (Hits::new(21), refused.retry_after().map(|wait| wait.saturating_sub(elapsed)));
        let told = LastAnswer::of(&refused).refusal_after(&limit, elapsed, wanted, wanted, wait);
        assert_eq!((told.remaining, told.retry_after()), (truth.remaining, truth.retry_after()));
        assert_eq!(LastAnswer::of(&spent).left_after(&limit, elapsed).map(|left| left.remaining), Some(20));
    }

    trait IsBucketOrFixed {
        fn is_bucket_or_fixed(&self) -> bool;
    }

    impl IsBucketOrFixed for Limit {
        fn is_bucket_or_fixed(&self) -> bool {
            matches!(self, Limit::TokenBucket(_) | Limit::LeakyBucket(_) | Limit::FixedWindow(_))
        }
    }
}
