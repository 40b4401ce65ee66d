//! Sliding log: the time of every admitted hit, so never more than `limit` in any window, exactly.
//!
//! It costs four bytes per hit (eight if the window is longer than 71 minutes); entries that left the window cost nothing.
//! It can also enforce a minimum interval between requests.

use crate::algorithm::{Algorithm, Behaviour, Facts, Transitions};
use crate::bytes::{Reader, append_times};
use crate::cell::{Cell, CellForm, CounterBits};
use crate::error::LimitError;
use crate::fixed_window::check_window;
use crate::limit::{Charge, Limit};
use crate::outcome::Outcome;
use crate::request::Ask;
use crate::ring::Ring;
use crate::sliding_window::SlidingWindow;
use crate::units::{Hits, Micros, Timestamp};

/// At most `limit` hits in any window, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    limit: u64,
    window: Micros,
    min_interval: Micros,
    refused: RefusedHits,
}

/// How refused requests affect a limit that records requests one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefusedHits {
    /// They are not recorded.
    #[default]
    Forget,
    /// They count as if they had passed: a client that keeps retrying stays refused.
    Count,
}

impl RefusedHits {
    /// They count if they count for either.
    pub(crate) fn strictest(self, other: Self) -> Self {
        match (self, other) {
            (RefusedHits::Forget, RefusedHits::Forget) => RefusedHits::Forget,
            (RefusedHits::Count, _) | (_, RefusedHits::Count) => RefusedHits::Count,
        }
    }
}

/// The times of the hits in the window, and some that have left it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log(Ring);

impl Log {
    /// Recorded hits, in the window or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no hit is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its heap memory.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }

    pub(crate) fn append_bytes(&self, bytes: &mut Vec<u8>) {
        append_times(bytes, (0..self.len()).map(|place| self.0.get(place)));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (mut ring, mut last) = (Ring::default(), Timestamp::default());
        let count = reader.count(1).filter(|count| *count as u64 <= MOST_HITS)?;
        for _ in 0..count {
            last = reader.time_after(last)?;
            ring.push(last, count);
        }
        Some(Log(ring))
    }

    /// The hits within `window` at `now`: how many up to `start`, which must be within it, and how many after.
    pub(crate) fn counts(&self, window: Micros, start: Timestamp, now: Timestamp) -> [u64; 2] {
        let ahead = ahead_of(&self.0, now);
        let until_start = self.0.count_until(start + ahead);
        let older = until_start - expired(&self.0, window, now, ahead);
        [older as u64, (self.len() - until_start) as u64]
    }
}

/// The largest limit: its log takes 400 kB.
const MOST_HITS: u64 = 100_000;

impl SlidingLog {
    /// At most `limit` hits in any `window`, and requests at least `min_interval` apart (zero: no minimum).
    ///
    /// # Errors
    /// When the limit is zero or above 100,000, or a span is invalid.
    pub fn new(
        limit: u64,
        window: Micros,
        min_interval: Micros,
        refused: RefusedHits,
    ) -> Result<Self, LimitError> {
        check_window(window)?;
        if limit == 0 || limit > MOST_HITS {
            let problem = format!("a log of {limit} hits cannot be kept");
            return Err(LimitError::new(
                "limit",
                problem,
                format!("use 1 to {MOST_HITS}, or sliding_window for more"),
            ));
        }
        if min_interval > window {
            let problem = format!("an interval of {min_interval} is longer than the window of {window}");
            return Err(LimitError::new("min_interval", problem, "use at most the window"));
        }
        Ok(SlidingLog { limit, window, min_interval, refused })
    }

    /// A log of refused requests, which keeps the newest `limit` within `window`. Its window may change while in use.
    pub(crate) fn of_refused(limit: u64, window: Micros) -> Self {
        SlidingLog { limit, window, min_interval: Micros::ZERO, refused: RefusedHits::Count }
    }

    /// The most hits in any window.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The window's length.
    #[must_use]
    pub fn window(&self) -> Micros {
        self.window
    }

    /// The shortest time between two requests.
    #[must_use]
    pub fn min_interval(&self) -> Micros {
        self.min_interval
    }

    /// How refused requests count.
    #[must_use]
    pub fn refused_hits(&self) -> RefusedHits {
        self.refused
    }

