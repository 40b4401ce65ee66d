//! How many connections each worker holds, per listener; the acceptor deals by it, metrics report it.

use super::{Settings, WorkerId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Connection counts of a data plane.
#[derive(Debug)]
pub struct Loads {
    listeners: Vec<Counters>,
    max_connections: usize,
}

#[derive(Debug)]
struct Counters {
    name: &'static str,
    open: Vec<AtomicUsize>,
    accepted: AtomicU64,
    refused: AtomicU64,
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
    /// Connections closed at once because the listener was full.
    pub refused: u64,
}

impl Loads {
    pub(super) fn new(names: Vec<&'static str>, settings: &Settings) -> Self {
        let counters = |name| Counters {
            name,
            open: (0..settings.workers.get()).map(|_| AtomicUsize::new(0)).collect(),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        };
        Self {
            listeners: names.into_iter().map(counters).collect(),
            max_connections: settings.max_connections.get(),
        }
    }

    /// A reading of every listener's counters.
    pub fn read(&self) -> impl Iterator<Item = ListenerLoad> + '_ {
        self.listeners.iter().map(|listener| ListenerLoad {
            name: listener.name,
            open: listener.open.iter().map(|open| open.load(Ordering::Relaxed)).collect(),
            accepted: listener.accepted.load(Ordering::Relaxed),
            refused: listener.refused.load(Ordering::Relaxed),
        })
    }

    /// Takes a place on the worker with the fewest connections of `listener`, ties to the fewest overall; `None` when
    /// the listener is full.
    ///
    /// Only the acceptor thread calls this, so the counts can only shrink meanwhile and the bound holds.
    pub(super) fn take_place(self: &Arc<Self>, listener: usize) -> Option<(WorkerId, Place)> {
        let counters = &self.listeners[listener];
        let open: Vec<_> = counters.open.iter().map(|open| open.load(Ordering::Relaxed)).collect();
        if open.iter().sum::<usize>() >= self.max_connections {
            counters.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let worker = (0..open.len()).min_by_key(|&worker| (open[worker], self.total_on(worker)))?;
        counters.open[worker].fetch_add(1, Ordering::Relaxed);
        counters.accepted.fetch_add(1, Ordering::Relaxed);
        Some((WorkerId(worker), Place { loads: Arc::clone(self), listener, worker }))
    }

    fn total_on(&self, worker: usize) -> usize {
        self.listeners.iter().map(|listener| listener.open[worker].load(Ordering::Relaxed)).sum()
    }
}

/// One open connection in the counts; dropping it gives the place back.
#[derive(Debug)]
pub(super) struct Place {
    loads: Arc<Loads>,
    listener: usize,
    worker: usize,
}

impl Place {
    pub(super) fn listener(&self) -> usize {
        self.listener
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.loads.listeners[self.listener].open[self.worker].fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

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
        let _http: Vec<_> = (0..2).map(|_| loads.take_place(1).unwrap()).collect();
        let _grpc: Vec<_> = (0..6).map(|_| loads.take_place(0).unwrap()).collect();
        assert_eq!(loads.read().next().unwrap().open, [2, 2, 2]);
    }

    #[test]
    fn a_tie_goes_to_the_worker_with_the_fewest_connections_overall() {
        let loads = loads(2, 100);
        let (first, _http) = loads.take_place(1).unwrap();
        let (second, _grpc) = loads.take_place(0).unwrap();
        assert_ne!(first, second);
    }

    #[test]
    fn a_closed_connection_gives_its_place_back() {
        let loads = loads(2, 100);
        let _first = loads.take_place(0).unwrap();
        let (second, place) = loads.take_place(0).unwrap();
        drop(place);
        assert_eq!(loads.take_place(0).unwrap().0, second);
    }

    #[test]
    fn a_full_listener_refuses_and_counts_without_touching_the_other() {
        let loads = loads(2, 2);
        let _places = [loads.take_place(0).unwrap(), loads.take_place(0).unwrap()];
        assert!(loads.take_place(0).is_none());
        assert!(loads.take_place(1).is_some());
        assert_eq!(loads.read().map(|load| load.refused).collect::<Vec<_>>(), [1, 0]);
    }
}
