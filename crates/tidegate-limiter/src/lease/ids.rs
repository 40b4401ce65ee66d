//! Lease IDs: random, so that they cannot be guessed, and never zero; and the keys that sign them.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::LeaseId;

use super::keys::LeaseKeys;

pub(crate) struct LeaseIds {
    keys: Arc<LeaseKeys>,
    random: RandomState,
    next: AtomicU64,
}

impl LeaseIds {
    pub(crate) fn new(secret: Option<&[u8]>) -> Self {
        let keys = Arc::new(LeaseKeys::new(secret));
        LeaseIds { keys, random: RandomState::new(), next: AtomicU64::new(0) }
    }

    pub(crate) fn keys(&self) -> &Arc<LeaseKeys> {
        &self.keys
    }

    pub(crate) fn next(&self) -> LeaseId {
        let hash = self.random.hash_one(self.next.fetch_add(1, Ordering::Relaxed));
        LeaseId(NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN))
    }
}
