//! Work that hits add and time drains, in integers that never round.
//!
//! Textbook GCRA adds `period / count` of time per hit. At 600,000/s that is 1.67 us; rounding it up to 2 would take a
//! sixth of the caller's quota. We count *work* instead: a hit adds `period` (in microseconds) and each microsecond
//! drains `count`. Token and leaky buckets are both a backlog of work as of some time.
//!
//! The unit of work depends only on the period, so a live change of `count` or `burst` keeps what was spent, in hits.
//! Only if `burst x period` would leave the exact range is the unit coarser, by a power of two stored in the cell; such
//! a meter drains at most 0.1 % slower than configured, never faster.

use crate::cell::{CounterBits, Packed};
use crate::error::LimitError;
use crate::limit::Charge;
use crate::units::{EXACT_MAX, Hits, Micros, Timestamp};

/// `count` hits per `period`, neither zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: u64,
    period: Micros,
}

impl Rate {
    /// `count` hits per `period`.
    ///
    /// # Errors
    /// When either is zero, or too large for the exact arithmetic.
    pub fn new(count: u64, period: Micros) -> Result<Self, LimitError> {
        if count == 0 {
            return Err(LimitError::new(
                "rate",
                "a rate of zero admits nothing, ever",
                "use at least 1, or `limit: 0` in a window to ban",
            ));
        }
        if count >= EXACT_MAX {
            return Err(LimitError::new(
                "rate",
                format!("{count} hits is more than can be counted exactly"),
                format!("use less than {EXACT_MAX}"),
            ));
        }
        if period == Micros::ZERO {
            return Err(LimitError::new(
                "rate",
                "the period is zero",
                "use a period of at least 1us, such as 10/s",
            ));
        }
        if period.get() > MAX_PERIOD.get() {
            return Err(LimitError::new(
                "rate",
                format!("a period of {period} is too long"),
                format!("use at most {MAX_PERIOD}"),
            ));
        }
        Ok(Rate { count, period })
    }

    /// Hits per period.
    #[must_use]
    pub fn count(self) -> u64 {
        self.count
    }

    /// The slower of two rates of one period.
    pub(crate) fn slower(self, other: Rate) -> Result<Rate, LimitError> {
        Rate::new(self.count.min(other.count), self.period)
    }

    /// The share of each of `nodes`. The period is kept: a cell stays readable under another number, not under another period.
    pub(crate) fn divided(self, nodes: u64) -> Result<Rate, LimitError> {
        Rate::new(self.count.div_ceil(nodes), self.period)
    }

    /// The time in which `count` hits are refilled.
    #[must_use]
    pub fn period(self) -> Micros {
        self.period
    }
}

/// Ten years: longer periods are typos.
pub(crate) const MAX_PERIOD: Micros = Micros::from_secs(3_660 * 86_400);

/// Work not yet drained, as of some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterCell {
    /// Work left at `as_of`, in the unit given by `coarseness`.
    pub backlog: u64,
    /// The time of `backlog`.
    pub as_of: Timestamp,
    /// A hit adds `ceil(period / 2^coarseness)` of work.
    pub coarseness: u8,
}

/// Converts hits to work and time to drained work.
///
/// Its numbers are public because the Lua twins use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    rate: Rate,
    coarseness: u8,
    work_per_hit: u64,
    drained_per_us: u64,
}

impl Meter {
    /// A meter whose backlog may reach `most_hits`; none if the exact arithmetic cannot hold that.
    pub(crate) fn new(rate: Rate, most_hits: u64) -> Option<Self> {
        (0..53)
            .find_map(|coarseness| {
                let meter = Meter::with_coarseness(rate, coarseness);
                let fits = u128::from(most_hits) * u128::from(meter.work_per_hit)
                    + u128::from(meter.drained_per_us)
                    < u128::from(EXACT_MAX);
                fits.then_some(meter)
            })
            .filter(|meter| meter.is_accurate())
    }

