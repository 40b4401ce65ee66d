//! Carries what was counted from one sliding algorithm to the other.
//!
//! `100/minute` is a log and `200/minute` a counter, and a change of the number must not forgive what was spent. So the two
//! share their cells: each reads what the other left, at the first use after the change.
//!
//! What is left then is what was left before, in terms of the new number. Later:
//!
//! - Of a log that became a counter, hits before the start of the current window fade, as they do in a counter.
//! - Of a counter that became a log, the hits of the current window count as of now, and what was left of the previous one as of
//!   the start of the current one: none leaves before its time.
//!
//! So where nodes with the old and the new rules take turns, no hit counts for longer than two windows, as in a counter. (Only
//! where a log becomes a counter in the last millionths of a window, some may count for one more.)

use crate::limit::{Algorithm, Cell, Limit};
use crate::sliding_window::SlidingCell;
use crate::units::Timestamp;

impl Algorithm {
    /// Its name in the identity of cells. The sliding algorithms share theirs: a limit may change from one to the other and
    /// keep what was counted.
    #[must_use]
    pub fn family(self) -> &'static str {
        match self {
            Algorithm::SlidingWindow | Algorithm::SlidingLog => "sliding",
            other => other.name(),
        }
    }
}

impl Limit {
    /// Makes a cell that the other sliding algorithm left one of this limit.
    #[inline]
    pub(crate) fn adopt(&self, cell: &mut Cell, now: Timestamp) {
        if let Some(adopted) = self.adopted(cell, now) {
            *cell = adopted;
        }
    }

    /// The same as a new cell; none if the cell is not of the other sliding algorithm.
    #[inline]
    pub(crate) fn adopted(&self, cell: &Cell, now: Timestamp) -> Option<Cell> {
        match (self, cell) {
            (Limit::SlidingWindow(limit), Cell::Log(log)) => {
                let counted = limit.of_counts(now, |start| log.counts(limit.window(), start, now));
                Some(counted.map_or(Cell::Vacant, Cell::sliding))
            }
            (Limit::SlidingLog(limit), Cell::Counter(bits)) => {
                let (start, [older, newer]) = SlidingCell::from_bits(*bits).counts(limit.window(), now);
                let log = limit.of_counts(now, (start, older), newer);
                Some(if log.is_empty() { Cell::Vacant } else { Cell::Log(log) })
            }
            _ => None,
        }
    }
}
