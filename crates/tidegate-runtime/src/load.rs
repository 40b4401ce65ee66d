//! The number of connections of each worker, by listener; the acceptor balances by it, metrics report it.

use super::memory::Memory;
use super::seat::Seat;
use super::{Settings, WorkerId};
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tidegate_access::{PeerGroup, Register, Room};

/// The most connections of a listener that were asked to leave and are not gone yet. Beyond that, new ones wait for them, so
/// that no more files are open than planned.
pub const MOST_LEAVING: usize = 64;

/// Connection counts of a data plane.
#[derive(Debug)]
pub struct Loads {
    listeners: Vec<Counters>,
    /// The memory held by incomplete requests and unread answers, by worker.
    memory: Vec<Arc<Memory>>,
    connection_memory: usize,
}

#[derive(Debug)]
struct Counters {
    name: &'static str,
    open: Vec<AtomicUsize>,
    accepted: AtomicU64,
    refused: AtomicU64,
    evicted: AtomicU64,
    leaving: AtomicUsize,
    register: Mutex<Register<Seat>>,
}

/// The connections of one listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerLoad {
    /// The listener.
    pub name: &'static str,
    /// Open connections, by worker.
    pub open: Vec<usize>,
    /// Connections accepted since the start.
    pub accepted: u64,
    /// Connections closed at once because there was no room.
    pub refused: u64,
    /// Idle connections closed to make room for another.
    pub evicted: u64,
}

impl Loads {
    pub(super) fn new(names: Vec<&'static str>, settings: &Settings) -> Self {
        let most = settings.max_connections.get();
        let most_per_peer = settings.max_connections_per_peer.map_or(usize::MAX, |most| most.get());
        let workers = settings.workers.get();
        let counters = |name| Counters {
            name,
            open: (0..workers).map(|_| AtomicUsize::new(0)).collect(),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            leaving: AtomicUsize::new(0),
            register: Mutex::new(Register::new(most, most_per_peer)),
        };
        Self {
            listeners: names.into_iter().map(counters).collect(),
            memory: (0..workers).map(|_| Memory::new(settings.worker_memory)).collect(),
            connection_memory: settings.connection_memory,
        }
    }

    /// A reading of every listener's counters.
    pub fn read(&self) -> impl Iterator<Item = ListenerLoad> + '_ {
        self.listeners.iter().map(|listener| ListenerLoad {
            name: listener.name,
            open: listener.open.iter().map(|open| open.load(Ordering::Relaxed)).collect(),
            accepted: listener.accepted.load(Ordering::Relaxed),
            refused: listener.refused.load(Ordering::Relaxed),
            evicted: listener.evicted.load(Ordering::Relaxed),
        })
    }

    /// Bytes held by incomplete requests and unread answers.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.memory.iter().map(|worker| worker.held()).sum()
    }

    /// Takes a place on the worker with the fewest connections of `listener`, ties to the fewest overall; `None` if there is
    /// no room. If that takes another connection's seat, that one is asked to leave.
    ///
    /// Only the acceptor thread calls this, so the counts can only shrink meanwhile and the bound holds.
    pub(super) fn take_place(
        self: &Arc<Self>,
        listener: usize,
        address: IpAddr,
    ) -> Option<(WorkerId, Place)> {
        let counters = &self.listeners[listener];
        let peer = PeerGroup::of(address);
        if !counters.make_room(peer) {
            return None;
        }
        let open: Vec<_> = counters.open.iter().map(|open| open.load(Ordering::Relaxed)).collect();
        let worker = (0..open.len()).min_by_key(|&worker| (open[worker], self.total_on(worker)))?;
        counters.open[worker].fetch_add(1, Ordering::Relaxed);
        counters.accepted.fetch_add(1, Ordering::Relaxed);
        let seat = Seat::new(peer, worker, self.connection_memory, Arc::clone(&self.memory[worker]));
        let at = counters.register.lock().insert(Arc::clone(&seat));
        Some((WorkerId(worker), Place { loads: Arc::clone(self), listener, at, seat }))
    }

    /// Whether connections are leaving, so that there may be room in a moment.
    pub(super) fn some_are_leaving(&self, listener: usize) -> bool {
        self.listeners[listener].leaving.load(Ordering::Relaxed) > 0
    }

    pub(super) fn count_refused(&self, listener: usize) {
        self.listeners[listener].refused.fetch_add(1, Ordering::Relaxed);
    }

    fn total_on(&self, worker: usize) -> usize {
        self.listeners.iter().map(|listener| listener.open[worker].load(Ordering::Relaxed)).sum()
    }
}

