//! How many limiters share the store: what a limit is divided by where each node decides by itself.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_core::{Micros, Timestamp};

/// Every node beats once a second: after more than one, all that started together have.
const SETTLED_AFTER: Micros = Micros::from_millis(1_500);

/// How many limiters share the store, as far as is known.
pub(crate) struct Fleet {
    /// This one's own name among them.
    pub(crate) member: u64,
    /// Whether the store may count this one.
    pub(crate) joined: AtomicBool,
    /// How many there are as far as the operator knows: what counts until the store was heard for a while.
    expected: u64,
    /// How many the store counted last; none before it was first heard.
    counted: AtomicU64,
    settling: Mutex<Option<Timestamp>>,
    settled: AtomicBool,
    /// Why the store did not take the last heartbeat.
    unheard: Mutex<Option<String>>,
}

impl Fleet {
    pub(crate) fn new(member: u64, expected: Option<NonZeroU64>) -> Self {
        Fleet {
            member,
            joined: AtomicBool::new(false),
            expected: expected.map_or(0, NonZeroU64::get),
            counted: AtomicU64::new(0),
            settling: Mutex::new(None),
            settled: AtomicBool::new(false),
            unheard: Mutex::new(None),
        }
    }

    /// The last known number of limiters, this one included.
    pub(crate) fn size(&self) -> u64 {
        let counted = self.counted.load(Ordering::Relaxed).max(1);
        if self.settled.load(Ordering::Relaxed) { counted } else { counted.max(self.expected) }
    }

    /// Whether that number can be relied on: the operator said it, or the store was heard for so long that nodes which
    /// started together know of each other.
    pub(crate) fn is_settled(&self) -> bool {
        self.expected > 0 || self.settled.load(Ordering::Relaxed)
    }

    /// The store took a heartbeat, and counts so many.
    pub(crate) fn heard(&self, size: usize, now: Timestamp) {
        self.counted.store(u64::try_from(size).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
        let first = *self.settling.lock().get_or_insert(now);
        if now.since(first) >= SETTLED_AFTER {
            self.settled.store(true, Ordering::Relaxed);
        }
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
