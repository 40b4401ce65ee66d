//! Leases that this node issued while their store was unavailable. The store does not know of them until they are handed
//! over; from then on they live in both places, and end in both: what this node issued of its share stays issued.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tidegate_core::{LeaseId, Timestamp};

use crate::cell::{KeptAsk, KeptLease};
use crate::cell_hash::CellHash;

/// Leases issued here: bounded; the rest is counted and never handed over.
pub(crate) struct IssuedLeases {
    leases: Mutex<HashMap<(CellHash, LeaseId), Lent, RandomState>>,
    most: usize,
    forgotten: AtomicU64,
}

struct Lent {
    ask: KeptAsk,
    given: Timestamp,
    knows: StoreKnows,
}

/// Whether the store knows of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKnows {
    NotYet,
    Yes,
}

impl IssuedLeases {
    pub(crate) fn new(most: usize) -> Self {
        IssuedLeases { leases: Mutex::default(), most, forgotten: AtomicU64::new(0) }
    }

    /// `ask` took its lease at `given`.
    pub(crate) fn add(&self, ask: KeptAsk, given: Timestamp) {
        let Some(lease) = ask.lease() else { return };
        let mut leases = self.leases.lock();
        if leases.len() >= self.most {
            self.forgotten.fetch_add(1, Ordering::Relaxed);
            return;
        }
        leases.insert(lease.name(), Lent { ask, given, knows: StoreKnows::NotYet });
    }

    /// The leases that match `fits` and must be handed over to the store. Expired ones are removed.
    pub(crate) fn due(&self, now: Timestamp, fits: impl Fn(&KeptAsk) -> bool) -> Vec<KeptAsk> {
        let mut leases = self.leases.lock();
        leases.retain(|_, lent| {
            lent.ask.cell.limit().lease_ttl().is_some_and(|ttl| now.since(lent.given) < ttl)
        });
        let due = leases.values().filter(|lent| lent.knows == StoreKnows::NotYet && fits(&lent.ask));
        due.map(|lent| lent.ask.clone()).collect()
    }

    /// The store knows of this lease now; false if it has ended here meanwhile.
    pub(crate) fn is_known_now(&self, lease: &KeptLease) -> bool {
        let mut leases = self.leases.lock();
        let Some(lent) = leases.get_mut(&lease.name()) else { return false };
        lent.knows = StoreKnows::Yes;
        true
    }

    /// Whether the store knows of this lease; `None` if it was not issued here.
    pub(crate) fn get(&self, lease: &KeptLease) -> Option<StoreKnows> {
        self.leases.lock().get(&lease.name()).map(|lent| lent.knows)
    }

    /// The lease has ended here. Returns whether the store knows of it.
    pub(crate) fn end(&self, lease: &KeptLease) -> Option<StoreKnows> {
        self.leases.lock().remove(&lease.name()).map(|lent| lent.knows)
    }

    /// How many must be handed over to the store.
    pub(crate) fn unknown(&self) -> usize {
        self.leases.lock().values().filter(|lent| lent.knows == StoreKnows::NotYet).count()
    }

    /// Leases that the store never learns of, for lack of room.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }
}
