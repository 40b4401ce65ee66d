//! A limit's state for one key.

use crate::concurrency::Leases;
use crate::sliding_log::Log;
use crate::units::Micros;

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

/// How much a limit's fullest cell holds, for stores that keep each form elsewhere or count bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellForm {
    /// A few words, whatever the traffic.
    Counter,
    /// Hits one by one.
    Log {
        /// The most hits.
        hits: u64,
        /// The time within which they are.
        window: Micros,
    },
    /// Leases.
    Leases {
        /// The most at once.
        most: u64,
    },
}

/// The state of any counter algorithm in sixteen bytes, for stores that hold millions. Only a limit of the same algorithm can
/// read it, and a sliding log that of a sliding window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterBits {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

impl CounterBits {
    pub(crate) const fn words(self) -> [u64; 2] {
        [self.low, self.high]
    }

    pub(crate) const fn of_words([low, high]: [u64; 2]) -> Self {
        CounterBits { low, high }
    }
}

/// The state of a counter algorithm, as sixteen bytes.
pub(crate) trait Packed: Copy {
    fn unpack(bits: CounterBits) -> Self;
    fn pack(self) -> CounterBits;
}

impl Cell {
    /// The cell of a counter with this state, or without any.
    pub(crate) fn counter<S: Packed>(state: Option<S>) -> Self {
        state.map_or(Cell::Vacant, |state| Cell::Counter(state.pack()))
    }

    /// The state of a counter; none in a cell of another kind.
    pub(crate) fn counted<S: Packed>(&self) -> Option<S> {
        match self {
            Cell::Counter(bits) => Some(S::unpack(*bits)),
            Cell::Vacant | Cell::Log(_) | Cell::Leases(_) => None,
        }
    }
}
