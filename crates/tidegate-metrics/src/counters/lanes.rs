//! Counters in several copies (lanes), so that cores do not contend for a cache line.
//!
//! Each thread uses one lane. Threads may share a lane (a large machine has more threads than lanes), so additions are still
//! atomic; they are merely almost never contended.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of lanes. More gain little: with one thread per core, 64 cores are four to a lane.
pub(super) const LANES: usize = 16;

/// The lane of this thread.
pub(super) fn mine() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % LANES;
    }
    MINE.with(|lane| *lane)
}

/// One `T` per lane, each on cache lines of its own.
#[derive(Default)]
pub(super) struct Lanes<T>([Padded<T>; LANES]);

#[repr(align(128))]
#[derive(Default)]
struct Padded<T>(T);

impl<T> Lanes<T> {
    /// This thread's copy.
    pub(super) fn mine(&self) -> &T {
        &self.0[mine()].0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|lane| &lane.0)
    }
}
