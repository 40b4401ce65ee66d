//! Bounds the requests in flight, before a request is identified.
//!
//! A request is in flight from here until its answer's last byte, its tunnel's end, or its client's disconnect. An admitted
//! request may still be refused by rules.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The number of requests in flight, over all workers.
#[derive(Debug)]
pub struct Admission {
    in_flight: AtomicUsize,
    most: NonZeroUsize,
    turned_away: AtomicU64,
}

impl Admission {
    pub(crate) fn new(most: NonZeroUsize) -> Arc<Self> {
        Arc::new(Admission { in_flight: AtomicUsize::new(0), most, turned_away: AtomicU64::new(0) })
    }

    /// Requests in flight now.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// The bound.
    #[must_use]
    pub fn most(&self) -> NonZeroUsize {
        self.most
    }

    /// Requests rejected because there were too many.
    #[must_use]
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// Admits one more request, unless there are too many.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Entered> {
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= self.most.get() {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Entered(Arc::clone(self)))
    }
}

/// An admitted request; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Entered(Arc<Admission>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_let_in_than_there_is_room_for_and_who_leaves_makes_room() {
        let admission = Admission::new(NonZeroUsize::new(2).unwrap());
        let (first, _second) = (admission.enter().unwrap(), admission.enter().unwrap());
        assert!(admission.enter().is_none());
        assert_eq!((admission.in_flight(), admission.turned_away()), (2, 1));
        drop(first);
        assert!(admission.enter().is_some());
    }
}
