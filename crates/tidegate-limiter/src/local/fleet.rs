//! The number of limiters that share the store: the divisor of a limit where each node decides alone.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_core::{Micros, Timestamp};

/// Every node sends a heartbeat once a second: after more than that, all that started together have sent one.
const SETTLED_AFTER: Micros = Micros::from_millis(1_500);

/// The number of limiters that share the store, as far as is known.
pub(crate) struct Fleet {
    /// This limiter's ID in the fleet.
    pub(crate) member: u64,
    /// Whether the store may count this limiter.
    pub(crate) joined: AtomicBool,
    /// The operator's number: used until the store has answered for a while.
    expected: u64,
    /// The store's last count; 0 before its first answer.
    counted: AtomicU64,
    settling: Mutex<Option<Timestamp>>,
    settled: AtomicBool,
    /// Why the store did not take the last heartbeat.
    unheard: Mutex<Option<String>>,
    /// The uptime at which the store answered the last heartbeat that it took, and how long that took.
    answered: Mutex<Option<(Micros, Micros)>>,
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
            answered: Mutex::new(None),
        }
    }

    /// The last known number of limiters, this one included.
    pub(crate) fn size(&self) -> u64 {
        let counted = self.counted.load(Ordering::Relaxed).max(1);
        if self.settled.load(Ordering::Relaxed) { counted } else { counted.max(self.expected) }
    }

    /// Whether that number is reliable: the operator set it, or the store has answered for so long that nodes which started
    /// together know of each other.
    pub(crate) fn is_settled(&self) -> bool {
        self.expected > 0 || self.settled.load(Ordering::Relaxed)
    }

    /// The store took a heartbeat, and counts `size` limiters.
    pub(crate) fn heard(&self, size: usize, now: Timestamp) {
        self.counted.store(u64::try_from(size).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
        let first = *self.settling.lock().get_or_insert(now);
        if now.since(first) >= SETTLED_AFTER {
            self.settled.store(true, Ordering::Relaxed);
        }
        *self.unheard.lock() = None;
    }

    /// Its answer came at this `uptime`, after it `took` so long.
    pub(crate) fn answered(&self, uptime: Micros, took: Micros) {
        *self.answered.lock() = Some((uptime, took));
    }

    /// How long before `uptime` the store last answered, and how long that took.
    pub(crate) fn last_answer(&self, uptime: Micros) -> Option<(Micros, Micros)> {
        let answered = *self.answered.lock();
        answered.map(|(at, took)| (uptime.saturating_sub(at), took))
    }

    /// The store did not take a heartbeat. The count stays as it was. True if it took the previous one.
    pub(crate) fn unheard(&self, why: String) -> bool {
        self.unheard.lock().replace(why).is_none()
    }

    pub(crate) fn why_unheard(&self) -> Option<String> {
        self.unheard.lock().clone()
    }
}
