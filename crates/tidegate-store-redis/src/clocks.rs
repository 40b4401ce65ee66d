//! Estimates each server's clock from its answers.
//!
//! Two things depend on the server's time: the boundaries of calendar windows, and the latest start of a call. The script checks
//! both. If this node guessed wrong, the script does nothing and returns the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tidegate_core::{Micros, Timestamp};
use tidegate_store::Clock;

/// The clocks of all servers, and this node's own.
pub(crate) struct ServerClocks {
    own: Arc<dyn Clock>,
    /// Slower answers are ignored: they say little about the time now.
    in_time: Duration,
    /// The offset from this node's clock, by server number.
    ahead_us: Box<[AtomicI64]>,
}

/// The offset of a server that has not answered yet.
const UNKNOWN: i64 = i64::MIN;

impl ServerClocks {
    pub(crate) fn new(own: Arc<dyn Clock>, in_time: Duration, nodes: usize) -> Self {
        ServerClocks { own, in_time, ahead_us: (0..nodes).map(|_| AtomicI64::new(UNKNOWN)).collect() }
    }

    /// The estimated time at `node`.
    pub(crate) fn approx_now(&self, node: usize) -> Timestamp {
        self.known_now(node).unwrap_or_else(|| self.own.now())
    }

    /// The time at `node`, or slightly later; none before its first answer.
    pub(crate) fn known_now(&self, node: usize) -> Option<Timestamp> {
        let ahead = self.ahead_us[node].load(Ordering::Relaxed);
        let now = self.own.now().as_micros();
        (ahead != UNKNOWN).then(|| Timestamp::from_micros(now.saturating_add_signed(ahead)))
    }

    /// This node's own time.
    pub(crate) fn own_now(&self) -> Timestamp {
        self.own.now()
    }

    /// Records that `node`'s clock showed `at` when it ran a call that this node sent at `sent`. The travel time makes the server
    /// seem further ahead than it is, so a latest start computed from it can be a little late, never early.
    pub(crate) fn heard(&self, node: usize, sent: Timestamp, at: Timestamp) {
        if Duration::from(self.own.now().since(sent)) <= self.in_time {
            self.is_ahead(node, at, sent);
        }
    }

    /// `node` reports the time `at`, which differs from the estimate.
    pub(crate) fn correct(&self, node: usize, at: Timestamp) {
        self.is_ahead(node, at, self.own.now());
    }

    fn is_ahead(&self, node: usize, at: Timestamp, own: Timestamp) {
        let ahead = at.as_micros().cast_signed() - own.as_micros().cast_signed();
        self.ahead_us[node].store(ahead, Ordering::Relaxed);
    }
}

/// The time `span` after `at`.
pub(crate) fn after(at: Timestamp, span: Duration) -> Timestamp {
    at + Micros::new(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    struct Given(AtomicU64);

    impl Clock for Given {
        fn now(&self) -> Timestamp {
            Timestamp::from_micros(self.0.load(Ordering::Relaxed))
        }
    }

    const fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(millis * 1_000)
    }

    fn clocks() -> (ServerClocks, Arc<Given>) {
        let own = Arc::new(Given(AtomicU64::new(at(1_000).as_micros())));
        (ServerClocks::new(own.clone(), Duration::from_millis(10), 2), own)
    }

    #[test]
    fn a_server_that_never_answered_is_taken_to_have_our_time_and_known_to_have_none() {
        let (clocks, _) = clocks();
        assert_eq!((clocks.approx_now(0), clocks.known_now(0)), (at(1_000), None));
    }

    #[test]
    fn an_answer_tells_the_time_of_its_server_alone() {
        let (clocks, own) = clocks();
        own.0.store(at(1_004).as_micros(), Ordering::Relaxed);
        clocks.heard(0, at(1_000), at(31_002));
        // Up to 4 ms passed before the server read 31,002; the share of each direction is unknown.
        assert_eq!(clocks.known_now(0), Some(at(31_006)));
        assert_eq!(clocks.known_now(1), None);
    }

    #[test]
    fn an_answer_that_took_long_tells_nothing() {
        let (clocks, own) = clocks();
        own.0.store(at(1_300).as_micros(), Ordering::Relaxed);
        clocks.heard(0, at(1_000), at(1_299));
        assert_eq!(clocks.known_now(0), None);
    }

    #[test]
    fn a_server_that_says_it_is_another_time_is_believed() {
        let (clocks, _) = clocks();
        clocks.correct(0, at(5));
        assert_eq!(clocks.known_now(0), Some(at(5)));
    }
}