impl Counters {
    fn make_room(&self, peer: PeerGroup) -> bool {
        let room = {
            let mut register = self.register.lock();
            match self.leaving.load(Ordering::Relaxed) < MOST_LEAVING {
                true => register.make_room(peer),
                false => register.look_for_room(peer),
            }
        };
        match room {
            Room::Free => true,
            Room::None => false,
            Room::InPlaceOf(seat) => {
                // The new connection takes over its count now; it will be gone in a moment.
                self.open[seat.worker()].fetch_sub(1, Ordering::Relaxed);
                self.leaving.fetch_add(1, Ordering::Relaxed);
                self.evicted.fetch_add(1, Ordering::Relaxed);
                seat.ask_to_leave();
                true
            }
        }
    }
}

/// One open connection in the counts; dropping it frees the place.
#[derive(Debug)]
pub(super) struct Place {
    loads: Arc<Loads>,
    listener: usize,
    /// The index of its seat in the register.
    at: usize,
    seat: Arc<Seat>,
}

impl Place {
    pub(super) fn listener(&self) -> usize {
        self.listener
    }

    pub(super) fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let counters = &self.loads.listeners[self.listener];
        let mut register = counters.register.lock();
        // Reliable because a seat is removed only under the register's lock, which is held here.
        if self.seat.is_removed() {
            counters.leaving.fetch_sub(1, Ordering::Relaxed);
        } else {
            register.remove(self.at);
            counters.open[self.seat.worker()].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn loads(workers: usize, max_connections: usize) -> Arc<Loads> {
        let settings = Settings {
            workers: NonZeroUsize::new(workers).unwrap(),
            max_connections: NonZeroUsize::new(max_connections).unwrap(),
            ..Settings::default()
        };
        Arc::new(Loads::new(vec!["grpc", "http"], &settings))
    }

    #[test]
    fn connections_of_one_listener_spread_evenly_whatever_the_other_holds() {
        let loads = loads(3, 100);
        let _http: Vec<_> = (0..2).map(|_| loads.take_place(1, PEER).unwrap()).collect();
        let _grpc: Vec<_> = (0..6).map(|_| loads.take_place(0, PEER).unwrap()).collect();
        assert_eq!(loads.read().next().unwrap().open, [2, 2, 2]);
    }

    #[test]
    fn a_tie_goes_to_the_worker_with_the_fewest_connections_overall() {
        let loads = loads(2, 100);
        let (first, _http) = loads.take_place(1, PEER).unwrap();
        let (second, _grpc) = loads.take_place(0, PEER).unwrap();
        assert_ne!(first, second);
    }

    #[test]
    fn a_closed_connection_gives_its_place_back() {
        let loads = loads(2, 100);
        let _first = loads.take_place(0, PEER).unwrap();
        let (second, place) = loads.take_place(0, PEER).unwrap();
        drop(place);
        assert_eq!(loads.take_place(0, PEER).unwrap().0, second);
    }

    #[test]
    fn a_full_listener_refuses_and_counts_without_touching_the_other() {
        let loads = loads(2, 2);
        let places = [loads.take_place(0, PEER).unwrap(), loads.take_place(0, PEER).unwrap()];
        let _busy = places.each_ref().map(|(_, place)| place.seat().begin());
        assert!(loads.take_place(0, PEER).is_none() && !loads.some_are_leaving(0));
        assert!(loads.take_place(1, PEER).is_some());
        loads.count_refused(0);
        assert_eq!(loads.read().map(|load| load.refused).collect::<Vec<_>>(), [1, 0]);
    }

    #[test]
    fn a_connection_that_made_room_is_counted_once_whenever_it_goes() {
        let loads = loads(1, 2);
        let (_, first) = loads.take_place(0, PEER).unwrap();
        let (_, second) = loads.take_place(0, PEER).unwrap();
        let (_, third) = loads.take_place(0, PEER).unwrap();
        let read = || loads.read().next().unwrap();
        assert_eq!((read().open, read().evicted), (vec![2], 1));
        drop(first);
        assert_eq!(read().open, [2]);
        drop((second, third));
        assert_eq!(read().open, [0]);
        assert_eq!(loads.listeners[0].leaving.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn no_more_connections_linger_than_were_reckoned_with() {
        let loads = loads(1, 2);
        let places: Vec<_> = (0..200).filter_map(|_| loads.take_place(0, PEER)).collect();
        assert_eq!(places.len(), 2 + MOST_LEAVING);
    }
}
