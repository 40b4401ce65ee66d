//! A limit of any algorithm, and its state for one key.

use crate::concurrency::{Concurrency, LeaseId, Leases};
use crate::fixed_window::{FixedWindow, WindowCell};
use crate::leaky_bucket::LeakyBucket;
use crate::meter::MeterCell;
use crate::outcome::Outcome;
use crate::request::Ask;
use crate::sliding_log::{Log, RefusedHits, SlidingLog};
use crate::sliding_window::{SlidingCell, SlidingWindow};
use crate::token_bucket::TokenBucket;
use crate::units::{EXACT_MAX, Hits, Micros, Timestamp};

/// A rule's limit, of any algorithm.
///
/// Exhaustive on purpose: a store that does not handle an algorithm should not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is documented by the type it holds")]
pub enum Limit {
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    LeakyBucket(LeakyBucket),
    Concurrency(Concurrency),
}

/// The algorithm of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
#[non_exhaustive]
pub enum Algorithm {
    TokenBucket,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    LeakyBucket,
    Concurrency,
}

impl Algorithm {
    /// Its name in rules, keys and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::TokenBucket => "token_bucket",
            Algorithm::FixedWindow => "fixed_window",
            Algorithm::SlidingWindow => "sliding_window",
            Algorithm::SlidingLog => "sliding_log",
            Algorithm::LeakyBucket => "leaky_bucket",
            Algorithm::Concurrency => "concurrency",
        }
    }
}

/// A limit's state for one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cell {
    /// None: the full quota is available.
    #[default]
    Vacant,
    /// A bucket's backlog or a window's counts.
    Counter(CounterBits),
    /// A sliding log's entries.
    Log(Log),
    /// The leases of a concurrency limit.
    Leases(Leases),
}

/// The state of any counter algorithm in sixteen bytes, for stores that hold millions. Only a limit of the same algorithm can
/// read it, and a sliding log that of a sliding window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterBits {
    low: u64,
    high: u64,
}

impl CounterBits {
    pub(crate) const fn words(self) -> [u64; 2] {
        [self.low, self.high]
    }

    pub(crate) const fn of_words([low, high]: [u64; 2]) -> Self {
        CounterBits { low, high }
    }
}

/// Hits that were already spent, and count whether or not they fit.
///
/// They count from when they were spent, or from the cell's last change if later: a bucket has drained since, a window may be
/// over. A cell holds at most its quota plus the overdraft; any excess is dropped. A sliding log needs no overdraft: its newest
/// hits alone determine when there is room again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The number of hits.
    pub hits: Hits,
    /// How long ago they were spent.
    pub age: Micros,
    /// How many of them may exceed the quota.
    pub overdraft: Hits,
}

impl Charge {
    /// `hits` spent now, up to the whole quota.
    #[must_use]
    pub const fn now(hits: Hits) -> Self {
        Charge { hits, age: Micros::ZERO, overdraft: Hits::ZERO }
    }

    /// How many of the hits a cell that holds `held` of `quota` takes.
    pub(crate) fn fitting(&self, quota: u64, held: u64) -> u64 {
        let most = quota.saturating_add(self.overdraft.get()).min(EXACT_MAX - 1);
        self.hits.get().min(most.saturating_sub(held))
    }
}

