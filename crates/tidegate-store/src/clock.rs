//! Clocks: the only file in this crate that may read the system's.

use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "counter")]
use std::time::Instant;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_core::{Micros, Timestamp};

#[cfg(feature = "counter")]
use crate::counter::{CounterClock, Look, Rate};

/// Returns the time in microseconds since the Unix epoch.
pub trait Clock: Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> Timestamp;
}

/// The system's wall clock.
///
/// With the feature `counter` it reads the processor's counter, at half the cost of a kernel call. The counter's rate is
/// measured again once a second, and its time follows the wall clock: gradually while the two drift, at once when the wall
/// clock was stepped.
#[derive(Debug)]
pub struct SystemClock {
    #[cfg(feature = "counter")]
    counter: Counter,
}

impl SystemClock {
    /// A clock that follows the wall clock.
    #[must_use]
    pub fn new() -> Self {
        SystemClock {
            #[cfg(feature = "counter")]
            counter: Counter::new(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        #[cfg(feature = "counter")]
        let now = self.counter.now_us();
        #[cfg(not(feature = "counter"))]
        let now = wall_us();
        Timestamp::from_micros(now)
    }
}

#[cfg(any(test, not(feature = "counter")))]
fn wall_us() -> u64 {
    u64::try_from(wall().as_micros()).unwrap_or(u64::MAX)
}

fn wall() -> Duration {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(feature = "counter")]
#[derive(Debug)]
struct Counter {
    counter: quanta::Clock,
    epoch: Instant,
    clock: CounterClock,
}

#[cfg(feature = "counter")]
impl Counter {
    fn new() -> Self {
        /// The longest span that quanta converts exactly: about a second.
        const TICKS: u64 = 1 << 32;
        let counter = quanta::Clock::new();
        let rate = Rate::new(counter.delta_as_nanos(0, TICKS), TICKS);
        #[expect(clippy::disallowed_methods, reason = "this is the clock")]
        let epoch = Instant::now();
        let clock = CounterClock::new(look(&counter, epoch), rate);
        Counter { counter, epoch, clock }
    }

    #[inline]
    fn now_us(&self) -> u64 {
        self.clock.at(self.counter.raw(), || look(&self.counter, self.epoch))
    }
}

/// Reads all clocks a few times, and keeps the reading with the shortest interruption.
#[cfg(feature = "counter")]
fn look(counter: &quanta::Clock, epoch: Instant) -> Look {
    let once = || {
        let begin = counter.raw();
        let wall_ns = u64::try_from(wall().as_nanos()).unwrap_or(u64::MAX);
        let monotonic_ns = u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let width_ticks = counter.raw().saturating_sub(begin);
        Look { ticks: begin + width_ticks / 2, width_ticks, wall_ns, monotonic_ns }
    };
    let mut best = once();
    for _ in 0..4 {
        let again = once();
        if again.width_ticks <= best.width_ticks {
            best = again;
        }
    }
    best
}

/// A clock that only moves when a test sets it.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        ManualClock(AtomicU64::new(now.as_micros()))
    }

    /// Sets the time to `now`, earlier or later than before.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_micros(), Ordering::SeqCst);
    }

    /// Advances by `span`.
    pub fn advance(&self, span: impl Into<Micros>) {
        let span = span.into();
        self.0.fetch_add(span.get(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

#[cfg(all(test, feature = "counter"))]
mod tests {
    use super::*;

    #[test]
    fn the_counter_shows_the_wall_clocks_time() {
        let counter = Counter::new();
        let before = wall_us();
        let shown = counter.now_us();
        let after = wall_us();
        assert!(shown + 1_000 >= before && shown <= after + 1_000, "{shown} is not in {before}..={after}");
    }
}
