//! Token bucket: bursts up to `burst`, refilled at an independent `rate`.
//!
//! Stored as work still to drain rather than tokens left (GCRA), so that an idle bucket needs no state. In any window
//! w it admits at most `burst + rate x w`.

use crate::algorithm::{Algorithm, Behaviour, Counter, Facts};
use crate::cell::{Cell, CellForm};
use crate::error::LimitError;
use crate::limit::{Charge, Limit};
use crate::meter::{Meter, MeterCell, Rate};
use crate::outcome::Outcome;
use crate::sliding_log::RefusedHits;
use crate::units::{Hits, Micros, Timestamp};

/// At most `burst` hits at once, refilled at `rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    meter: Meter,
    burst: u64,
}

impl TokenBucket {
    /// A bucket that holds `burst` hits and refills at `rate`.
    ///
    /// # Errors
    /// When `burst` is zero, or its refill takes longer than the exact arithmetic can represent.
    pub fn new(rate: Rate, burst: u64) -> Result<Self, LimitError> {
        if burst == 0 {
            return Err(LimitError::new(
                "burst",
                "a bucket that holds nothing admits nothing",
                "use at least 1",
            ));
        }
        let meter = Meter::new(rate, burst).ok_or_else(|| {
            let problem =
                format!("a burst of {burst} at {}/{} cannot be counted exactly", rate.count(), rate.period());
            LimitError::new("burst", problem, "use a smaller burst, or a rate over a shorter period")
        })?;
        Ok(TokenBucket { meter, burst })
    }

    /// The most hits at once.
    #[must_use]
    pub fn burst(&self) -> u64 {
        self.burst
    }

    /// The refill rate.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.meter.rate()
    }

    /// Its meter.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Decides `hits` against `cell` at `now`, and returns the new cell.
    ///
    /// A refusal spends nothing, so retrying never pushes a caller further back.
    #[must_use]
    #[inline]
    pub fn decide(
        &self,
        cell: Option<MeterCell>,
        now: Timestamp,
        hits: Hits,
    ) -> (Outcome, Option<MeterCell>) {
        let backlog = self.meter.backlog_at(cell, now);
        let capacity = self.meter.work_of(self.burst);
        let wanted = hits.get().max(1);
        let highest_backlog = (wanted <= self.burst).then(|| capacity - self.meter.work_of(wanted));
        match highest_backlog {
            Some(highest) if backlog <= highest && hits > Hits::ZERO => {
                let filled = backlog + self.meter.work_of(wanted);
                (self.admitted(filled, capacity), self.meter.cell(filled, now))
            }
            Some(highest) if backlog <= highest => {
                (self.admitted(backlog, capacity), Meter::rebased(cell, now))
            }
            _ => {
                let retry_after = highest_backlog.map(|highest| self.meter.time_to_drain(backlog - highest));
                let remaining = self.meter.whole_hits_in(capacity.saturating_sub(backlog));
                let outcome = Outcome::refused(retry_after, remaining, self.meter.time_to_drain(backlog));
                (outcome, Meter::rebased(cell, now))
            }
        }
    }

    #[inline]
    fn admitted(&self, backlog: u64, capacity: u64) -> Outcome {
        Outcome::admitted(self.meter.whole_hits_in(capacity - backlog), self.meter.time_to_drain(backlog))
    }

    /// Refunds `hits`, at most what was spent.
    #[must_use]
    pub fn refund(&self, cell: Option<MeterCell>, now: Timestamp, hits: Hits) -> Option<MeterCell> {
        self.meter.refund(cell, now, hits)
    }

    /// Charges hits whether or not they fit.
    #[must_use]
    pub fn charge(&self, cell: Option<MeterCell>, now: Timestamp, charge: Charge) -> Option<MeterCell> {
        self.meter.charge(cell, now, charge, self.burst)
    }

    /// The time to refill an empty bucket.
    #[must_use]
    pub fn refill_time(&self) -> Micros {
        self.meter.time_to_drain(self.meter.work_of(self.burst))
    }
}

impl Behaviour for TokenBucket {
    #[inline]
    fn facts(&self) -> Facts<'_> {
        Facts {
            algorithm: Algorithm::TokenBucket,
            form: CellForm::Counter,
            quota: self.burst,
            period: Some(self.rate().period()),
            numbers: [self.burst, self.rate().count(), self.rate().period().get()],
            meter: Some(&self.meter),
            refused: RefusedHits::Forget,
            min_interval: Micros::ZERO,
            lease_ttl: None,
            takes_refunds: true,
            ends_at_once: false,
        }
    }

    fn quota_window(&self) -> Option<Micros> {
        Some(self.refill_time())
    }

    fn divided(&self, nodes: u64) -> Result<Self, LimitError> {
        TokenBucket::new(self.rate().divided(nodes)?, self.burst.div_ceil(nodes))
    }

    fn paid_ahead(&self, held: Micros) -> Option<Result<Self, LimitError>> {
        // What a span spends was taken in it, or up to `held` before: so the burst is smaller by what refills in that time.
        let rate = self.rate();
        let refills = u128::from(held.get()) * u128::from(rate.count());
        let refills = u64::try_from(refills.div_ceil(u128::from(rate.period().get()))).ok()?;
        let burst = self.burst.checked_sub(refills).filter(|burst| *burst > 0)?;
        Some(TokenBucket::new(rate, burst))
    }

    fn strictest(&self, other: &Limit) -> Option<Result<Limit, LimitError>> {
        let Limit::TokenBucket(other) = other else { return None };
        let rate = self.rate().slower(other.rate());
        Some(rate.and_then(|rate| TokenBucket::new(rate, self.burst.min(other.burst))).map(Limit::from))
    }
}

impl Counter for TokenBucket {
    type State = MeterCell;

    fn state(&self, cell: &Cell, _: Timestamp) -> Option<MeterCell> {
        cell.counted()
    }

    #[inline]
    fn step(&self, state: Option<MeterCell>, now: Timestamp, hits: Hits) -> (Outcome, Option<MeterCell>) {
        self.decide(state, now, hits)
    }

    fn refunded(&self, state: Option<MeterCell>, now: Timestamp, hits: Hits, _: Micros) -> Option<MeterCell> {
        self.refund(state, now, hits)
    }

    fn charged(&self, state: Option<MeterCell>, now: Timestamp, charge: Charge) -> Option<MeterCell> {
        self.charge(state, now, charge)
    }
}
