//! Sliding window counter: the previous window's count fades out over the current window.
//!
//! The estimate is `previous x (1 - elapsed) + current`, as if the previous window's hits had been spread evenly.
//! Steady traffic gets the limit; uneven traffic can pass almost twice the limit within some window, and that is the
//! documented bound. It keeps only two counts.

use crate::algorithm::{Algorithm, Behaviour, Counter, Facts};
use crate::cell::{Cell, CellForm, CounterBits, Packed};
use crate::error::LimitError;
use crate::fixed_window::check_window;
use crate::limit::{Charge, Limit};
use crate::outcome::Outcome;
use crate::sliding_log::RefusedHits;
use crate::units::{EXACT_MAX, Hits, Micros, Timestamp};

/// At most about `limit` hits in any `window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    limit: u64,
    window: Micros,
    tick: Micros,
}

/// The hits of the current window and of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingCell {
    /// The start of the current window.
    pub start: Timestamp,
    /// Hits admitted in the current window.
    pub current: u32,
    /// Hits admitted in the previous window.
    pub previous: u32,
}

impl SlidingCell {
    /// The start of the window at `now`, and how many hits count as of then and after it.
    pub(crate) fn counts(self, window: Micros, now: Timestamp) -> (Timestamp, [u64; 2]) {
        let start = start_of(now, window);
        let [previous, current] = self.in_window(start, window).map(u64::from);
        if previous == 0 {
            return (start, [0, current]);
        }
        // The finest ticks with which `previous` times their number is exact.
        let tick = window.get().div_ceil((EXACT_MAX - 1) / previous);
        let ticks = window.get().div_ceil(tick);
        let weight = ticks - now.since(start).get() / tick;
        (start, [(previous * weight).div_ceil(ticks), current])
    }

    /// The previous and the current count in the window that begins at `start`.
    fn in_window(self, start: Timestamp, window: Micros) -> [u32; 2] {
        match self {
            // A cell from a later window was written before the clock stepped back: its hits count here.
            cell if cell.start >= start => [cell.previous, cell.current],
            cell if cell.start + window == start => [cell.current, 0],
            _ => [0, 0],
        }
    }
}

fn start_of(now: Timestamp, window: Micros) -> Timestamp {
    Timestamp::from_micros(now.as_micros() - now.as_micros() % window.get())
}

/// Both counts as of `now`, and the weight of the previous one.
struct Reading {
    start: Timestamp,
    current: u64,
    previous: u64,
    /// Ticks of the previous window that have not faded yet, out of `ticks`.
    weight: u64,
    ticks: u64,
}

impl Reading {
    /// The estimate, in ticks x hits.
    fn load(&self) -> u64 {
        self.previous * self.weight + self.current * self.ticks
    }
}

impl SlidingWindow {
    /// At most about `limit` hits in any `window`; zero is a ban.
    ///
    /// # Errors
    /// When the window is zero or too long, or the limit exceeds what two packed counts hold.
    pub fn new(limit: u64, window: Micros) -> Result<Self, LimitError> {
        check_window(window)?;
        if limit > u64::from(u32::MAX) {
            let problem = format!("a sliding window counts up to {} hits, not {limit}", u32::MAX);
            return Err(LimitError::new("limit", problem, "use a fixed_window or a token_bucket for more"));
        }
        // A tick is one microsecond unless previous x ticks + current x ticks could leave the exact range.
        let most = u128::from(limit.max(1)) * u128::from(window.get());
        let tick = most.div_ceil(u128::from(EXACT_MAX / 4)).max(1);
        let tick = Micros::new(u64::try_from(tick).expect("ten years of 2^32 hits need ticks below 2^32"));
        Ok(SlidingWindow { limit, window, tick })
    }

    /// The most hits in a window of steady traffic.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The window's length.
    #[must_use]
    pub fn window(&self) -> Micros {
        self.window
    }

    /// The step in which the previous window fades.
    #[must_use]
    pub fn tick(&self) -> Micros {
        self.tick
    }

