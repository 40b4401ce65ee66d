//! Clocks: the only file in this crate that may read the system's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_core::{Micros, Timestamp};

#[cfg(feature = "counter")]
use crate::counter::{CounterClock, Look, Rate};

/// Returns the time in microseconds since the Unix epoch.
pub trait Clock: Send + Sync + 'static {
    /// The current time. It may step back when the clock is set.
    fn now(&self) -> Timestamp;

    /// Time since some fixed moment. It never steps back, so spans within a process are measured by it.
    fn uptime(&self) -> Micros {
        Micros::new(self.now().as_micros())
    }
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
    #[cfg(not(feature = "counter"))]
    epoch: Instant,
}

impl SystemClock {
    /// A clock that follows the wall clock.
    #[must_use]
    pub fn new() -> Self {
        SystemClock {
            #[cfg(feature = "counter")]
            counter: Counter::new(),
            #[cfg(not(feature = "counter"))]
            #[expect(clippy::disallowed_methods, reason = "this is the clock")]
            epoch: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        #[cfg(feature = "counter")]
        let now = self.counter.now_us();
        #[cfg(not(feature = "counter"))]
        let now = wall_us();
        Timestamp::from_micros(now)
    }

    fn uptime(&self) -> Micros {
        #[cfg(feature = "counter")]
        let uptime = Micros::new(self.counter.uptime_us());
        #[cfg(not(feature = "counter"))]
        let uptime = self.epoch.elapsed().into();
        uptime
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
    epoch_ticks: u64,
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
        let epoch_ticks = counter.raw();
        Counter { counter, epoch, epoch_ticks, clock }
    }

    #[inline]
    fn now_us(&self) -> u64 {
        self.clock.at(self.counter.raw(), || look(&self.counter, self.epoch))
    }

    /// By the counter's nominal rate, which is close enough for spans.
    #[inline]
    fn uptime_us(&self) -> u64 {
        self.counter.delta_as_nanos(self.epoch_ticks, self.counter.raw()) / 1_000
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

    fn uptime(&self) -> Micros {
        (**self).uptime()
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

    #[test]
    fn uptime_is_measured_in_microseconds_from_the_start() {
        #[expect(clippy::disallowed_methods, reason = "the oracle")]
        let outer = Instant::now();
        let clock = SystemClock::new();
        #[expect(clippy::disallowed_methods, reason = "the oracle")]
        let inner = Instant::now();
        let (least, first) = (inner.elapsed().as_micros() as u64, clock.uptime().get());
        while clock.uptime().get() < first + 20_000 {
            std::hint::spin_loop();
        }
        let (shown, most) = (clock.uptime().get(), outer.elapsed().as_micros() as u64);
        // The nominal rate of a counter is off by less than a tenth.
        assert!(shown * 10 >= (least + 20_000) * 9 && shown * 9 <= most * 10, "{shown} of at most {most}");
    }
}
