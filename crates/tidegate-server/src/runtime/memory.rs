//! Bounds the memory of incomplete requests.
//!
//! A request that arrived whole costs nothing here. One that arrives in pieces holds what has come, and an HTTP/2 connection
//! may start a thousand: so each connection has a budget, and each worker one for all its connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A budget in bytes.
#[derive(Debug)]
pub(super) struct Memory {
    held: AtomicUsize,
    most: usize,
}

impl Memory {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Memory { held: AtomicUsize::new(0), most })
    }

    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) <= self.most {
            return true;
        }
        self.give_back(bytes);
        false
    }

    fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Bytes held by one request, released when dropped.
#[derive(Debug)]
pub struct Held {
    budgets: [Arc<Memory>; 2],
    bytes: usize,
}

impl Held {
    pub(super) fn of(budgets: [Arc<Memory>; 2]) -> Self {
        Held { budgets, bytes: 0 }
    }

    /// Holds `more`, unless that exceeds a budget.
    #[must_use]
    pub fn grow(&mut self, more: usize) -> bool {
        let [connection, worker] = &self.budgets;
        if !connection.take(more) {
            return false;
        }
        if !worker.take(more) {
            connection.give_back(more);
            return false;
        }
        self.bytes += more;
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budgets.iter().for_each(|budget| budget.give_back(self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_connection_holds_counts_for_its_worker_too_and_comes_back() {
        let (worker, [one, other]) = (Memory::new(150), [Memory::new(100), Memory::new(100)]);
        let held = |connection: &Arc<Memory>| Held::of([connection.clone(), worker.clone()]);
        let (mut first, mut second) = (held(&one), held(&other));
        assert!(first.grow(60) && first.grow(40));
        assert!(!first.grow(1), "its connection is full");
        assert!(!second.grow(51), "its worker is full");
        assert!(second.grow(50));
        assert_eq!((one.held(), other.held(), worker.held()), (100, 50, 150));
        drop(first);
        assert!(second.grow(50));
        drop(second);
        assert_eq!((one.held(), other.held(), worker.held()), (0, 0, 0));
    }
}