    /// The outcome for `hits` at `now`. Changes nothing.
    #[must_use]
    pub fn look(&self, log: &Log, now: Timestamp, hits: Hits) -> Outcome {
        let ring = &log.0;
        let ahead = ahead_of(ring, now);
        let gone = self.expired(ring, now, ahead);
        let live = ring.len() - gone;
        let remaining = self.limit.saturating_sub(live as u64);
        // The time until the `index`th entry is `span` old; in spans, because a sum of times may overflow.
        let until_aged =
            |index: usize, span: Micros| span.saturating_sub(now.since(ring.get(index).back(ahead)));
        let since_newest =
            |span: Micros| if live == 0 { Micros::ZERO } else { until_aged(ring.len() - 1, span) };
        let reset_after = since_newest(self.window);

        let wanted = hits.get().max(1);
        if wanted > self.limit {
            return Outcome::refused(None, remaining, reset_after);
        }
        // The hits that must leave the window first: all but the newest `limit - wanted`.
        let in_the_way = (live as u64 + wanted).saturating_sub(self.limit);
        let until_room = if in_the_way == 0 {
            Micros::ZERO
        } else {
            until_aged(gone + index(in_the_way) - 1, self.window)
        };
        let retry_after = since_newest(self.min_interval).max(until_room);
        if retry_after > Micros::ZERO {
            return Outcome::refused(Some(retry_after), remaining, reset_after);
        }
        match hits {
            Hits::ZERO => Outcome::admitted(remaining, reset_after),
            _ => Outcome::admitted(remaining - wanted, self.window),
        }
    }

    /// Decides `hits` at `now`, and records them if they pass.
    pub fn decide(&self, log: &mut Log, now: Timestamp, hits: Hits) -> Outcome {
        let outcome = self.look(log, now, hits);
        if outcome.is_admitted() && hits > Hits::ZERO {
            self.enter(log, now, hits);
        } else {
            self.rebase(log, now);
        }
        outcome
    }

    /// Moves a log from the future, written before the clock stepped back, to now.
    pub(crate) fn rebase(&self, log: &mut Log, now: Timestamp) {
        log.0.shift_back(ahead_of(&log.0, now));
    }

    /// The number of entries within the window at `now`.
    pub(crate) fn live(&self, log: &Log, now: Timestamp) -> usize {
        log.len() - self.expired(&log.0, now, ahead_of(&log.0, now))
    }

    /// The time until the `index`th of those, oldest first, leaves the window.
    pub(crate) fn leaves_in(&self, log: &Log, now: Timestamp, index: usize) -> Micros {
        let ahead = ahead_of(&log.0, now);
        let gone = self.expired(&log.0, now, ahead);
        self.window.saturating_sub(now.since(log.0.get(gone + index).back(ahead)))
    }

    /// Removes `hits` recorded `age` ago: the first at or after that time, or the newest if there are fewer. An age that
    /// is too large removes older entries, which would have left sooner: it never refunds too much.
    pub fn refund(&self, log: &mut Log, now: Timestamp, hits: Hits, age: Micros) {
        let ring = &mut log.0;
        let Some(newest) = ring.newest().filter(|_| age < self.window) else { return };
        let hits = index(hits.get().min(ring.len() as u64));
        // The clock may have stepped back: see `look`.
        let entered = newest.max(now).back(age);
        let before = match entered.as_micros() {
            0 => 0,
            entered => ring.count_until(Timestamp::from_micros(entered - 1)),
        };
        ring.drop_from(before.min(ring.len() - hits), hits);
    }

    /// Charges hits whether or not they fit, unless they have left the window.
    pub fn charge(&self, log: &mut Log, now: Timestamp, charge: Charge) {
        if charge.age < self.window {
            self.enter_at(log, now, charge.hits, charge.age);
        }
    }

    /// Records `hits` whether or not they fit; only the newest `limit` are kept.
    pub fn enter(&self, log: &mut Log, now: Timestamp, hits: Hits) {
        self.enter_at(log, now, hits, Micros::ZERO);
    }

    /// Records `hits` as of `age` ago, or as of the newest entry if later: entries stay in order.
    fn enter_at(&self, log: &mut Log, now: Timestamp, hits: Hits, age: Micros) {
        if log.is_empty() {
            log.0 = Ring::for_span(self.window);
        }
        self.rebase(log, now);
        let ring = &mut log.0;
        let entered = now.back(age).max(ring.newest().unwrap_or_default());
        ring.drop_oldest(self.expired(ring, now, Micros::ZERO));
        let limit = index(self.limit);
        for _ in 0..hits.get().min(self.limit) {
            if ring.len() >= limit {
                ring.drop_oldest(ring.len() + 1 - limit);
            }
            ring.push(entered, limit);
        }
    }

    /// A log of `older` hits at `start` and `newer` at `now`: of those, the newest `limit`.
    pub(crate) fn of_counts(&self, now: Timestamp, (start, older): (Timestamp, u64), newer: u64) -> Log {
        let newer = newer.min(self.limit);
        let older = older.min(self.limit - newer);
        let mut ring = Ring::for_span(self.window);
        for (moment, count) in [(start, older), (now, newer)] {
            (0..count).for_each(|_| ring.push(moment, index(self.limit)));
        }
        Log(ring)
    }

    /// How many of the oldest entries, shifted back by `ahead`, have left the window at `now`.
    fn expired(&self, ring: &Ring, now: Timestamp, ahead: Micros) -> usize {
        expired(ring, self.window, now, ahead)
    }
}