impl Limit {
    /// The algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Limit::TokenBucket(_) => Algorithm::TokenBucket,
            Limit::FixedWindow(_) => Algorithm::FixedWindow,
            Limit::SlidingWindow(_) => Algorithm::SlidingWindow,
            Limit::SlidingLog(_) => Algorithm::SlidingLog,
            Limit::LeakyBucket(_) => Algorithm::LeakyBucket,
            Limit::Concurrency(_) => Algorithm::Concurrency,
        }
    }

    /// The limit reported to a caller: the most hits that an idle key may spend at once.
    #[must_use]
    pub fn quota(&self) -> u64 {
        match self {
            Limit::TokenBucket(limit) => limit.burst(),
            Limit::FixedWindow(limit) => limit.limit(),
            Limit::SlidingWindow(limit) => limit.limit(),
            Limit::SlidingLog(limit) => limit.limit(),
            Limit::LeakyBucket(limit) => limit.capacity(),
            Limit::Concurrency(limit) => limit.limit(),
        }
    }

    /// The refill time of the quota, as reported to a caller; none if it is not a fixed span (a calendar).
    #[must_use]
    pub fn quota_window(&self) -> Option<Micros> {
        match self {
            Limit::TokenBucket(limit) => Some(limit.refill_time()),
            Limit::FixedWindow(limit) => limit.window(),
            Limit::SlidingWindow(limit) => Some(limit.window()),
            Limit::SlidingLog(limit) => Some(limit.window()),
            Limit::LeakyBucket(limit) => Some(limit.drain_time()),
            Limit::Concurrency(_) => None,
        }
    }

    /// The span that is part of a cell's identity: a limit with another span cannot read its cells. None for a calendar
    /// (identified by unit and zone) and for concurrency (each lease carries its own end).
    #[must_use]
    pub fn period(&self) -> Option<Micros> {
        match self {
            Limit::TokenBucket(limit) => Some(limit.rate().period()),
            Limit::LeakyBucket(limit) => Some(limit.rate().period()),
            Limit::FixedWindow(limit) => limit.window(),
            Limit::SlidingWindow(limit) => Some(limit.window()),
            Limit::SlidingLog(limit) => Some(limit.window()),
            Limit::Concurrency(_) => None,
        }
    }

    /// Whether its cells are counters: a few words, whatever the traffic.
    #[must_use]
    pub fn is_counter(&self) -> bool {
        !matches!(self, Limit::SlidingLog(_) | Limit::Concurrency(_))
    }

    /// Decides `ask` at `now`; a refusal spends nothing.
    pub fn decide(&self, cell: &mut Cell, now: Timestamp, ask: Ask) -> Outcome {
        self.adopt(cell, now);
        match self {
            Limit::SlidingLog(limit) => in_log(cell, |log| limit.decide(log, now, ask.hits)),
            Limit::Concurrency(limit) => in_leases(cell, |leases| match ask.lease {
                Some(id) => limit.acquire(leases, now, ask.hits, id),
                None => {
                    limit.tidy(leases, now);
                    limit.look(leases, now, ask.hits)
                }
            }),
            _ => in_counter(cell, |bits| self.decide_counter(bits, now, ask.hits)),
        }
    }

    /// Decides on a counter's bare state: the shortest path for a store that keeps counters separately.
    ///
    /// # Panics
    /// If this limit is not [a counter](Limit::is_counter).
    #[must_use]
    #[inline]
    pub fn decide_counter(
        &self,
        bits: Option<CounterBits>,
        now: Timestamp,
        hits: Hits,
    ) -> (Outcome, Option<CounterBits>) {
        match self {
            Limit::TokenBucket(limit) => transit(bits, |state| limit.decide(state, now, hits)),
            Limit::LeakyBucket(limit) => transit(bits, |state| limit.decide(state, now, hits)),
            Limit::FixedWindow(limit) => transit(bits, |state| limit.decide(state, now, hits)),
            Limit::SlidingWindow(limit) => transit(bits, |state| limit.decide(state, now, hits)),
            Limit::SlidingLog(_) | Limit::Concurrency(_) => {
                panic!("{} is not a counter", self.algorithm().name())
            }
        }
    }

    /// The outcome at `now`. Changes nothing.
    #[must_use]
    pub fn look(&self, cell: &Cell, now: Timestamp, ask: Ask) -> Outcome {
        let adopted = self.adopted(cell, now);
        match (self, adopted.as_ref().unwrap_or(cell)) {
            (Limit::SlidingLog(limit), Cell::Log(log)) => limit.look(log, now, ask.hits),
            (Limit::SlidingLog(limit), _) => limit.look(&Log::default(), now, ask.hits),
            (Limit::Concurrency(limit), Cell::Leases(leases)) => limit.look(leases, now, ask.hits),
            (Limit::Concurrency(limit), _) => limit.look(&Leases::default(), now, ask.hits),
            (_, Cell::Counter(bits)) => self.decide_counter(Some(*bits), now, ask.hits).0,
            _ => self.decide_counter(None, now, ask.hits).0,
        }
    }

    /// Refunds `hits` that were spent `age` ago, at most what was spent. A leaky bucket's slot cannot be refunded, and a lease
    /// is released by its ID.
    pub fn refund(&self, cell: &mut Cell, now: Timestamp, hits: Hits, age: Micros) {
        self.adopt(cell, now);
        match self {
            Limit::TokenBucket(limit) => change(cell, |state| limit.refund(state, now, hits)),
            Limit::FixedWindow(limit) => change(cell, |state| limit.refund(state, now, hits, age)),
            Limit::SlidingWindow(limit) => change(cell, |state| limit.refund(state, now, hits, age)),
            Limit::SlidingLog(limit) => in_log(cell, |log| limit.refund(log, now, hits, age)),
            Limit::LeakyBucket(_) | Limit::Concurrency(_) => {}
        }
    }

    /// Charges hits that were already spent, whether or not they fit: see [`Charge`].
    pub fn charge(&self, cell: &mut Cell, now: Timestamp, charge: Charge) {
        self.adopt(cell, now);
        match self {
            Limit::TokenBucket(limit) => change(cell, |state| limit.charge(state, now, charge)),
            Limit::LeakyBucket(limit) => change(cell, |state| limit.charge(state, now, charge)),
            Limit::FixedWindow(limit) => change(cell, |state| limit.charge(state, now, charge)),
            Limit::SlidingWindow(limit) => change(cell, |state| limit.charge(state, now, charge)),
            Limit::SlidingLog(limit) => in_log(cell, |log| limit.charge(log, now, charge)),
            Limit::Concurrency(_) => {}
        }
    }

    /// Whether refused requests count in its cells.
    #[must_use]
    pub fn counts_refused(&self) -> bool {
        match self {
            Limit::SlidingLog(limit) => limit.refused_hits() == RefusedHits::Count,
            Limit::Concurrency(limit) => limit.refused_hits() == RefusedHits::Count,
            _ => false,
        }
    }

    /// Whether hits can be refunded: not the slots of a leaky bucket, because later callers already know their time, nor leases,
    /// which are released.
    #[must_use]
    pub fn takes_refunds(&self) -> bool {
        !matches!(self, Limit::LeakyBucket(_) | Limit::Concurrency(_))
    }

    /// Records `count` refused requests, if they count.
    pub fn note_refused(&self, cell: &mut Cell, now: Timestamp, ask: Ask, count: u32) {
        match self {
            _ if ask.hits == Hits::ZERO || count == 0 || !self.counts_refused() => {}
            Limit::SlidingLog(limit) => {
                self.adopt(cell, now);
                let hits = Hits::new(ask.hits.get().saturating_mul(count.into()));
                in_log(cell, |log| limit.enter(log, now, hits));
            }
            Limit::Concurrency(limit) => in_leases(cell, |leases| limit.note_refused(leases, now, count)),
            _ => {}
        }
    }

    /// Moves a cell from the future, written before the clock stepped back, to now. Every decision does this to its cells, or a
    /// refusal would last until the clock had caught up.
    pub(crate) fn rebase(&self, cell: &mut Cell, now: Timestamp) {
        self.adopt(cell, now);
        match (self, &mut *cell) {
            (Limit::SlidingLog(limit), Cell::Log(log)) => limit.rebase(log, now),
            (Limit::Concurrency(limit), Cell::Leases(leases)) => limit.tidy(leases, now),
            (_, Cell::Counter(bits)) if self.is_counter() => {
                // A look decides nothing, but returns the cell as of now.
                let rebased = self.decide_counter(Some(*bits), now, Hits::ZERO).1;
                *cell = rebased.map_or(Cell::Vacant, Cell::Counter);
            }
            _ => {}
        }
    }

    /// Extends a lease by its TTL; false if it has ended, or this is not a concurrency limit.
    pub fn renew(&self, cell: &mut Cell, now: Timestamp, id: LeaseId) -> bool {
        match self {
            Limit::Concurrency(limit) => in_leases(cell, |leases| limit.renew(leases, now, id)),
            _ => false,
        }
    }

    /// Ends a lease; false if it had already ended, or this is not a concurrency limit.
    pub fn release(&self, cell: &mut Cell, now: Timestamp, id: LeaseId) -> bool {
        match self {
            Limit::Concurrency(limit) => in_leases(cell, |leases| limit.release(leases, now, id)),
            _ => false,
        }
    }
}

