//! Tells a slow store from a waiter whose own thread did not run.
//!
//! A thread that was busy for a tenth of a second finds its timers expired and the store's answer unread. That says nothing
//! about the store. So a waiter divides its wait into slices: a slice that ends much later than planned shows that the
//! waiter itself was late, and that time does not count against the store.

use tidegate_core::Micros;

/// The most that a wait is extended because its thread did not run.
pub const MOST_LAG: Micros = Micros::from_secs(2);

const PARTS: u64 = 5;
const SHORTEST: Micros = Micros::from_millis(1);
const LONGEST: Micros = Micros::from_millis(10);

/// The length of one slice of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice(Micros);

impl Slice {
    /// The slice for a wait of at most `timeout`: a fifth of it, between 1 ms (the resolution of timers) and 10 ms.
    #[must_use]
    pub fn of(timeout: Micros) -> Self {
        Slice(Micros::new(timeout.get() / PARTS).clamp(SHORTEST, LONGEST))
    }

    /// The length of the slice.
    #[must_use]
    pub fn span(self) -> Micros {
        self.0
    }

    /// How much of a sleep of `planned` that took `took` was lag. Less than a slice late counts as on time.
    #[must_use]
    pub fn lag(self, planned: Micros, took: Micros) -> Micros {
        let late = took.saturating_sub(planned);
        if late > self.0 { late } else { Micros::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_a_fifth_within_what_timers_can_do() {
        let span = |millis| Slice::of(Micros::from_millis(millis)).span();
        assert_eq!((span(1), span(10), span(5_000)), (SHORTEST, Micros::from_millis(2), LONGEST));
    }

    #[test]
    fn only_what_is_late_by_more_than_a_slice_is_lag() {
        let slice = Slice::of(Micros::from_millis(10));
        let lag = |took| slice.lag(slice.span(), Micros::from_millis(took));
        assert_eq!(
            (lag(2), lag(4), lag(5), lag(150)),
            (Micros::ZERO, Micros::ZERO, Micros::from_millis(3), Micros::from_millis(148))
        );
    }
}