    /// Decides `hits` against `cell` at `now`, and returns the new cell.
    #[must_use]
    pub fn decide(
        &self,
        cell: Option<SlidingCell>,
        now: Timestamp,
        hits: Hits,
    ) -> (Outcome, Option<SlidingCell>) {
        let reading = self.read(cell, now);
        let room = (self.limit * reading.ticks).saturating_sub(reading.load());
        let remaining = room / reading.ticks;
        let wanted = hits.get().max(1);
        if wanted > remaining {
            let retry_after = (wanted <= self.limit).then(|| self.retry_at(&reading, wanted).since(now));
            return (
                Outcome::refused(retry_after, remaining, self.reset_after(&reading, now)),
                rebased(cell, &reading),
            );
        }
        if hits == Hits::ZERO {
            return (Outcome::admitted(remaining, self.reset_after(&reading, now)), rebased(cell, &reading));
        }
        let reading = Reading { current: reading.current + wanted, ..reading };
        (Outcome::admitted(remaining - wanted, self.reset_after(&reading, now)), packed(&reading))
    }

    /// Refunds `hits` that were spent `age` ago, first to the window in which they were spent.
    #[must_use]
    pub fn refund(
        &self,
        cell: Option<SlidingCell>,
        now: Timestamp,
        hits: Hits,
        age: Micros,
    ) -> Option<SlidingCell> {
        let mut reading = self.read(cell, now);
        if self.start_of(now.back(age)) == reading.start {
            let returned = hits.get().min(reading.current);
            reading.current -= returned;
            reading.previous = reading.previous.saturating_sub(hits.get() - returned);
        } else if self.start_of(now.back(age)) + self.window == reading.start {
            reading.previous = reading.previous.saturating_sub(hits.get());
        }
        packed(&reading)
    }

    /// Charges hits whether or not they fit, to the window in which they were spent.
    #[must_use]
    pub fn charge(&self, cell: Option<SlidingCell>, now: Timestamp, charge: Charge) -> Option<SlidingCell> {
        let mut reading = self.read(cell, now);
        let spent_in = self.start_of(now.back(charge.age));
        if spent_in == reading.start {
            reading.current += charge.fitting(self.limit, reading.current);
        } else if spent_in + self.window == reading.start {
            reading.previous += charge.fitting(self.limit, reading.previous);
        }
        packed(&reading)
    }

    /// A cell with the same estimate at `now` as a log, which has `counts` up to and after the start of the window.
    pub(crate) fn of_counts(
        &self,
        now: Timestamp,
        counts: impl FnOnce(Timestamp) -> [u64; 2],
    ) -> Option<SlidingCell> {
        let Reading { start, weight, ticks, .. } = self.read(None, now);
        let [older, newer] = counts(start);
        // More is never exact, and more than the limit.
        let most = EXACT_MAX / 2 / ticks;
        let older = older.min(most);
        // Floor: its weight rounds up again.
        let previous = (older * ticks / weight).min(u32::MAX.into());
        // In the last millionths of a window too few fit into `previous`, and the rest fades with the current ones.
        let current = (newer + older - (previous * weight).div_ceil(ticks)).min(most);
        packed(&Reading { start, current, previous, weight, ticks })
    }

    fn read(&self, cell: Option<SlidingCell>, now: Timestamp) -> Reading {
        let start = self.start_of(now);
        let ticks = self.window.get().div_ceil(self.tick.get());
        // A started tick has not faded: the weight rounds up, so the limit errs towards refusing.
        let weight = ticks - now.since(start).get() / self.tick.get();
        let [previous, current] = cell.map_or([0, 0], |cell| cell.in_window(start, self.window));
        // After a live decrease of the limit, old counts times the finer ticks may leave the exact range.
        let most = EXACT_MAX / 2 / ticks;
        let (current, previous) = (u64::from(current).min(most), u64::from(previous));
        let previous = if previous > most { previous.min(EXACT_MAX / 2 / weight) } else { previous };
        Reading { start, current, previous, weight, ticks }
    }

    fn start_of(&self, now: Timestamp) -> Timestamp {
        start_of(now, self.window)
    }

    /// The earliest time at which `wanted` hits fit, if no other request comes.
    fn retry_at(&self, reading: &Reading, wanted: u64) -> Timestamp {
        let this_window = self
            .limit
            .checked_sub(reading.current + wanted)
            .and_then(|room| self.faded_enough(reading.previous, room));
        if let Some(offset) = this_window {
            return reading.start + offset;
        }
        let next = reading.start + self.window;
        match self.faded_enough(reading.current, self.limit - wanted) {
            Some(offset) => next + offset,
            None => next + self.window,
        }
    }

