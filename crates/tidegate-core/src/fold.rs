//! Decides equal requests at one time as one.
//!
//! Within a call time stands still and cells only fill. So of n equal requests the first k pass and the rest are refused,
//! and a single look yields k: the work does not grow with n. The outcome of each request follows from its index.

use crate::limit::{Cell, Limit};
use crate::outcome::{Outcome, Verdict};
use crate::request::{Ask, Stance, Touch};
use crate::units::{Hits, Micros, Timestamp};

/// One limit's result for equal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// The number admitted; they are the first ones.
    pub admitted: u32,
    /// The outcome of the last admitted request; same as `last` if there is none.
    pub last_admitted: Outcome,
    /// The outcome of the last request, and of all others that were refused: if refused requests count, the outcome that
    /// each would have had alone is void once the next is recorded.
    pub last: Outcome,
}

impl Fold {
    /// The outcome for the equal request at index `place`, which asked `hits` of `limit`.
    ///
    /// Its spans may be up to a microsecond longer than for a single request, never shorter.
    #[must_use]
    pub fn at(&self, place: u32, limit: &Limit, hits: Hits) -> Outcome {
        if place >= self.admitted {
            return self.last;
        }
        let later = u64::from(self.admitted - 1 - place);
        limit.told_before(self.last_admitted, later.saturating_mul(hits.get()))
    }
}

/// Decides `count` equal requests at `now` and returns how many pass, as [`decide_request`](crate::decide_request) would
/// one after another. `tell` receives one fold per touch, in order. None of them takes a lease.
pub fn decide_fold<'a, T>(
    touches: T,
    cells: &mut [Cell],
    now: Timestamp,
    count: u32,
    mut tell: impl FnMut(Fold),
) -> u32
where
    T: Iterator<Item = (usize, Touch<'a>)> + Clone,
{
    let enforced = touches.clone().filter(|(_, touch)| touch.stance == Stance::Enforced);
    let passed = enforced.fold(count, |most, (place, touch)| {
        most.min(touch.limit.admits(&cells[place], now, touch.ask, most))
    });
    for (place, touch) in touches {
        tell(touch.decide_fold(&mut cells[place], now, count, passed));
    }
    passed
}

impl Touch<'_> {
    /// Decides `count` equal requests of which `passed` fit in all enforced cells.
    fn decide_fold(&self, cell: &mut Cell, now: Timestamp, count: u32, passed: u32) -> Fold {
        let Touch { limit, ask, stance } = *self;
        let admitted = match stance {
            Stance::Enforced => passed,
            Stance::Advisory => limit.admits(cell, now, ask, passed),
        };
        let last_admitted = (admitted > 0).then(|| limit.admit(cell, now, ask, admitted));
        let refused = (admitted < count).then(|| self.refuse(cell, now, count - admitted));
        let last = refused.or(last_admitted).expect("there is at least one request");
        Fold { admitted, last_admitted: last_admitted.unwrap_or(last), last }
    }
}

impl Limit {
    /// How many of `most` equal requests fit, one after another.
    #[must_use]
    pub fn admits(&self, cell: &Cell, now: Timestamp, ask: Ask, most: u32) -> u32 {
        if most == 0 {
            return 0;
        }
        let first = self.look(cell, now, ask);
        if !first.is_admitted() {
            return 0;
        }
        match self {
            // Looks spend nothing.
            _ if ask.hits == Hits::ZERO => most,
            Limit::Concurrency(_) => most,
            Limit::SlidingLog(limit) if limit.min_interval() > Micros::ZERO => 1,
            _ => {
                let others = first.remaining / ask.hits.get();
                u32::try_from(others.saturating_add(1)).map_or(most, |fit| fit.min(most))
            }
        }
    }

    /// Spends for `count` equal requests, which must fit, and returns the outcome of the last.
    fn admit(&self, cell: &mut Cell, now: Timestamp, ask: Ask, count: u32) -> Outcome {
        let spends = ask.hits > Hits::ZERO && !matches!(self, Limit::Concurrency(_));
        if spends && count > 1 {
            self.decide(cell, now, Ask::hits(ask.hits.get() * u64::from(count - 1)));
        }
        self.decide(cell, now, ask)
    }

    /// The outcome before another `hits` were admitted at the same time, the last of them with outcome `last`.
    fn told_before(&self, last: Outcome, hits: u64) -> Outcome {
        let meter = match self {
            Limit::Concurrency(_) => return last,
            Limit::TokenBucket(limit) => Some(limit.meter()),
            Limit::LeakyBucket(limit) => Some(limit.meter()),
            Limit::FixedWindow(_) | Limit::SlidingWindow(_) | Limit::SlidingLog(_) => None,
        };
        let drained = meter.map_or(Micros::ZERO, |meter| meter.least_time_to_drain(hits));
        let verdict = match last.verdict {
            Verdict::Admitted { delay } => Verdict::Admitted { delay: delay.saturating_sub(drained) },
            refused @ Verdict::Refused { .. } => refused,
        };
        Outcome {
            verdict,
            remaining: last.remaining.saturating_add(hits),
            reset_after: last.reset_after.saturating_sub(drained),
        }
    }
}
