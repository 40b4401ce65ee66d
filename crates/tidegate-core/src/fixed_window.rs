//! Fixed window: a count that resets at each boundary. Simple, cheap, and open to a burst of almost twice the limit around
//! a boundary; that is its documented bound.
//!
//! Windows are aligned to the Unix epoch, or to calendar boundaries computed by the caller (months and days differ in
//! length, and core knows no time zones).

use std::sync::Arc;

use crate::algorithm::{Algorithm, Behaviour, Counter, Facts};
use crate::cell::{Cell, CellForm, CounterBits, Packed};
use crate::error::LimitError;
use crate::limit::{Charge, Limit};
use crate::meter::MAX_PERIOD;
use crate::outcome::Outcome;
use crate::sliding_log::RefusedHits;
use crate::units::{EXACT_MAX, Hits, Micros, Timestamp};

/// At most `limit` hits between two boundaries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    limit: u64,
    boundaries: Boundaries,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Boundaries {
    /// Every multiple of this span since the epoch.
    Every(Micros),
    /// These times, ascending.
    At(Arc<[Timestamp]>),
}

/// The hits of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowCell {
    /// The start of the counted window.
    pub start: Timestamp,
    /// Hits admitted in it.
    pub count: u64,
}

impl FixedWindow {
    /// At most `limit` hits in each `window`; zero is a ban.
    ///
    /// # Errors
    /// When the window is zero or too long, or the limit cannot be counted exactly.
    pub fn new(limit: u64, window: Micros) -> Result<Self, LimitError> {
        check_window(window)?;
        check_limit(limit)?;
        Ok(FixedWindow { limit, boundaries: Boundaries::Every(window) })
    }

    /// At most `limit` hits between two consecutive `boundaries`, which must ascend. Time before the first belongs to the
    /// first window; after the last, windows of the last one's length follow, so that no window lasts forever.
    ///
    /// # Errors
    /// When there are fewer than two boundaries, they do not ascend, or the limit cannot be counted exactly.
    pub fn calendar(limit: u64, boundaries: Arc<[Timestamp]>) -> Result<Self, LimitError> {
        check_limit(limit)?;
        if boundaries.len() < 2 || !boundaries.is_sorted_by(|a, b| a < b) {
            return Err(LimitError::new(
                "window",
                "calendar boundaries must ascend",
                "pass at least two, each after the one before",
            ));
        }
        Ok(FixedWindow { limit, boundaries: Boundaries::At(boundaries) })
    }

    /// The most hits in a window.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The length of every window; none for a calendar, where it varies.
    #[must_use]
    pub fn window(&self) -> Option<Micros> {
        match self.boundaries {
            Boundaries::Every(window) => Some(window),
            Boundaries::At(_) => None,
        }
    }

    /// The calendar's boundaries; none for windows of equal length.
    #[must_use]
    pub fn boundaries(&self) -> Option<&[Timestamp]> {
        match &self.boundaries {
            Boundaries::Every(_) => None,
            Boundaries::At(boundaries) => Some(boundaries),
        }
    }

    /// The start and end of the window around `now`.
    #[must_use]
    pub fn window_around(&self, now: Timestamp) -> (Timestamp, Timestamp) {
        match &self.boundaries {
            Boundaries::Every(window) => repeated(Timestamp::default(), *window, now),
            Boundaries::At(boundaries) => match boundaries.partition_point(|boundary| *boundary <= now) {
                0 => (boundaries[0], boundaries[1]),
                after if after < boundaries.len() => (boundaries[after - 1], boundaries[after]),
                all => repeated(boundaries[all - 1], boundaries[all - 1] - boundaries[all - 2], now),
            },
        }
    }

    /// Decides `hits` against `cell` at `now`, and returns the new cell.
    #[must_use]
    pub fn decide(
        &self,
        cell: Option<WindowCell>,
        now: Timestamp,
        hits: Hits,
    ) -> (Outcome, Option<WindowCell>) {
        let (start, end) = self.window_around(now);
        let count = count_in(cell, start);
        let reset_after = end.since(now);
        let remaining = self.limit.saturating_sub(count);
        let wanted = hits.get().max(1);
        if wanted > remaining {
            let retry_after = (wanted <= self.limit).then_some(reset_after);
            return (Outcome::refused(retry_after, remaining, reset_after), rebased(cell, start));
        }
        if hits == Hits::ZERO {
            return (Outcome::admitted(remaining, reset_after), rebased(cell, start));
        }
        (
            Outcome::admitted(remaining - wanted, reset_after),
            Some(WindowCell { start, count: count + wanted }),
        )
    }

    /// Refunds `hits` that were spent `age` ago; nothing if their window is over.
    #[must_use]
    pub fn refund(
        &self,
        cell: Option<WindowCell>,
        now: Timestamp,
        hits: Hits,
        age: Micros,
    ) -> Option<WindowCell> {
        let (start, _) = self.window_around(now);
        let charged_here = self.window_around(now.back(age)).0 == start;
        let count = count_in(cell, start).saturating_sub(if charged_here { hits.get() } else { 0 });
        (count > 0).then_some(WindowCell { start, count })
    }

