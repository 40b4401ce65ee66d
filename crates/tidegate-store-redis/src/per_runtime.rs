//! Connections per runtime, so that each core talks to Redis independently.
//!
//! The server runs one single-threaded runtime per core. A connection is driven by a task of the runtime that made it,
//! so a shared connection would make each core wait for the other's event loop. Each runtime therefore has its own, made
//! on first use. A library user's multi-threaded runtime has its own too.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};

/// Only short-lived test runtimes exceed this: the oldest entry is dropped.
const MOST_RUNTIMES: usize = 1_024;

/// One `T` per runtime.
pub(crate) struct PerRuntime<T> {
    /// Distinguishes the stores of one process.
    store: u64,
    all: Mutex<Vec<(Id, Arc<T>)>>,
}

/// The owner of a `T`: its store and runtime.
type Owner = (u64, Id);

impl<T: Send + Sync + 'static> PerRuntime<T> {
    pub(crate) fn new() -> Self {
        static STORES: AtomicU64 = AtomicU64::new(0);
        PerRuntime { store: STORES.fetch_add(1, Ordering::Relaxed), all: Mutex::default() }
    }

    /// The `T` of the current runtime, made on first use; none outside a runtime.
    pub(crate) fn get(&self, make: impl FnOnce() -> T) -> Option<Arc<T>> {
        thread_local! {
            /// The `T`s this thread used last, to avoid the lock.
            static NEAR: RefCell<Vec<(Owner, Weak<dyn std::any::Any + Send + Sync>)>> = const { RefCell::new(Vec::new()) };
        }
        let owner = (self.store, Handle::try_current().ok()?.id());
        let near = NEAR.with_borrow(|near| {
            near.iter().find(|(known, _)| *known == owner).and_then(|(_, own)| own.upgrade())
        });
        if let Some(Ok(own)) = near.map(Arc::downcast::<T>) {
            return Some(own);
        }
        let own = self.find(owner.1, make);
        let weak: Weak<dyn std::any::Any + Send + Sync> = Arc::downgrade(&(Arc::clone(&own) as Arc<_>));
        NEAR.with_borrow_mut(|near| {
            near.retain(|(known, own)| *known != owner && own.strong_count() > 0);
            near.push((owner, weak));
        });
        Some(own)
    }

    fn find(&self, runtime: Id, make: impl FnOnce() -> T) -> Arc<T> {
        let mut all = self.all.lock();
        if let Some((_, own)) = all.iter().find(|(known, _)| *known == runtime) {
            return Arc::clone(own);
        }
        if all.len() == MOST_RUNTIMES {
            all.remove(0);
        }
        let own = Arc::new(make());
        all.push((runtime, Arc::clone(&own)));
        own
    }
}

impl<T> std::fmt::Debug for PerRuntime<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PerRuntime").field("count", &self.all.lock().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().unwrap()
    }

    #[test]
    fn each_runtime_has_its_own_and_keeps_it() {
        let per_runtime = PerRuntime::new();
        let made = AtomicU64::new(0);
        let get = || per_runtime.get(|| made.fetch_add(1, Ordering::Relaxed)).map(|own| *own);
        let (one, other) = (runtime(), runtime());
        assert_eq!(one.block_on(async { (get(), get()) }), (Some(0), Some(0)));
        assert_eq!(other.block_on(async { get() }), Some(1));
        assert_eq!(one.block_on(async { get() }), Some(0));
    }

    #[test]
    fn two_stores_share_nothing() {
        let (one, other) = (PerRuntime::new(), PerRuntime::new());
        runtime().block_on(async {
            assert_eq!(one.get(|| 1).as_deref(), Some(&1));
            assert_eq!(other.get(|| 2).as_deref(), Some(&2));
        });
    }

    #[test]
    fn there_is_none_outside_a_runtime() {
        assert!(PerRuntime::new().get(|| 1).is_none());
    }
}