fn expired(ring: &Ring, window: Micros, now: Timestamp, ahead: Micros) -> usize {
    // A window that starts before the epoch has lost no entries.
    match now.as_micros().checked_sub(window.get()) {
        Some(edge) => ring.count_until(Timestamp::from_micros(edge) + ahead),
        None => 0,
    }
}

/// How far the newest entry is in the future. After the clock stepped back, that entry counts as just recorded, and the
/// others keep their distance to it.
fn ahead_of(ring: &Ring, now: Timestamp) -> Micros {
    ring.newest().map_or(Micros::ZERO, |newest| newest.since(now))
}

fn index(count: u64) -> usize {
    usize::try_from(count).expect("bounded by the largest limit")
}

impl SlidingLog {
    /// The stricter of a log and of a counter. A log admits no more than a counter of the same number; only a ban cannot be one.
    pub(crate) fn strictest_with_window(&self, window: &SlidingWindow) -> Result<Limit, LimitError> {
        match window.limit().min(self.limit) {
            0 => SlidingWindow::new(0, self.window).map(Limit::from),
            limit => SlidingLog::new(limit, self.window, self.min_interval, self.refused).map(Limit::from),
        }
    }

    fn in_log<T>(&self, cell: &mut Cell, now: Timestamp, step: impl FnOnce(&mut Log) -> T) -> T {
        let mut log = match std::mem::take(cell) {
            Cell::Log(log) => log,
            other => self.of_other(&other, now),
        };
        let answer = step(&mut log);
        *cell = if log.is_empty() { Cell::Vacant } else { Cell::Log(log) };
        answer
    }
}

impl Behaviour for SlidingLog {
    #[inline]
    fn facts(&self) -> Facts<'_> {
        Facts {
            algorithm: Algorithm::SlidingLog,
            form: CellForm::Log { hits: self.limit, window: self.window },
            quota: self.limit,
            period: Some(self.window),
            numbers: [self.limit, self.window.get(), self.min_interval.get()],
            meter: None,
            refused: self.refused,
            min_interval: self.min_interval,
            lease_ttl: None,
            takes_refunds: true,
            ends_at_once: false,
        }
    }

    fn quota_window(&self) -> Option<Micros> {
        Some(self.window)
    }

    fn divided(&self, nodes: u64) -> Result<Self, LimitError> {
        SlidingLog::new(self.limit.div_ceil(nodes), self.window, self.min_interval, self.refused)
    }

    fn paid_ahead(&self, held: Micros) -> Option<Result<Self, LimitError>> {
        // An interval is between requests, and a refused request takes nothing to count.
        let is_counted = self.min_interval == Micros::ZERO && self.refused == RefusedHits::Forget;
        // What a window spends was taken in it, or up to `held` before.
        is_counted.then(|| SlidingLog::new(self.limit, self.window + held, self.min_interval, self.refused))
    }

    fn strictest(&self, other: &Limit) -> Option<Result<Limit, LimitError>> {
        match other {
            Limit::SlidingLog(other) => {
                let interval = self.min_interval.max(other.min_interval);
                let refused = self.refused.strictest(other.refused);
                let limit = self.limit.min(other.limit);
                Some(SlidingLog::new(limit, self.window, interval, refused).map(Limit::from))
            }
            Limit::SlidingWindow(window) => Some(self.strictest_with_window(window)),
            Limit::TokenBucket(_) | Limit::FixedWindow(_) | Limit::LeakyBucket(_) | Limit::Concurrency(_) => {
                None
            }
        }
    }
}

impl Transitions for SlidingLog {
    fn spend(&self, cell: &mut Cell, now: Timestamp, ask: Ask) -> Outcome {
        self.in_log(cell, now, |log| self.decide(log, now, ask.hits))
    }

    fn outlook(&self, cell: &Cell, now: Timestamp, ask: Ask) -> Outcome {
        match cell {
            Cell::Log(log) => self.look(log, now, ask.hits),
            other => self.look(&self.of_other(other, now), now, ask.hits),
        }
    }

    fn put_back(&self, cell: &mut Cell, now: Timestamp, hits: Hits, age: Micros) {
        self.in_log(cell, now, |log| self.refund(log, now, hits, age));
    }

    fn take_anyway(&self, cell: &mut Cell, now: Timestamp, charge: Charge) {
        self.in_log(cell, now, |log| self.charge(log, now, charge));
    }

    fn note(&self, cell: &mut Cell, now: Timestamp, hits: Hits, count: u32) {
        let hits = Hits::new(hits.get().saturating_mul(count.into()));
        self.in_log(cell, now, |log| self.enter(log, now, hits));
    }

    fn bring_to_now(&self, cell: &mut Cell, now: Timestamp) {
        self.in_log(cell, now, |log| self.rebase(log, now));
    }

    #[inline]
    fn step_bits(
        &self,
        _: Option<CounterBits>,
        _: Timestamp,
        _: Hits,
    ) -> Option<(Outcome, Option<CounterBits>)> {
        None
    }
}
