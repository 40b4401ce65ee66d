//! Connections per runtime: a core that serves requests alone also talks to Redis alone.
//!
//! The server runs one single-threaded runtime per core. A connection is run by a task of the runtime that made it, so a
//! connection shared between cores would make each wait for the other's busy loop. Each runtime therefore has its own
//! lane, made when it first asks. A library user's multi-threaded runtime has one lane too.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};

/// More runtimes than these are tests that come and go: the oldest lane is dropped.
const MOST_LANES: usize = 1_024;

/// One lane per runtime.
pub(crate) struct Lanes<L> {
    /// Tells stores of one process apart.
    store: u64,
    all: Mutex<Vec<(Id, Arc<L>)>>,
}

/// Who a lane belongs to.
type Owner = (u64, Id);

impl<L: Send + Sync + 'static> Lanes<L> {
    pub(crate) fn new() -> Self {
        static STORES: AtomicU64 = AtomicU64::new(0);
        Lanes { store: STORES.fetch_add(1, Ordering::Relaxed), all: Mutex::default() }
    }

    /// The lane of the runtime that this is called in, made if there is none yet; none outside any runtime.
    pub(crate) fn get(&self, make: impl FnOnce() -> L) -> Option<Arc<L>> {
        thread_local! {
            /// The lanes that this thread used last, so that it need not lock.
            static NEAR: RefCell<Vec<(Owner, Weak<dyn std::any::Any + Send + Sync>)>> = const { RefCell::new(Vec::new()) };
        }
        let owner = (self.store, Handle::try_current().ok()?.id());
        let near = NEAR.with_borrow(|near| {
            near.iter().find(|(known, _)| *known == owner).and_then(|(_, lane)| lane.upgrade())
        });
        if let Some(Ok(lane)) = near.map(Arc::downcast::<L>) {
            return Some(lane);
        }
        let lane = self.find(owner.1, make);
        let weak: Weak<dyn std::any::Any + Send + Sync> = Arc::downgrade(&(Arc::clone(&lane) as Arc<_>));
        NEAR.with_borrow_mut(|near| {
            near.retain(|(known, lane)| *known != owner && lane.strong_count() > 0);
            near.push((owner, weak));
        });
        Some(lane)
    }

    fn find(&self, runtime: Id, make: impl FnOnce() -> L) -> Arc<L> {
        let mut all = self.all.lock();
        if let Some((_, lane)) = all.iter().find(|(known, _)| *known == runtime) {
            return Arc::clone(lane);
        }
        if all.len() == MOST_LANES {
            all.remove(0);
        }
        let lane = Arc::new(make());
        all.push((runtime, Arc::clone(&lane)));
        lane
    }
}

impl<L> std::fmt::Debug for Lanes<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lanes").field("count", &self.all.lock().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().unwrap()
    }

    #[test]
    fn each_runtime_has_a_lane_of_its_own_and_keeps_it() {
        let lanes = Lanes::new();
        let made = AtomicU64::new(0);
        let get = || lanes.get(|| made.fetch_add(1, Ordering::Relaxed)).map(|lane| *lane);
        let (one, other) = (runtime(), runtime());
        assert_eq!(one.block_on(async { (get(), get()) }), (Some(0), Some(0)));
        assert_eq!(other.block_on(async { get() }), Some(1));
        assert_eq!(one.block_on(async { get() }), Some(0));
    }

    #[test]
    fn two_stores_share_no_lane() {
        let (one, other) = (Lanes::new(), Lanes::new());
        runtime().block_on(async {
            assert_eq!(one.get(|| 1).as_deref(), Some(&1));
            assert_eq!(other.get(|| 2).as_deref(), Some(&2));
        });
    }

    #[test]
    fn there_is_none_outside_a_runtime() {
        assert!(Lanes::new().get(|| 1).is_none());
    }
}