    /// Charges hits whether or not they fit; none if the window in which they were spent is over.
    #[must_use]
    pub fn charge(&self, cell: Option<WindowCell>, now: Timestamp, charge: Charge) -> Option<WindowCell> {
        let (start, _) = self.window_around(now);
        let spent_here = self.window_around(now.back(charge.age)).0 == start;
        let count = count_in(cell, start);
        let count = count + if spent_here { charge.fitting(self.limit, count) } else { 0 };
        (count > 0).then_some(WindowCell { start, count })
    }
}

/// The window around `now` among equal windows, the first of which started at `first`.
fn repeated(first: Timestamp, window: Micros, now: Timestamp) -> (Timestamp, Timestamp) {
    let start = now.back(Micros::new(now.since(first).get() % window.get()));
    (start, start + window)
}

/// The count of `cell` in the window that started at `start`. A cell from a later window was written before the clock
/// stepped back: its hits count here, so that the step frees nobody and locks nobody out beyond this window.
fn count_in(cell: Option<WindowCell>, start: Timestamp) -> u64 {
    cell.filter(|cell| cell.start >= start).map_or(0, |cell| cell.count)
}

/// The cell, moved to the window that started at `start` if it is from a later one. A refusal writes this back: otherwise
/// its hits would count in every window until the clock had caught up.
fn rebased(cell: Option<WindowCell>, start: Timestamp) -> Option<WindowCell> {
    cell.map(|cell| WindowCell { start: cell.start.min(start), ..cell })
}

pub(crate) fn check_window(window: Micros) -> Result<(), LimitError> {
    if window == Micros::ZERO {
        return Err(LimitError::new("window", "the window is zero", "use a span such as 1s, 1m or 1h"));
    }
    if window > MAX_PERIOD {
        return Err(LimitError::new(
            "window",
            format!("a window of {window} is too long"),
            format!("use at most {MAX_PERIOD}"),
        ));
    }
    Ok(())
}

fn check_limit(limit: u64) -> Result<(), LimitError> {
    if limit >= EXACT_MAX {
        let problem = format!("{limit} hits is more than can be counted exactly");
        return Err(LimitError::new("limit", problem, format!("use less than {EXACT_MAX}")));
    }
    Ok(())
}

impl FixedWindow {
    /// The same windows with another limit.
    fn with_limit(&self, limit: u64) -> Self {
        FixedWindow { limit, boundaries: self.boundaries.clone() }
    }
}

impl Behaviour for FixedWindow {
    #[inline]
    fn facts(&self) -> Facts<'_> {
        let [length, end] = match &self.boundaries {
            Boundaries::Every(window) => [window.get(), 0],
            Boundaries::At(all) => [all.len() as u64, all.last().map_or(0, |last| last.as_micros())],
        };
        Facts {
            algorithm: Algorithm::FixedWindow,
            form: CellForm::Counter,
            quota: self.limit,
            period: self.window(),
            numbers: [self.limit, length, end],
            meter: None,
            refused: RefusedHits::Forget,
            min_interval: Micros::ZERO,
            lease_ttl: None,
            takes_refunds: true,
            ends_at_once: true,
        }
    }

    fn quota_window(&self) -> Option<Micros> {
        self.window()
    }

    fn divided(&self, nodes: u64) -> Result<Self, LimitError> {
        Ok(self.with_limit(self.limit.div_ceil(nodes)))
    }

    fn paid_ahead(&self, _: Micros) -> Option<Result<Self, LimitError>> {
        // They are spent in the window that they were taken from, or not at all.
        Some(Ok(self.clone()))
    }

    fn strictest(&self, other: &Limit) -> Option<Result<Limit, LimitError>> {
        let Limit::FixedWindow(other) = other else { return None };
        Some(Ok(self.with_limit(self.limit.min(other.limit)).into()))
    }
}

impl Counter for FixedWindow {
    type State = WindowCell;

    fn state(&self, cell: &Cell, _: Timestamp) -> Option<WindowCell> {
        cell.counted()
    }

    #[inline]
    fn step(&self, state: Option<WindowCell>, now: Timestamp, hits: Hits) -> (Outcome, Option<WindowCell>) {
        self.decide(state, now, hits)
    }

    fn refunded(
        &self,
        state: Option<WindowCell>,
        now: Timestamp,
        hits: Hits,
        age: Micros,
    ) -> Option<WindowCell> {
        self.refund(state, now, hits, age)
    }

    fn charged(&self, state: Option<WindowCell>, now: Timestamp, charge: Charge) -> Option<WindowCell> {
        self.charge(state, now, charge)
    }
}

impl Packed for WindowCell {
    fn unpack(bits: CounterBits) -> Self {
        WindowCell { start: Timestamp::from_micros(bits.high), count: bits.low }
    }

    fn pack(self) -> CounterBits {
        CounterBits { low: self.count, high: self.start.as_micros() }
    }
}
