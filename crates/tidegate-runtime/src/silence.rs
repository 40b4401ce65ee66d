//! Finds connections that were silent for too long, and asks them to leave.
//!
//! Scans all connections of a worker a few times within the shortest timeout: so no request starts or stops a timer, and ten
//! thousand idle connections cost microseconds per second.

use super::IdleTimeouts;
use super::seat::Seat;
use std::sync::Arc;
use std::time::Duration;

/// Scans per shortest timeout. A timeout may be exceeded by one part in this many.
const LOOKS: u32 = 8;
const QUICKEST: Duration = Duration::from_millis(5);
const SLOWEST: Duration = Duration::from_secs(1);

/// The connections of one worker.
#[derive(Debug)]
pub(super) struct Watch {
    every: Duration,
    watched: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    seat: Arc<Seat>,
    idle_timeouts: IdleTimeouts,
    seen: u64,
    silent_for: Duration,
}

impl Watch {
    /// Watches connections of listeners with these timeouts.
    pub(super) fn new(timeouts: impl Iterator<Item = IdleTimeouts>) -> Self {
        let shortest = timeouts.flat_map(|idle_timeouts| [idle_timeouts.first, idle_timeouts.idle]).min();
        let every = shortest.unwrap_or(SLOWEST) / LOOKS;
        Watch { every: every.clamp(QUICKEST, SLOWEST), watched: Vec::new() }
    }

    /// The interval between scans.
    pub(super) fn every(&self) -> Duration {
        self.every
    }

    pub(super) fn add(&mut self, seat: Arc<Seat>, idle_timeouts: IdleTimeouts) {
        self.watched.push(Watched { seat, idle_timeouts, seen: 0, silent_for: Duration::ZERO });
    }

    /// Scans all connections; each scan stands for the time since the last.
    pub(super) fn look(&mut self) {
        // If this is the last reference to a seat, its connection has ended.
        self.watched.retain(|watched| Arc::strong_count(&watched.seat) > 1);
        self.watched.iter_mut().for_each(|watched| watched.look(self.every));
    }

    pub(super) fn ask_all_to_leave(&self) {
        self.watched.iter().for_each(|watched| watched.seat.ask_to_leave());
    }
}

impl Watched {
    fn look(&mut self, passed: Duration) {
        let now = self.seat.progress();
        let waits = !self.idle_timeouts.even_under_way && self.seat.is_busy();
        if now != self.seen || waits {
            (self.seen, self.silent_for) = (now, Duration::ZERO);
            return;
        }
        self.silent_for += passed;
        let idle_timeouts = if now == 0 { self.idle_timeouts.first } else { self.idle_timeouts.idle };
        if self.silent_for >= idle_timeouts {
            self.seat.ask_to_leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Memory;
    use super::*;
    use std::net::IpAddr;
    use tidegate_access::PeerGroup;

    const SECOND: Duration = Duration::from_secs(1);
    const PATIENCE: IdleTimeouts =
        IdleTimeouts { first: SECOND, idle: SECOND.saturating_mul(3), even_under_way: false };

    fn watch(idle_timeouts: IdleTimeouts) -> (Watch, Arc<Seat>) {
        let seat = Seat::new(PeerGroup::of(IpAddr::from([127, 0, 0, 1])), 0, 0, Memory::new(0));
        let mut watch = Watch::new([idle_timeouts].into_iter());
        watch.add(Arc::clone(&seat), idle_timeouts);
        (watch, seat)
    }

    /// How long until the connection is asked to leave, in scans of an eighth of a second.
    fn looks_until_asked(watch: &mut Watch, seat: &Seat) -> Option<u32> {
        (1..=100).find(|_| {
            watch.look();
            seat.is_leaving()
        })
    }

    #[test]
    fn the_first_request_has_less_time_than_a_further_one() {
        let (mut watch, seat) = watch(PATIENCE);
        assert_eq!(looks_until_asked(&mut watch, &seat), Some(8));
        let (mut watch, seat) = self::watch(PATIENCE);
        seat.progressed();
        watch.look();
        assert_eq!(looks_until_asked(&mut watch, &seat), Some(24));
    }

    #[test]
    fn a_request_under_way_is_waited_for_unless_nothing_may_take_so_long() {
        let (mut watch, seat) = watch(PATIENCE);
        let under_way = seat.begin();
        assert_eq!(looks_until_asked(&mut watch, &seat), None);
        drop(under_way);
        assert!(looks_until_asked(&mut watch, &seat).is_some());
        let (mut watch, seat) = self::watch(IdleTimeouts { even_under_way: true, ..PATIENCE });
        let _under_way = seat.begin();
        assert!(looks_until_asked(&mut watch, &seat).is_some());
    }

    #[test]
    fn a_connection_that_has_ended_is_forgotten() {
        let (mut watch, seat) = watch(PATIENCE);
        drop(seat);
        watch.look();
        assert!(watch.watched.is_empty());
    }
}