    /// How far into a window the weight of `previous` drops to `room`; none if not before its end.
    fn faded_enough(&self, previous: u64, room: u64) -> Option<Micros> {
        let ticks = self.window.get().div_ceil(self.tick.get());
        if previous <= room {
            return Some(Micros::ZERO);
        }
        let heaviest = room * ticks / previous; // Floor: the weight must not exceed what fits.
        (heaviest > 0).then(|| Micros::new((ticks - heaviest) * self.tick.get()))
    }

    fn reset_after(&self, reading: &Reading, now: Timestamp) -> Micros {
        let end = reading.start + self.window;
        match (reading.current, reading.previous) {
            (0, 0) => Micros::ZERO,
            (0, _) => end.since(now),
            _ => (end + self.window).since(now),
        }
    }
}

/// The cell, moved to the window of `reading` if it is from a later one. A refusal writes this back: otherwise its
/// hits would count in every window until the clock had caught up.
fn rebased(cell: Option<SlidingCell>, reading: &Reading) -> Option<SlidingCell> {
    cell.and_then(|cell| if cell.start > reading.start { packed(reading) } else { Some(cell) })
}

fn packed(reading: &Reading) -> Option<SlidingCell> {
    // Counts never exceed the largest limit, which fits.
    let narrow = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    (reading.current > 0 || reading.previous > 0).then(|| SlidingCell {
        start: reading.start,
        current: narrow(reading.current),
        previous: narrow(reading.previous),
    })
}

impl Behaviour for SlidingWindow {
    #[inline]
    fn facts(&self) -> Facts<'_> {
        Facts {
            algorithm: Algorithm::SlidingWindow,
            form: CellForm::Counter,
            quota: self.limit,
            period: Some(self.window),
            // A sliding log, whose interval is shorter, may be of the same cell.
            numbers: [self.limit, self.window.get(), u64::MAX],
            meter: None,
            refused: RefusedHits::Forget,
            min_interval: Micros::ZERO,
            lease_ttl: None,
            takes_refunds: true,
            ends_at_once: false,
        }
    }

    fn quota_window(&self) -> Option<Micros> {
        Some(self.window)
    }

    fn divided(&self, nodes: u64) -> Result<Self, LimitError> {
        SlidingWindow::new(self.limit.div_ceil(nodes), self.window)
    }

    fn paid_ahead(&self, held: Micros) -> Option<Result<Self, LimitError>> {
        // What a window spends was taken in it, or up to `held` before.
        Some(SlidingWindow::new(self.limit, self.window + held))
    }

    fn strictest(&self, other: &Limit) -> Option<Result<Limit, LimitError>> {
        match other {
            Limit::SlidingWindow(other) => {
                Some(SlidingWindow::new(self.limit.min(other.limit), self.window).map(Limit::from))
            }
            Limit::SlidingLog(log) => Some(log.strictest_with_window(self)),
            Limit::TokenBucket(_) | Limit::FixedWindow(_) | Limit::LeakyBucket(_) | Limit::Concurrency(_) => {
                None
            }
        }
    }
}

impl Counter for SlidingWindow {
    type State = SlidingCell;

    fn state(&self, cell: &Cell, now: Timestamp) -> Option<SlidingCell> {
        self.read_cell(cell, now)
    }

    #[inline]
    fn step(&self, state: Option<SlidingCell>, now: Timestamp, hits: Hits) -> (Outcome, Option<SlidingCell>) {
        self.decide(state, now, hits)
    }

    fn refunded(
        &self,
        state: Option<SlidingCell>,
        now: Timestamp,
        hits: Hits,
        age: Micros,
    ) -> Option<SlidingCell> {
        self.refund(state, now, hits, age)
    }

    fn charged(&self, state: Option<SlidingCell>, now: Timestamp, charge: Charge) -> Option<SlidingCell> {
        self.charge(state, now, charge)
    }
}

impl Packed for SlidingCell {
    #[expect(clippy::cast_possible_truncation, reason = "each half is 32 bits")]
    fn unpack(bits: CounterBits) -> Self {
        let (current, previous) = (bits.low as u32, (bits.low >> 32) as u32);
        SlidingCell { start: Timestamp::from_micros(bits.high), current, previous }
    }

    fn pack(self) -> CounterBits {
        let low = u64::from(self.current) | u64::from(self.previous) << 32;
        CounterBits { low, high: self.start.as_micros() }
    }
}