    fn with_coarseness(rate: Rate, coarseness: u8) -> Self {
        let work_per_hit = work_per_hit(rate.period, coarseness);
        // Rounded down, so that a coarse meter drains too slowly rather than too fast: no bound is exceeded.
        let drained = u128::from(rate.count) * u128::from(work_per_hit) / u128::from(rate.period.get());
        // `work_per_hit <= period`, so the quotient is at most `count`.
        let drained_per_us = u64::try_from(drained).expect("at most the rate's count");
        Meter { rate, coarseness, work_per_hit, drained_per_us }
    }

    /// Whether it is within 0.1 % of the configured rate.
    fn is_accurate(&self) -> bool {
        let asked = u128::from(self.rate.count) * u128::from(self.work_per_hit);
        let given = u128::from(self.drained_per_us) * u128::from(self.rate.period.get());
        self.drained_per_us > 0 && (asked - given) * 1_000 <= asked
    }

    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// Work that one hit adds.
    #[must_use]
    pub fn work_per_hit(&self) -> u64 {
        self.work_per_hit
    }

    /// Work drained per microsecond.
    #[must_use]
    pub fn drained_per_us(&self) -> u64 {
        self.drained_per_us
    }

    /// The unit of work, as in [`MeterCell::coarseness`].
    #[must_use]
    pub fn coarseness(&self) -> u8 {
        self.coarseness
    }

    /// `hits` must not exceed the meter's `most_hits`; the caller checks this.
    #[inline]
    pub(crate) fn work_of(&self, hits: u64) -> u64 {
        hits * self.work_per_hit
    }

    #[inline]
    pub(crate) fn whole_hits_in(&self, work: u64) -> u64 {
        work / self.work_per_hit
    }

    /// The time to drain `work`, rounded up: never early.
    #[inline]
    pub(crate) fn time_to_drain(&self, work: u64) -> Micros {
        Micros::new(work.div_ceil(self.drained_per_us))
    }

    /// How much sooner a backlog drains if it is smaller by `hits`, rounded down.
    pub(crate) fn least_time_to_drain(&self, hits: u64) -> Micros {
        let span = u128::from(hits) * u128::from(self.work_per_hit) / u128::from(self.drained_per_us);
        Micros::new(u64::try_from(span).unwrap_or(u64::MAX))
    }

    /// Work drained within `span`, clamped to the exact range.
    #[inline]
    pub(crate) fn drained_in(&self, span: Micros) -> u64 {
        let drained = u128::from(span.get()) * u128::from(self.drained_per_us);
        u64::try_from(drained).unwrap_or(u64::MAX).min(EXACT_MAX)
    }

    /// The remaining backlog of `cell` at `now`.
    #[inline]
    pub(crate) fn backlog_at(&self, cell: Option<MeterCell>, now: Timestamp) -> u64 {
        let Some(cell) = cell else { return 0 };
        let backlog = self.in_this_unit(cell);
        // After a failover the store's clock may be behind the cell. The backlog then counts from `now` on: it drains at
        // its normal rate, and no caller is locked out until the old clock's time is reached.
        let drained = u128::from(now.since(cell.as_of).get()) * u128::from(self.drained_per_us);
        u64::try_from(drained).map_or(0, |drained| backlog.saturating_sub(drained))
    }

    /// The cell after a refund of `hits`, at most what was spent.
    pub(crate) fn refund(&self, cell: Option<MeterCell>, now: Timestamp, hits: Hits) -> Option<MeterCell> {
        let returned = self.work_within_range(hits.get());
        self.cell(self.backlog_at(cell, now).saturating_sub(returned), now)
    }

