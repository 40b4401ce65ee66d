//! The time, as a server shows it that tells whole seconds.
//!
//! A reading bounds the difference between that clock and this process's from both sides, by a second in all; readings just before
//! and just after the second changes narrow the bounds to some hundredths. All nodes see the seconds change at the same moment, so
//! they agree that well; their own clocks do not matter.

use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::{Micros, Timestamp};
use tidegate_store::{Clock, SystemClock};
use tokio::time::Instant;

/// How much the bounds widen: clocks drift, and a server's second may change a little late.
const DRIFT_PER_SECOND: f64 = 0.001;
/// A time further ahead is of another clock.
pub const MOST_AHEAD: Micros = Micros::from_secs(10);
/// Readings closer than this are not worth a command.
const READ_EVERY: Duration = Duration::from_millis(10);

/// Estimates the server's clock. Until the first reading it is this node's.
pub struct ServerClock {
    origin: Instant,
    /// Until there is a reading.
    own: SystemClock,
    state: Mutex<Estimate>,
}

struct Estimate {
    /// What is to be added to the time since `origin`, in seconds since `base`: at least, at most, and when that was known.
    bounds: Option<(f64, f64, Instant)>,
    base: u64,
    last_read: Option<Instant>,
    /// The last time that was told.
    told: Timestamp,
}

impl Default for ServerClock {
    fn default() -> Self {
        ServerClock::new()
    }
}

impl std::fmt::Debug for ServerClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerClock").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl ServerClock {
    /// One that has read nothing yet.
    #[must_use]
    pub fn new() -> Self {
        let state = Estimate { bounds: None, base: 0, last_read: None, told: Timestamp::default() };
        ServerClock { origin: Instant::now(), own: SystemClock::new(), state: Mutex::new(state) }
    }

    /// Whether a call should read it along.
    #[must_use]
    pub fn wants_reading(&self) -> bool {
        let mut state = self.state.lock();
        let wants = state.last_read.is_none_or(|at| at.elapsed() >= READ_EVERY);
        if wants {
            state.last_read = Some(Instant::now());
        }
        wants
    }

    /// The server showed `second` at some moment between `from` and `to`.
    pub fn read(&self, second: u64, from: Instant, to: Instant) {
        let mut state = self.state.lock();
        if state.bounds.is_none() {
            state.base = second;
        }
        let since = |at: Instant| at.saturating_duration_since(self.origin).as_secs_f64();
        let shown = second as f64 - state.base as f64;
        let (low, high) = (shown - since(to), shown + 1.0 - since(from));
        state.bounds = match state.bounds {
            None => Some((low, high, to)),
            Some((known_low, known_high, at)) => {
                let drift = to.saturating_duration_since(at).as_secs_f64() * DRIFT_PER_SECOND;
                let (both_low, both_high) = (low.max(known_low - drift), high.min(known_high + drift));
                // The server was restarted, or its clock set: this reading alone is true.
                if both_low > both_high { Some((low, high, to)) } else { Some((both_low, both_high, to)) }
            }
        };
    }

    /// The time, which steps back only where the server's clock was set back.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let mut state = self.state.lock();
        let Some((low, high, _)) = state.bounds else { return self.own.now() };
        let seconds = f64::midpoint(low, high) + self.origin.elapsed().as_secs_f64();
        let micros = (state.base * 1_000_000).saturating_add_signed((seconds * 1e6) as i64);
        let now = Timestamp::from_micros(micros);
        // A clock that was set back by more than a reading may be wrong would stand still until it got there again.
        state.told = if state.told.since(now) <= MOST_AHEAD { state.told.max(now) } else { now };
        state.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings of a clock that is `ahead` seconds ahead of this process's, at these times.
    fn read(clock: &ServerClock, ahead: f64, at: impl IntoIterator<Item = f64>) {
        for at in at {
            let second = (1_000.0 + ahead + at) as u64;
            let at = clock.origin + Duration::from_secs_f64(at);
            clock.read(second, at, at + Duration::from_millis(1));
        }
    }

    fn error_at(clock: &ServerClock, ahead: f64) -> f64 {
        let (low, high, _) = clock.state.lock().bounds.unwrap();
        let base = clock.state.lock().base as f64;
        (base + f64::midpoint(low, high) - 1_000.0 - ahead).abs()
    }

    #[test]
    fn seconds_that_change_narrow_the_time_to_hundredths() {
        let clock = ServerClock::new();
        read(&clock, 0.37, (0..300).map(|number| f64::from(number) * 0.013));
        assert!(error_at(&clock, 0.37) < 0.02, "{}", error_at(&clock, 0.37));
    }

    #[test]
    fn a_server_whose_clock_was_set_is_believed() {
        let clock = ServerClock::new();
        read(&clock, 0.37, (0..100).map(|number| f64::from(number) * 0.013));
        read(&clock, 60.5, (100..400).map(|number| f64::from(number) * 0.013));
        assert!(error_at(&clock, 60.5) < 0.02, "{}", error_at(&clock, 60.5));
    }

    #[test]
    fn time_does_not_step_back_by_seconds() {
        let clock = ServerClock::new();
        read(&clock, 6.0, [0.0]);
        let before = clock.now();
        read(&clock, 0.0, [0.1]);
        assert_eq!(clock.now(), before);
    }
}
