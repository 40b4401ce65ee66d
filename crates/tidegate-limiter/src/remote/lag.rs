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
    /// When lag was last recorded: concurrent sleepers observe the same lag.
    noted: AtomicU64,
}

/// When a wait began, and the total lag at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(super) at: Timestamp,
    lag: Micros,
}

impl Lag {
    /// A wait begins.
    pub(super) fn arrival(&self, now: Timestamp) -> Arrival {
        Arrival { at: now, lag: self.total() }
    }

    fn total(&self) -> Micros {
        Micros::new(self.total.load(Ordering::Relaxed))
    }

    /// Records that a sleeper woke up this late.
    pub(super) fn note(&self, now: Timestamp, late: Micros) {
        if late == Micros::ZERO {
            return;
        }
        let noted = Timestamp::from_micros(self.noted.swap(now.as_micros(), Ordering::Relaxed));
        // After a clock stepped back, the last record is in the future.
        let since = if noted > now { Timestamp::default() } else { noted };
        let new = now.since(since.max(now.back(late)));
        self.total.fetch_add(new.get(), Ordering::Relaxed);
    }

    /// How long the store has had since `arrival`: without the time in which this core did not run, up to a bound.
    pub(super) fn waited(&self, arrival: Arrival, now: Timestamp) -> Micros {
        let lag = self.total().saturating_sub(arrival.lag).min(MOST_LAG);
        now.since(arrival.at).saturating_sub(lag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_800_000_000_000_000 + millis * 1_000)
    }

    #[test]
    fn time_in_which_the_core_did_not_run_is_not_waited() {
        let lag = Lag::default();
        let arrival = lag.arrival(at(0));
        lag.note(at(150), Micros::from_millis(148));
        assert_eq!(lag.waited(arrival, at(150)), Micros::from_millis(2));
        assert_eq!(lag.waited(lag.arrival(at(150)), at(153)), Micros::from_millis(3));
    }

    #[test]
    fn several_who_find_the_same_lag_count_it_once() {
        let lag = Lag::default();
        let arrival = lag.arrival(at(0));
        lag.note(at(100), Micros::from_millis(98));
        lag.note(at(101), Micros::from_millis(97));
        assert_eq!(lag.waited(arrival, at(101)), Micros::from_millis(2));
    }

    #[test]
    fn nobody_waits_for_longer_than_two_seconds_because_of_it() {
        let lag = Lag::default();
        let arrival = lag.arrival(at(0));
        lag.note(at(5_000), Micros::from_millis(5_000));
        assert_eq!(lag.waited(arrival, at(5_000)), Micros::from_millis(3_000));
    }

    #[test]
    fn a_clock_that_stepped_back_hides_no_lag() {
        let lag = Lag::default();
        lag.note(at(9_000), Micros::from_millis(10));
        let arrival = lag.arrival(at(0));
        lag.note(at(100), Micros::from_millis(90));
        assert_eq!(lag.waited(arrival, at(100)), Micros::from_millis(10));
    }
}
