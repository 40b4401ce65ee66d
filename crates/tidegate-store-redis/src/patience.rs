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
/// The patience that each retried request uses up.
const EACH: Duration = Duration::from_millis(2);

/// The retry budget of one call.
#[derive(Debug)]
pub(crate) struct Patience {
    began: Instant,
    /// From here on, retries do not wait for new holders.
    wears_thin: Instant,
    until: Instant,
    pause: Duration,
}

impl Patience {
    /// Half the remaining time of a call that is about to be sent.
    pub(crate) fn new(deadline: Deadline) -> Self {
        let (began, pause) = (Instant::now(), SHORTEST_PAUSE);
        let left = deadline.at.saturating_duration_since(began);
        Patience { began, wears_thin: began + left / 4, until: began + left / 2, pause }
    }

    /// Whether this many requests may retry: in a flood of refusals, retries would only add to the flood.
    pub(crate) fn allows(&self, in_doubt: usize) -> bool {
        let now = Instant::now();
        let left = self.until.saturating_duration_since(now + self.pause);
        // After a slow first answer, a retry would make all of them late.
        in_doubt as u128 <= left.as_micros() / EACH.as_micros() && now.duration_since(self.began) <= left
    }

    /// Pauses, longer each time, and returns how the `in_doubt` requests retry.
    pub(crate) async fn pause(&mut self, in_doubt: usize) -> Manner {
        if !self.allows(in_doubt) {
            return Manner::ForGood;
        }
        let now = Instant::now();
        // Jitter, so that two conflicting calls do not retry at the same time.
        let part = RandomState::new().hash_one(self.until) % 100;
        sleep(self.pause.mul_f64(0.5 + part as f64 / 200.0)).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        if now < self.wears_thin { Manner::Anew } else { Manner::Since }
    }
}

/// How a request in doubt retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Like the first time.
    Anew,
    /// Does not wait for holders that came after the last attempt.
    Since,
    /// Gets a final decision, in doubt or not.
    ForGood,
}

impl Manner {
    pub(crate) fn of(self, last: Doubt) -> Doubt {
        match self {
            _ if last == Doubt::NO_MORE => last,
            Manner::Anew => Doubt::NONE,
            Manner::Since => last,
            Manner::ForGood => Doubt::NO_MORE,
        }
    }
}
