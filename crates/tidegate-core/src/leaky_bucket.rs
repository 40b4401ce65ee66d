//! Leaky bucket as a queue: requests leave at a steady rate, each with the delay until its turn.
//!
//! In any window w at most `rate x w + 1` hits leave (a request of cost c leaves as one, so its c hits come together). A
//! granted slot cannot be refunded: requests behind it already have their delay.

use crate::algorithm::{Algorithm, Behaviour, Counter, Facts};
use crate::cell::{Cell, CellForm};
use crate::error::LimitError;
use crate::limit::{Charge, Limit};
use crate::meter::{Meter, MeterCell, Rate};
use crate::outcome::{Outcome, Verdict};
use crate::sliding_log::RefusedHits;
use crate::units::{Hits, Micros, Timestamp};

/// Admits requests at `rate`, in order, and refuses those that would wait longer than `max_delay`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakyBucket {
    meter: Meter,
    max_delay: Micros,
    /// The most work in the queue at which it still takes one more hit.
    queue: u64,
    capacity: u64,
}

impl LeakyBucket {
    /// A queue that drains at `rate` and holds the work of `max_delay`.
    ///
    /// # Errors
    /// When the queue is too long for the exact arithmetic.
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
        // Doubled, because the last admitted request extends beyond `max_delay` by its own length.
        let meter = Meter::new(rate, capacity.checked_mul(2).ok_or_else(too_long)?).ok_or_else(too_long)?;
        // A coarse meter drains a little slower than `rate`; the capacity follows its actual rate.
        let queue = meter.drained_in(max_delay);
        Ok(LeakyBucket { meter, max_delay, queue, capacity: meter.whole_hits_in(queue) + 1 })
    }

    /// The same queue for a caller that cannot wait: a request that would have to wait is refused, and takes no slot.
    #[must_use]
    pub fn without_waiting(&self) -> Self {
        LeakyBucket { max_delay: Micros::ZERO, ..*self }
    }

    /// The longest delay of a request.
    #[must_use]
    pub fn max_delay(&self) -> Micros {
        self.max_delay
    }

    /// The drain rate.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.meter.rate()
    }

    /// Its meter.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The most work in the queue at which it still takes one more hit.
    #[must_use]
    pub fn queue(&self) -> u64 {
        self.queue
    }

    /// The most hits that an empty queue admits.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Decides `hits` against `cell` at `now`, and returns the new cell. All hits must fit in the queue; the request
    /// leaves with its first slot.
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

    /// Charges slots for hits whether or not they fit.
    #[must_use]
    pub fn charge(&self, cell: Option<MeterCell>, now: Timestamp, charge: Charge) -> Option<MeterCell> {
        self.meter.charge(cell, now, charge, self.capacity)
    }

    /// The time to drain a full queue.
    #[must_use]
    pub fn drain_time(&self) -> Micros {
        self.meter.time_to_drain(self.meter.work_of(self.capacity))
    }

    /// The work ahead of a request with the longest allowed wait.
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

impl Behaviour for LeakyBucket {
    #[inline]
    fn facts(&self) -> Facts<'_> {
        Facts {
            algorithm: Algorithm::LeakyBucket,
            form: CellForm::Counter,
            quota: self.capacity,
            period: Some(self.rate().period()),
            numbers: [self.max_delay.get(), self.rate().count(), self.rate().period().get()],
            meter: Some(&self.meter),
            refused: RefusedHits::Forget,
            min_interval: Micros::ZERO,
            lease_ttl: None,
            takes_refunds: false,
            ends_at_once: false,
        }
    }

    fn quota_window(&self) -> Option<Micros> {
        Some(self.drain_time())
    }

    fn divided(&self, nodes: u64) -> Result<Self, LimitError> {
        LeakyBucket::new(self.rate().divided(nodes)?, self.max_delay)
    }

    fn paid_ahead(&self, _: Micros) -> Option<Result<Self, LimitError>> {
        // A place in the queue is a time, which passes while it is held.
        None
    }

    fn strictest(&self, other: &Limit) -> Option<Result<Limit, LimitError>> {
        let Limit::LeakyBucket(other) = other else { return None };
        let rate = self.rate().slower(other.rate());
        let delay = self.max_delay.min(other.max_delay);
        Some(rate.and_then(|rate| LeakyBucket::new(rate, delay)).map(Limit::from))
    }
}

impl Counter for LeakyBucket {
    type State = MeterCell;

    fn state(&self, cell: &Cell, _: Timestamp) -> Option<MeterCell> {
        cell.counted()
    }

    #[inline]
    fn step(&self, state: Option<MeterCell>, now: Timestamp, hits: Hits) -> (Outcome, Option<MeterCell>) {
        self.decide(state, now, hits)
    }

    /// A granted slot is not given back.
    fn refunded(&self, state: Option<MeterCell>, _: Timestamp, _: Hits, _: Micros) -> Option<MeterCell> {
        state
    }

    fn charged(&self, state: Option<MeterCell>, now: Timestamp, charge: Charge) -> Option<MeterCell> {
        self.charge(state, now, charge)
    }
}
