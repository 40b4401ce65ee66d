//! How late this core runs, so that deadlines and breakers measure the store and not this process.
//!
//! A core that is busy for a tenth of a second receives a store answer, or the end of a deadline, only then. Time in which it
//! did not run does not count as waiting, up to a bound.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Micros, Timestamp};
use tidegate_store::MOST_LAG;

/// The lag of one core, as measured by timers on it.
#[derive(Default)]
pub(super) struct Lag {
    /// Total lag since the start.
    total: AtomicU64,
    /// The uptime at which lag was last recorded: concurrent sleepers observe the same lag.
    noted: AtomicU64,
}

/// When a wait began, and the total lag at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// By the node's clock, as the deny cache and the cells of this node have it.
    pub(super) at: Timestamp,
    /// By its uptime, which no step of that clock changes.
    pub(super) uptime: Micros,
    lag: Micros,
}

impl Lag {
    /// A wait begins.
    pub(super) fn arrival(&self, now: Timestamp, uptime: Micros) -> Arrival {
        Arrival { at: now, uptime, lag: self.total() }
    }

    fn total(&self) -> Micros {
        Micros::new(self.total.load(Ordering::Relaxed))
    }

    /// Records that a sleeper woke up this late.
    pub(super) fn note(&self, uptime: Micros, late: Micros) {
        if late == Micros::ZERO {
            return;
        }
        let noted = Micros::new(self.noted.fetch_max(uptime.get(), Ordering::Relaxed));
        let new = uptime.saturating_sub(noted.max(uptime.saturating_sub(late)));
        self.total.fetch_add(new.get(), Ordering::Relaxed);
    }

    /// How long the store has had since `arrival`: without the time in which this core did not run, up to a bound.
    pub(super) fn waited(&self, arrival: Arrival, uptime: Micros) -> Micros {
        let lag = self.total().saturating_sub(arrival.lag).min(MOST_LAG);
        uptime.saturating_sub(arrival.uptime).saturating_sub(lag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Micros {
        Micros::from_millis(millis)
    }

    fn arrives(lag: &Lag, uptime: Micros) -> Arrival {
        lag.arrival(Timestamp::default(), uptime)
    }

    #[test]
    fn time_in_which_the_core_did_not_run_is_not_waited() {
        let lag = Lag::default();
        let arrival = arrives(&lag, at(0));
        lag.note(at(150), Micros::from_millis(148));
        assert_eq!(lag.waited(arrival, at(150)), Micros::from_millis(2));
        assert_eq!(lag.waited(arrives(&lag, at(150)), at(153)), Micros::from_millis(3));
    }

    #[test]
    fn several_who_find_the_same_lag_count_it_once() {
        let lag = Lag::default();
        let arrival = arrives(&lag, at(0));
        lag.note(at(100), Micros::from_millis(98));
        lag.note(at(101), Micros::from_millis(97));
        assert_eq!(lag.waited(arrival, at(101)), Micros::from_millis(2));
    }

    #[test]
    fn nobody_waits_for_longer_than_two_seconds_because_of_it() {
        let lag = Lag::default();
        let arrival = arrives(&lag, at(0));
        lag.note(at(5_000), Micros::from_millis(5_000));
        assert_eq!(lag.waited(arrival, at(5_000)), Micros::from_millis(3_000));
    }
}
