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

use crate::cell::Cell;
use crate::limit::Limit;
use crate::sliding_log::{Log, SlidingLog};
use crate::sliding_window::{SlidingCell, SlidingWindow};
use crate::units::Timestamp;

impl Limit {
    /// Whether a limit whose cells have another form may have left a cell of its own: of the sliding algorithms.
    #[must_use]
    #[inline]
    pub fn shares_cells(&self) -> bool {
        matches!(self, Limit::SlidingWindow(_) | Limit::SlidingLog(_))
    }
}

impl SlidingWindow {
    /// What a cell holds, also one that a log left.
    #[inline]
    pub(crate) fn read_cell(&self, cell: &Cell, now: Timestamp) -> Option<SlidingCell> {
        match cell {
            Cell::Log(log) => self.of_counts(now, |start| log.counts(self.window(), start, now)),
            Cell::Vacant | Cell::Counter(_) | Cell::Leases(_) => cell.counted(),
        }
    }
}

impl SlidingLog {
    /// The log in a cell that is none: what a sliding window counted, or nothing.
    pub(crate) fn of_other(&self, cell: &Cell, now: Timestamp) -> Log {
        let Some(counted) = cell.counted::<SlidingCell>() else { return Log::default() };
        let (start, [older, newer]) = counted.counts(self.window(), now);
        self.of_counts(now, (start, older), newer)
    }
}
