//! What time it is: the one file in this crate that may ask the machine.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_core::{Micros, Timestamp};

/// Tells the time, in microseconds since the Unix epoch.
pub trait Clock: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Timestamp;
}

/// The machine's wall clock, read from the processor's counter: half the cost of asking the kernel.
///
/// The counter runs freely, so it drifts from the wall clock; [`SystemClock::follow_wall_clock`] brings it back.
#[derive(Debug)]
pub struct SystemClock {
    counter: quanta::Clock,
    started: u64,
    /// What to add to the counter's microseconds to have the wall clock's.
    offset_us: AtomicI64,
}

impl SystemClock {
    /// A clock that shows the wall clock's time.
    #[must_use]
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let clock = SystemClock { started: counter.raw(), counter, offset_us: AtomicI64::new(0) };
        clock.follow_wall_clock();
        clock
    }

    /// Takes over the wall clock's time, which may have been stepped or slewed. To be called every second or so.
    pub fn follow_wall_clock(&self) {
        #[expect(clippy::disallowed_methods, reason = "this is the clock")]
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
        let offset = i64::try_from(wall).unwrap_or(i64::MAX).saturating_sub_unsigned(self.elapsed_us());
        self.offset_us.store(offset, Ordering::Relaxed);
    }

    fn elapsed_us(&self) -> u64 {
        self.counter.delta_as_nanos(self.started, self.counter.raw()) / 1_000
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(
            self.elapsed_us().saturating_add_signed(self.offset_us.load(Ordering::Relaxed)),
        )
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
    pub fn advance(&self, span: Micros) {
        self.0.fetch_add(span.get(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

impl<C: Clock> Clock for std::sync::Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}
