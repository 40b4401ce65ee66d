//! What an algorithm is: the traits that each implements in its own file, and nothing about any one of them.
//!
//! Whatever differs between algorithms is a fact or a transition here, without a default: a new algorithm that leaves one out
//! does not compile.

use crate::cell::{Cell, CellForm, CounterBits, Packed};
use crate::error::LimitError;
use crate::limit::{Charge, Limit};
use crate::meter::Meter;
use crate::outcome::Outcome;
use crate::request::Ask;
use crate::sliding_log::RefusedHits;
use crate::units::{Hits, Micros, Timestamp};

/// The algorithm of a limit.
///
/// Exhaustive on purpose, as [`Limit`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
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

    /// Its name in the identity of cells. The sliding algorithms share theirs: a limit may change from one to the other and
    /// keep what was counted.
    #[must_use]
    pub fn family(self) -> &'static str {
        match self {
            Algorithm::SlidingWindow | Algorithm::SlidingLog => "sliding",
            Algorithm::TokenBucket
            | Algorithm::FixedWindow
            | Algorithm::LeakyBucket
            | Algorithm::Concurrency => self.name(),
        }
    }
}

/// What is true of a limit, whatever its cells hold.
pub(crate) struct Facts<'a> {
    pub(crate) algorithm: Algorithm,
    pub(crate) form: CellForm,
    /// The most hits that an idle key may spend at once.
    pub(crate) quota: u64,
    /// The span that is part of a cell's identity.
    pub(crate) period: Option<Micros>,
    /// The numbers that distinguish it from other limits on the same cell.
    pub(crate) numbers: [u64; 3],
    /// A bucket's, which refills continuously.
    pub(crate) meter: Option<&'a Meter>,
    pub(crate) refused: RefusedHits,
    /// The shortest time between two requests.
    pub(crate) min_interval: Micros,
    pub(crate) lease_ttl: Option<Micros>,
    /// Whether what was spent can be refunded.
    pub(crate) takes_refunds: bool,
    /// Whether all that is counted is forgotten at once, when the window ends.
    pub(crate) ends_at_once: bool,
}

/// A limit of one algorithm.
pub(crate) trait Behaviour: Transitions + Into<Limit> + Clone {
    fn facts(&self) -> Facts<'_>;

    /// See [`Limit::quota_window`].
    fn quota_window(&self) -> Option<Micros>;

    /// The share of each of `nodes`.
    fn divided(&self, nodes: u64) -> Result<Self, LimitError>;

    /// The limit to take hits under that are spent up to `held` later, so that in any window no more are spent than this one
    /// allows. None if its hits cannot be taken before they are spent.
    fn paid_ahead(&self, held: Micros) -> Option<Result<Self, LimitError>>;

    /// The stricter of both in each number; none if the other is of another family. The periods are the same.
    fn strictest(&self, other: &Limit) -> Option<Result<Limit, LimitError>>;
}

/// How the cells of a limit change.
pub(crate) trait Transitions {
    fn spend(&self, cell: &mut Cell, now: Timestamp, ask: Ask) -> Outcome;
    fn outlook(&self, cell: &Cell, now: Timestamp, ask: Ask) -> Outcome;
    fn put_back(&self, cell: &mut Cell, now: Timestamp, hits: Hits, age: Micros);
    fn take_anyway(&self, cell: &mut Cell, now: Timestamp, charge: Charge);
    /// Records refused requests of so many hits, where those count.
    fn note(&self, cell: &mut Cell, now: Timestamp, hits: Hits, count: u32);
    /// Moves a cell from the future to now.
    fn bring_to_now(&self, cell: &mut Cell, now: Timestamp);
    /// Decides on a counter's bare state; none for what is not a counter.
    fn step_bits(
        &self,
        bits: Option<CounterBits>,
        now: Timestamp,
        hits: Hits,
    ) -> Option<(Outcome, Option<CounterBits>)>;
}

/// An algorithm whose cell is a counter: a few words, whatever the traffic. Its transitions are functions of that state.
pub(crate) trait Counter {
    type State: Packed;

    /// What a cell holds; one that the other algorithm of the family left is read as well.
    fn state(&self, cell: &Cell, now: Timestamp) -> Option<Self::State>;
    fn step(&self, state: Option<Self::State>, now: Timestamp, hits: Hits) -> (Outcome, Option<Self::State>);
    fn refunded(
        &self,
        state: Option<Self::State>,
        now: Timestamp,
        hits: Hits,
        age: Micros,
    ) -> Option<Self::State>;
    fn charged(&self, state: Option<Self::State>, now: Timestamp, charge: Charge) -> Option<Self::State>;
}

impl<C: Counter> Transitions for C {
    fn spend(&self, cell: &mut Cell, now: Timestamp, ask: Ask) -> Outcome {
        let (outcome, next) = self.step(self.state(cell, now), now, ask.hits);
        *cell = Cell::counter(next);
        outcome
    }

    fn outlook(&self, cell: &Cell, now: Timestamp, ask: Ask) -> Outcome {
        self.step(self.state(cell, now), now, ask.hits).0
    }

    fn put_back(&self, cell: &mut Cell, now: Timestamp, hits: Hits, age: Micros) {
        *cell = Cell::counter(self.refunded(self.state(cell, now), now, hits, age));
    }

    fn take_anyway(&self, cell: &mut Cell, now: Timestamp, charge: Charge) {
        *cell = Cell::counter(self.charged(self.state(cell, now), now, charge));
    }

    fn note(&self, _: &mut Cell, _: Timestamp, _: Hits, _: u32) {}

    fn bring_to_now(&self, cell: &mut Cell, now: Timestamp) {
        // A look decides nothing, but returns the cell as of now.
        *cell = Cell::counter(self.step(self.state(cell, now), now, Hits::ZERO).1);
    }

    #[inline]
    fn step_bits(
        &self,
        bits: Option<CounterBits>,
        now: Timestamp,
        hits: Hits,
    ) -> Option<(Outcome, Option<CounterBits>)> {
        let (outcome, next) = self.step(bits.map(C::State::unpack), now, hits);
        Some((outcome, next.map(C::State::pack)))
    }
}
