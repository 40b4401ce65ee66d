//! How many limiters share the store: what a limit is divided by where each node decides by itself.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// How many limiters share the store, as far as is known.
pub(crate) struct Fleet {
    /// This one's own name among them.
    pub(crate) member: u64,
    size: AtomicU64,
    /// Why the store did not take the last heartbeat.
    unheard: Mutex<Option<String>>,
}

impl Fleet {
    pub(crate) fn new(member: u64) -> Self {
        Fleet { member, size: AtomicU64::new(1), unheard: Mutex::new(None) }
    }

    /// The last known number of limiters, this one included.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// The store took a heartbeat, and counts so many.
    pub(crate) fn heard(&self, size: usize) {
        self.size.store(u64::try_from(size).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
        *self.unheard.lock() = None;
    }

    /// The store did not take a heartbeat. The number stays what it was. True if it took the one before.
    pub(crate) fn unheard(&self, why: String) -> bool {
        self.unheard.lock().replace(why).is_none()
    }

    pub(crate) fn why_unheard(&self) -> Option<String> {
        self.unheard.lock().clone()
    }
}
