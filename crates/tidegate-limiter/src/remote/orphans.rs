//! Leases that nobody holds: their requests were dropped, or never learnt whether they had got them. They are given back
//! by their names, as soon as the store answers; what is lost even so ends by its time to live.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::owned::{OwnedLease, OwnedSpends};

/// Leases to be given back.
pub(crate) struct Orphans {
    leases: Mutex<VecDeque<OwnedLease>>,
    most: usize,
    lost: AtomicU64,
}

impl Orphans {
    pub(crate) fn new(most: usize) -> Self {
        Orphans { leases: Mutex::default(), most, lost: AtomicU64::new(0) }
    }

    pub(crate) fn add(&self, leases: impl IntoIterator<Item = OwnedLease>) {
        let mut queue = self.leases.lock();
        for lease in leases {
            if queue.len() < self.most {
                queue.push_back(lease);
            } else {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn next(&self) -> Option<OwnedLease> {
        self.leases.lock().pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.leases.lock().len()
    }

    /// Leases that must end by themselves because there was no room to remember them.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// The leases that a request has got. They go back when this is dropped, unless somebody holds them.
pub(crate) struct TakenLeases {
    leases: SmallVec<[OwnedLease; 1]>,
    orphans: Arc<Orphans>,
}

impl TakenLeases {
    /// The leases that a request with these spends takes if it passes; none if it takes none.
    pub(crate) fn of(spends: &OwnedSpends, orphans: &Arc<Orphans>) -> Option<Self> {
        let leases: SmallVec<[OwnedLease; 1]> = spends.iter().filter_map(|spend| spend.lease()).collect();
        (!leases.is_empty()).then(|| TakenLeases { leases, orphans: orphans.clone() })
    }

    /// Somebody holds them from here on.
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
