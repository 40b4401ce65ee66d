//! Orphaned leases: their requests were dropped, or never learned whether they got them. They are released by name once the
//! store answers; any that are lost end by their time to live.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::LeaseId;

use crate::cell::{KeptAsks, KeptLease};
use crate::cell_hash::CellHash;

/// Leases to release.
pub(crate) struct Orphans {
    waiting: Mutex<Waiting>,
    most: usize,
    lost: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    queue: VecDeque<KeptLease>,
    /// The names of the queued leases, and of the one being released: a holder may release its lease repeatedly while the store
    /// is unavailable.
    known: HashSet<(CellHash, LeaseId)>,
}

/// The result of queueing a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Queued now.
    New,
    /// Was queued already.
    Known,
    /// The queue is full.
    NoRoom,
}

impl Orphans {
    pub(crate) fn new(most: usize) -> Self {
        Orphans { waiting: Mutex::default(), most, lost: AtomicU64::new(0) }
    }

    pub(crate) fn keep(&self, lease: KeptLease) -> Kept {
        let name = lease.name();
        let mut waiting = self.waiting.lock();
        if waiting.known.contains(&name) {
            return Kept::Known;
        }
        if waiting.queue.len() >= self.most {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return Kept::NoRoom;
        }
        waiting.known.insert(name);
        waiting.queue.push_back(lease);
        Kept::New
    }

    pub(crate) fn add(&self, leases: impl IntoIterator<Item = KeptLease>) {
        leases.into_iter().for_each(|lease| {
            self.keep(lease);
        });
    }

    /// The lease has a holder after all.
    pub(crate) fn is_held(&self, lease: &KeptLease) {
        let name = lease.name();
        let mut waiting = self.waiting.lock();
        if waiting.known.contains(&name) {
            waiting.queue.retain(|other| other.name() != name);
            waiting.known.remove(&name);
        }
    }

    /// The next lease, until [`Self::done`] or [`Self::put_back`].
    pub(crate) fn next(&self) -> Option<KeptLease> {
        self.waiting.lock().queue.pop_front()
    }

    /// The store has released it.
    pub(crate) fn done(&self, lease: &KeptLease) {
        self.waiting.lock().known.remove(&lease.name());
    }

    /// The store has not released it: it stays queued.
    pub(crate) fn put_back(&self, lease: KeptLease) {
        self.done(&lease);
        self.keep(lease);
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.lock().queue.len()
    }

    /// Leases that only their time to live ends, because there was no room to queue them.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// The leases that a request took. Released on drop, unless kept.
pub(crate) struct TakenLeases {
    leases: SmallVec<[KeptLease; 1]>,
    orphans: Arc<Orphans>,
}

impl TakenLeases {
    /// The leases that a request which asks this takes if it passes; `None` if it takes none.
    pub(crate) fn of(asks: &KeptAsks, orphans: &Arc<Orphans>) -> Option<Self> {
        let leases: SmallVec<[KeptLease; 1]> = asks.iter().filter_map(|ask| ask.lease()).collect();
        (!leases.is_empty()).then(|| TakenLeases { leases, orphans: orphans.clone() })
    }

    /// The caller holds them from here on.
    pub(crate) fn keep(mut self) {
        self.leases.clear();
    }
}

impl Drop for TakenLeases {
    fn drop(&mut self) {
        if !self.leases.is_empty() {
            self.orphans.add(self.leases.drain(..));
        }
    }
}