/// Packs the state of a counter algorithm into sixteen bytes.
trait Counter: Copy {
    fn unpack(bits: CounterBits) -> Self;
    fn pack(self) -> CounterBits;
}

/// Above the 53 bits of a backlog.
const COARSENESS_SHIFT: u32 = 56;

impl Counter for MeterCell {
    fn unpack(bits: CounterBits) -> Self {
        MeterCell {
            backlog: bits.low & ((1 << COARSENESS_SHIFT) - 1),
            as_of: Timestamp::from_micros(bits.high),
            coarseness: bits.low.to_be_bytes()[0],
        }
    }

    fn pack(self) -> CounterBits {
        let low = self.backlog | u64::from(self.coarseness) << COARSENESS_SHIFT;
        CounterBits { low, high: self.as_of.as_micros() }
    }
}

impl Counter for WindowCell {
    fn unpack(bits: CounterBits) -> Self {
        WindowCell { start: Timestamp::from_micros(bits.high), count: bits.low }
    }

    fn pack(self) -> CounterBits {
        CounterBits { low: self.count, high: self.start.as_micros() }
    }
}

impl Cell {
    pub(crate) fn sliding(cell: SlidingCell) -> Self {
        Cell::Counter(cell.pack())
    }
}

impl SlidingCell {
    pub(crate) fn from_bits(bits: CounterBits) -> Self {
        Counter::unpack(bits)
    }
}

