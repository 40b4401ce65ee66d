//! What time it is: the one file in this crate that may ask the machine.

#[cfg(feature = "counter")]
use std::sync::atomic::AtomicI64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_core::{Micros, Timestamp};

/// Tells the time, in microseconds since the Unix epoch.
pub trait Clock: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Timestamp;
}

/// The machine's wall clock.
///
/// With the feature `counter` it is read from the processor's counter, at half the cost of asking the kernel, and follows
/// the wall clock, which may be slewed or stepped, once a second.
#[derive(Debug)]
pub struct SystemClock {
    #[cfg(feature = "counter")]
    counter: Counter,
}

impl SystemClock {
    /// A clock that shows the wall clock's time.
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

fn wall_us() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    u64::try_from(wall).unwrap_or(u64::MAX)
}

#[cfg(feature = "counter")]
#[derive(Debug)]
struct Counter {
    counter: quanta::Clock,
    started: u64,
    /// What to add to the counter's microseconds to have the wall clock's.
    offset_us: AtomicI64,
    /// The counter's microseconds at which the wall clock is asked again.
    follow_at_us: AtomicU64,
}

#[cfg(feature = "counter")]
impl Counter {
    fn new() -> Self {
        let counter = quanta::Clock::new();
        let started = counter.raw();
        Counter { counter, started, offset_us: AtomicI64::new(0), follow_at_us: AtomicU64::new(0) }
    }

    fn now_us(&self) -> u64 {
        let elapsed_us = self.counter.delta_as_nanos(self.started, self.counter.raw()) / 1_000;
        if elapsed_us >= self.follow_at_us.load(Ordering::Relaxed) {
            self.follow(elapsed_us, wall_us());
        }
        elapsed_us.saturating_add_signed(self.offset_us.load(Ordering::Relaxed))
    }

    /// Two threads that follow at once write nearly the same.
    #[cold]
    fn follow(&self, elapsed_us: u64, wall_us: u64) {
        let offset = i64::try_from(wall_us).unwrap_or(i64::MAX).saturating_sub_unsigned(elapsed_us);
        self.offset_us.store(offset, Ordering::Relaxed);
        self.follow_at_us.store(elapsed_us + 1_000_000, Ordering::Relaxed);
    }
}

/// A clock that stands still until told otherwise, for tests.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        ManualClock(AtomicU64::new(now.as_micros()))
    }

    /// Shows `now` from here on, earlier or later than before.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_micros(), Ordering::SeqCst);
    }

    /// Goes forward by `span`.
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
    fn the_counter_takes_over_a_wall_clock_that_was_stepped() {
        let counter = Counter::new();
        let before = counter.now_us();
        counter.follow(0, wall_us() + 3_600_000_000);
        assert!(counter.now_us() >= before + 3_600_000_000);
    }

    #[test]
    fn the_counter_asks_the_wall_clock_again_after_a_second() {
        let counter = Counter::new();
        counter.follow(0, 0);
        counter.follow_at_us.store(0, Ordering::Relaxed);
        assert!(counter.now_us().abs_diff(wall_us()) < 10_000_000, "it still shows 1970");
    }
}
