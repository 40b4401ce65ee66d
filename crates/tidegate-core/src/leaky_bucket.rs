//! Leaky bucket as a queue: requests leave at a steady rate, each told how long to wait for its turn.
//!
//! In any window w at most `rate x w + 1` hits leave (a request of cost c leaves as one, so its c hits come together).
//! A slot that was given cannot be given back: those behind it were already told their time.

use crate::error::LimitError;
use crate::limit::Charge;
use crate::meter::{Meter, MeterCell, Rate};
use crate::outcome::{Outcome, Verdict};
use crate::units::{Hits, Micros, Timestamp};

/// Lets requests go at `rate`, in order, those that would wait longer than `max_delay` not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakyBucket {
    meter: Meter,
    max_delay: Micros,
    /// The work that the queue holds when it takes one hit more.
    queue: u64,
    capacity: u64,
}

impl LeakyBucket {
    /// A queue that drains at `rate` and holds what drains within `max_delay`.
    ///
    /// # Errors
    /// When the queue is longer than the exact arithmetic can follow.
    pub fn new(rate: Rate, max_delay: Micros) -> Result<Self, LimitError> {
        let queued = u128::from(max_delay.get()) * u128::from(rate.count()) / u128::from(rate.period().get());
        let too_long = || {
            LimitError::new(
                "max_delay",
                format!(
                    "a queue of {max_delay} at {}/{} cannot be counted exactly",
                    rate.count(),
                    rate.period()
                ),
                "use a shorter max_delay",
            )
        };
        let capacity = u64::try_from(queued + 1).map_err(|_| too_long())?;
        // Twice, because the last request admitted lies beyond `max_delay` by its own length.
        let meter = Meter::new(rate, capacity.checked_mul(2).ok_or_else(too_long)?).ok_or_else(too_long)?;
        // A coarse meter drains a little slower than `rate`; what it holds is counted by how it really drains.
        let queue = meter.drained_in(max_delay);
        Ok(LeakyBucket { meter, max_delay, queue, capacity: meter.whole_hits_in(queue) + 1 })
    }

    /// The same queue for a caller that cannot wait: what would have to is refused, and takes no slot.
    #[must_use]
    pub fn without_waiting(&self) -> Self {
        LeakyBucket { max_delay: Micros::ZERO, ..*self }
    }

    /// The longest that a request is asked to wait.
    #[must_use]
    pub fn max_delay(&self) -> Micros {
        self.max_delay
    }

    /// How fast the queue drains.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.meter.rate()
    }

    /// The numbers by which it counts.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The work that the queue holds when it takes one hit more.
    #[must_use]
    pub fn queue(&self) -> u64 {
        self.queue
    }

    /// The most hits that an empty queue takes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Decides `hits` against `cell` at `now`, and says what the cell becomes. All hits must find a slot in the queue; the
    /// request goes when its first slot comes.
    #[must_use]
    pub fn decide(
        &self,
        cell: Option<MeterCell>,
        now: Timestamp,
        hits: Hits,
    ) -> (Outcome, Option<MeterCell>) {
        let backlog = self.meter.backlog_at(cell, now);
        let reset_after = self.meter.time_to_drain(backlog);
        let remaining = self.remaining(backlog);
        let wanted = hits.get().max(1);
        if wanted > self.capacity {
            return (Outcome::refused(None, remaining, reset_after), Meter::rebased(cell, now));
        }
        let highest_backlog = (self.queue - self.meter.work_of(wanted - 1)).min(self.longest_wait());
        if backlog > highest_backlog {
            let retry_after = self.meter.time_to_drain(backlog - highest_backlog);
            return (Outcome::refused(Some(retry_after), remaining, reset_after), Meter::rebased(cell, now));
        }
        let verdict = Verdict::Admitted { delay: reset_after };
        if hits == Hits::ZERO {
            return (Outcome { verdict, remaining, reset_after }, Meter::rebased(cell, now));
        }
        let filled = backlog + self.meter.work_of(wanted);
        let outcome = Outcome {
            verdict,
            remaining: self.remaining(filled),
            reset_after: self.meter.time_to_drain(filled),
        };
        (outcome, self.meter.cell(filled, now))
    }

    /// Takes slots for hits whether or not they fit.
    #[must_use]
    pub fn charge(&self, cell: Option<MeterCell>, now: Timestamp, charge: Charge) -> Option<MeterCell> {
        self.meter.charge(cell, now, charge, self.capacity)
    }

    /// How long a full queue takes to drain.
    #[must_use]
    pub fn drain_time(&self) -> Micros {
        self.meter.time_to_drain(self.meter.work_of(self.capacity))
    }

    /// The work ahead of a request that waits as long as it may.
    #[must_use]
    pub fn longest_wait(&self) -> u64 {
        self.meter.drained_in(self.max_delay)
    }

    fn remaining(&self, backlog: u64) -> u64 {
        if backlog > self.longest_wait() {
            return 0;
        }
        self.meter.whole_hits_in(self.queue - backlog) + 1
    }
}
