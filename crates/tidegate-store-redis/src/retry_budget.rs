//! How long to retry a request that is refused while others hold part of its quota.
//!
//! A hold is kept or put back about a round trip later. Requests in the same call wait meanwhile, so retries end long before
//! their deadline. Under constant holds, retries soon wait only for the holders seen first.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::link::Deadline;
use crate::wire::Doubt;

const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(4);
/// The part of the budget that each retried request uses up.
const EACH: Duration = Duration::from_millis(2);

/// The retry budget of one call.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    began: Instant,
    /// From here on, retries do not wait for new holders.
    fresh_until: Instant,
    until: Instant,
    pause: Duration,
}

impl RetryBudget {
    /// Half the remaining time of a call that is about to be sent.
    pub(crate) fn new(deadline: Deadline) -> Self {
        let (began, pause) = (Instant::now(), SHORTEST_PAUSE);
        let left = deadline.at.saturating_duration_since(began);
        RetryBudget { began, fresh_until: began + left / 4, until: began + left / 2, pause }
    }

    /// Whether this many requests may retry: in a flood of refusals, retries would only add to the flood.
    pub(crate) fn allows(&self, in_doubt: usize) -> bool {
        let now = Instant::now();
        let left = self.until.saturating_duration_since(now + self.pause);
        // After a slow first answer, a retry would make all of them late.
        in_doubt as u128 <= left.as_micros() / EACH.as_micros() && now.duration_since(self.began) <= left
    }

    /// Pauses, longer each time, and returns how the `in_doubt` requests retry.
    pub(crate) async fn pause(&mut self, in_doubt: usize) -> Retry {
        if !self.allows(in_doubt) {
            return Retry::Final;
        }
        let now = Instant::now();
        // Jitter, so that two conflicting calls do not retry at the same time.
        let part = RandomState::new().hash_one(self.until) % 100;
        sleep(self.pause.mul_f64(0.5 + part as f64 / 200.0)).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        if now < self.fresh_until { Retry::Fresh } else { Retry::SinceLast }
    }
}

/// How a request in doubt retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Like the first time.
    Fresh,
    /// Does not wait for holders that came after the last attempt.
    SinceLast,
    /// Gets a final decision, in doubt or not.
    Final,
}

impl Retry {
    pub(crate) fn of(self, last: Doubt) -> Doubt {
        match self {
            _ if last == Doubt::NO_MORE => last,
            Retry::Fresh => Doubt::NONE,
            Retry::SinceLast => last,
            Retry::Final => Doubt::NO_MORE,
        }
    }
}
