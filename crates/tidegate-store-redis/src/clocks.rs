//! Estimates each server's clock from its answers.
//!
//! Two things depend on the server's time: the boundaries of calendar windows, and the latest start of a call. The script checks
//! both. If this node guessed wrong, the script does nothing and returns the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tidegate_core::Timestamp;
use tidegate_store::Clock;

/// The clocks of all servers, and this node's own.
pub(crate) struct ServerClocks {
    own: Arc<dyn Clock>,
    /// The offset from this node's clock, by server number.
    ahead_us: Box<[AtomicI64]>,
}

/// The offset of a server that has not answered yet.
const UNKNOWN: i64 = i64::MIN;

impl ServerClocks {
    pub(crate) fn new(own: Arc<dyn Clock>, nodes: usize) -> Self {
        ServerClocks { own, ahead_us: (0..nodes).map(|_| AtomicI64::new(UNKNOWN)).collect() }
    }

    /// The estimated time at `node`.
    pub(crate) fn approx_now(&self, node: usize) -> Timestamp {
        let own = self.own.now();
        self.known_at(node, own).unwrap_or(own)
    }

    /// The time at `node` when this node's clock shows `own`; none before its first answer.
    pub(crate) fn known_at(&self, node: usize, own: Timestamp) -> Option<Timestamp> {
        let ahead = self.ahead_us[node].load(Ordering::Relaxed);
        (ahead != UNKNOWN).then(|| Timestamp::from_micros(own.as_micros().saturating_add_signed(ahead)))
    }

    /// This node's own time.
    pub(crate) fn own_now(&self) -> Timestamp {
        self.own.now()
    }

    /// Records that `node`'s clock showed `at` when it ran a call that this node sent at `sent` and whose answer it reads now. The
    /// true offset lies between the two; what is known of it moves only as far as it must. At first the server counts as further
    /// ahead than it is, so that a latest start computed from it can be a little late, never early.
    pub(crate) fn heard(&self, node: usize, sent: Timestamp, at: Timestamp) {
        let us = |time: Timestamp| time.as_micros().cast_signed();
        let (least, most) = (us(at) - us(self.own.now()), us(at) - us(sent));
        let known = self.ahead_us[node].load(Ordering::Relaxed);
        // Not `clamp`: this node's clock may have stepped back meanwhile.
        let ahead = if known == UNKNOWN { most } else { known.max(least).min(most) };
        self.ahead_us[node].store(ahead, Ordering::Relaxed);
    }
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

    fn clocks() -> (ServerClocks, impl Fn(u64)) {
        let own = Arc::new(Given(AtomicU64::new(at(1_000).as_micros())));
        let clocks = ServerClocks::new(own.clone(), 2);
        (clocks, move |millis| own.0.store(at(millis).as_micros(), Ordering::Relaxed))
    }

    #[test]
    fn a_server_that_never_answered_is_taken_to_have_our_time_and_known_to_have_none() {
        let (clocks, _) = clocks();
        assert_eq!((clocks.approx_now(0), clocks.known_at(0, at(1_000))), (at(1_000), None));
    }

    #[test]
    fn the_first_answer_tells_the_time_of_its_server_alone_and_never_too_early() {
        let (clocks, set) = clocks();
        set(1_004);
        clocks.heard(0, at(1_000), at(31_002));
        assert_eq!(
            clocks.known_at(0, at(1_004)),
            Some(at(31_006)),
            "it took up to 4 ms until it was 31,002 there"
        );
        assert_eq!(clocks.known_at(1, at(1_004)), None);
    }

    #[test]
    fn an_answer_moves_what_is_known_only_as_far_as_it_must() {
        let (clocks, set) = clocks();
        clocks.heard(0, at(1_000), at(1_000));
        // It took 600 ms and says nothing new, whenever in them the server ran it.
        set(1_600);
        for ran in [1_000, 1_300, 1_600] {
            clocks.heard(0, at(1_000), at(ran));
            assert_eq!(clocks.known_at(0, at(1_600)), Some(at(1_600)), "{ran}");
        }
    }

    #[test]
    fn a_server_whose_clock_steps_is_followed() {
        let (clocks, set) = clocks();
        clocks.heard(0, at(1_000), at(1_000));
        set(1_002);
        clocks.heard(0, at(1_001), at(5));
        assert_eq!(clocks.known_at(0, at(1_002)), Some(at(6)));
        clocks.heard(0, at(1_001), at(90_000));
        assert_eq!(clocks.known_at(0, at(1_002)), Some(at(90_000)));
    }
}