    /// The cell after a charge of already spent hits, in a bucket of `quota` hits.
    pub(crate) fn charge(
        &self,
        cell: Option<MeterCell>,
        now: Timestamp,
        charge: Charge,
        quota: u64,
    ) -> Option<MeterCell> {
        let last_change = cell.map_or(Timestamp::default(), |cell| cell.as_of);
        let spent_at = now.back(charge.age).max(last_change).min(now);
        let backlog = self.backlog_at(cell, spent_at);
        let most = self.work_within_range(quota.saturating_add(charge.overdraft.get()));
        // At this age even a full bucket would have drained.
        let is_over = charge.age >= self.time_to_drain(most);
        let hits = if is_over { 0 } else { charge.hits.get() };
        let taken = self.work_within_range(hits).min(most.saturating_sub(backlog));
        let drained = self.drained_in(now.since(spent_at));
        self.cell((backlog + taken).saturating_sub(drained), now)
    }

    /// The work of any number of hits, clamped to what a cell can hold.
    fn work_within_range(&self, hits: u64) -> u64 {
        hits.saturating_mul(self.work_per_hit).min(self.ceiling())
    }

    fn ceiling(&self) -> u64 {
        EXACT_MAX - 1 - self.drained_per_us
    }

    /// The cell for `backlog` at `now`; none if the backlog is zero.
    #[inline]
    pub(crate) fn cell(&self, backlog: u64, now: Timestamp) -> Option<MeterCell> {
        (backlog > 0).then_some(MeterCell { backlog, as_of: now, coarseness: self.coarseness })
    }

    /// The cell, moved to now if it is from the future. A refusal writes this back: otherwise the backlog would not
    /// drain until the clock had caught up.
    #[inline]
    pub(crate) fn rebased(cell: Option<MeterCell>, now: Timestamp) -> Option<MeterCell> {
        cell.map(|cell| MeterCell { as_of: cell.as_of.min(now), ..cell })
    }

    /// The cell's backlog in this meter's unit, rounded up to whole hits if the unit differs.
    #[inline]
    fn in_this_unit(&self, cell: MeterCell) -> u64 {
        if cell.coarseness == self.coarseness {
            return cell.backlog.min(self.ceiling());
        }
        let hits = cell.backlog.div_ceil(work_per_hit(self.rate.period, cell.coarseness));
        self.work_within_range(hits)
    }
}

fn work_per_hit(period: Micros, coarseness: u8) -> u64 {
    period.get().div_ceil(1 << coarseness.min(53))
}

/// Above the 53 bits of a backlog.
const COARSENESS_SHIFT: u32 = 56;

impl Packed for MeterCell {
    #[inline]
    fn unpack(bits: CounterBits) -> Self {
        MeterCell {
            backlog: bits.low & ((1 << COARSENESS_SHIFT) - 1),
            as_of: Timestamp::from_micros(bits.high),
            coarseness: bits.low.to_be_bytes()[0],
        }
    }

    #[inline]
    fn pack(self) -> CounterBits {
        let low = self.backlog | u64::from(self.coarseness) << COARSENESS_SHIFT;
        CounterBits { low, high: self.as_of.as_micros() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_changes_keeps_what_was_spent_in_hits() {
        let second = Micros::from_secs(1);
        let slow = Meter::new(Rate::new(10, second).unwrap(), 100).unwrap();
        let fast = Meter::new(Rate::new(1_000, second).unwrap(), 100_000).unwrap();
        let now = Timestamp::from_micros(1);
        let cell = slow.cell(slow.work_of(7), now);
        assert_eq!(fast.backlog_at(cell, now), fast.work_of(7));
    }

    #[test]
    fn a_unit_that_changes_rounds_what_was_spent_up_to_whole_hits() {
        let day = Micros::from_secs(86_400);
        let fine = Meter::new(Rate::new(1_000, day).unwrap(), 1_000).unwrap();
        let coarse = Meter::new(Rate::new(9_999_991, day).unwrap(), 9_999_991).unwrap();
        assert_ne!(fine.coarseness, coarse.coarseness);
        let now = Timestamp::from_micros(1);
        let cell = fine.cell(fine.work_of(7) - 1, now);
        assert_eq!(coarse.backlog_at(cell, now), coarse.work_of(7));
    }
}