impl Counter for SlidingCell {
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

#[inline]
fn transit<S: Counter, T>(
    bits: Option<CounterBits>,
    step: impl FnOnce(Option<S>) -> (T, Option<S>),
) -> (T, Option<CounterBits>) {
    let (answer, next) = step(bits.map(S::unpack));
    (answer, next.map(S::pack))
}

fn change<S: Counter>(cell: &mut Cell, step: impl FnOnce(Option<S>) -> Option<S>) {
    in_counter(cell, |bits| transit(bits, |state| ((), step(state))));
}

fn in_counter<T>(cell: &mut Cell, step: impl FnOnce(Option<CounterBits>) -> (T, Option<CounterBits>)) -> T {
    let bits = match cell {
        Cell::Counter(bits) => Some(*bits),
        _ => None,
    };
    let (answer, next) = step(bits);
    *cell = next.map_or(Cell::Vacant, Cell::Counter);
    answer
}

fn in_log<T>(cell: &mut Cell, step: impl FnOnce(&mut Log) -> T) -> T {
    let mut log = match std::mem::take(cell) {
        Cell::Log(log) => log,
        _ => Log::default(),
    };
    let answer = step(&mut log);
    *cell = if log.is_empty() { Cell::Vacant } else { Cell::Log(log) };
    answer
}

fn in_leases<T>(cell: &mut Cell, step: impl FnOnce(&mut Leases) -> T) -> T {
    let mut leases = match std::mem::take(cell) {
        Cell::Leases(leases) => leases,
        _ => Leases::default(),
    };
    let answer = step(&mut leases);
    *cell = if leases.is_empty() { Cell::Vacant } else { Cell::Leases(leases) };
    answer
}
