//! How long a request asks again that is refused while others hold some of what it needs.
//!
//! What is held is kept or put back about a round trip later. Those who are decided in the same call wait meanwhile, so this
//! ends long before their deadline. Where somebody always holds some, it soon comes down to those who did at first.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::link::Deadline;
use crate::wire::Doubt;

const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(4);
/// The patience that each who asks again takes.
const EACH: Duration = Duration::from_millis(2);

/// The patience of one call.
#[derive(Debug)]
pub(crate) struct Patience {
    began: Instant,
    /// From here on, who came later is not waited for.
    wears_thin: Instant,
    until: Instant,
    pause: Duration,
}

impl Patience {
    /// Half the time that is left, for a call that is about to be sent.
    pub(crate) fn new(deadline: Deadline) -> Self {
        let (began, pause) = (Instant::now(), SHORTEST_PAUSE);
        let left = deadline.at.saturating_duration_since(began);
        Patience { began, wears_thin: began + left / 4, until: began + left / 2, pause }
    }

    /// Whether so many may ask again: in a flood of refusals that would only be more of the flood.
    pub(crate) fn allows(&self, in_doubt: usize) -> bool {
        let now = Instant::now();
        let left = self.until.saturating_duration_since(now + self.pause);
        // Where the first answer took long, the next would come too late for all.
        in_doubt as u128 <= left.as_micros() / EACH.as_micros() && now.duration_since(self.began) <= left
    }

    /// Waits for a moment, each time for longer: how so many who are in doubt then ask.
    pub(crate) async fn pause(&mut self, in_doubt: usize) -> Manner {
        if !self.allows(in_doubt) {
            return Manner::ForGood;
        }
        let now = Instant::now();
        // Two who stand in each other's way shall not come again at the same moment.
        let part = RandomState::new().hash_one(self.until) % 100;
        sleep(self.pause.mul_f64(0.5 + part as f64 / 200.0)).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        if now < self.wears_thin { Manner::Anew } else { Manner::Since }
    }
}

/// How who was in doubt asks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// As if for the first time.
    Anew,
    /// Who came since the last time is not waited for.
    Since,
    /// To be decided, in doubt or not.
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
