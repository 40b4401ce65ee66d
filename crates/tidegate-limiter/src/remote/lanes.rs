//! Who waits for which call: per lane (the tags of a request) one call is under way, and those that come meanwhile queue
//! for the next.
//!
//! Lanes hold requests and hand them out in order; they call nobody. A lane exists while its call is under way. What does
//! not fit is given back at once: a queue without an end only makes everybody late.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::cell_hash::LaneId;

/// One call carries at most so many requests: a Redis is then never held for more than about a millisecond.
pub(crate) const LARGEST_BATCH: usize = 128;

/// Requests for one call.
pub(crate) type Batch<R> = SmallVec<[R; 1]>;

/// The lanes of one limiter.
pub(crate) struct Lanes<R> {
    shards: Box<[Mutex<OpenLanes<R>>]>,
    open: AtomicUsize,
    waiting: AtomicUsize,
    bounds: LaneBounds,
}

/// Those who wait, by lane.
type OpenLanes<R> = HashMap<LaneId, VecDeque<R>, RandomState>;

/// How many calls may be under way at once, and how many requests may wait for the next ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneBounds {
    /// Calls under way, each of one lane.
    pub calls: usize,
    /// Requests that wait in one lane.
    pub waiting_in_a_lane: usize,
    /// Requests that wait in all lanes together.
    pub waiting: usize,
}

impl Default for LaneBounds {
    fn default() -> Self {
        LaneBounds { calls: 8_192, waiting_in_a_lane: 8 * LARGEST_BATCH, waiting: 65_536 }
    }
}

/// What becomes of requests that join a lane.
pub(crate) enum Joined<R> {
    /// The lane was empty: whoever joined starts the call for these; the others, if there are more, wait for the next.
    First(Batch<R>),
    /// They wait for the next call.
    Queued,
    /// There is no room.
    Full(Batch<R>),
}

/// Enough that two threads of a shared limiter seldom meet.
const SHARDS: usize = 16;

impl<R> Lanes<R> {
    pub(crate) fn new(bounds: LaneBounds) -> Self {
        Lanes {
            shards: (0..SHARDS).map(|_| Mutex::new(HashMap::default())).collect(),
            open: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            bounds,
        }
    }

    pub(crate) fn bounds(&self) -> LaneBounds {
        self.bounds
    }

    /// Requests that wait for a call to come.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn join(&self, lane: LaneId, mut requests: Batch<R>) -> Joined<R> {
        let mut lanes = self.shard(lane).lock();
        let first = !lanes.contains_key(&lane);
        let starting = if first { requests.len().min(LARGEST_BATCH) } else { 0 };
        let queueing = requests.len() - starting;
        let queued = lanes.get(&lane).map_or(0, VecDeque::len);
        let fits = queued + queueing <= self.bounds.waiting_in_a_lane
            && self.waiting() + queueing <= self.bounds.waiting
            && (!first || self.open() < self.bounds.calls);
        if !fits {
            return Joined::Full(requests);
        }
        self.waiting.fetch_add(queueing, Ordering::Relaxed);
        self.open.fetch_add(usize::from(first), Ordering::Relaxed);
        lanes.entry(lane).or_default().extend(requests.drain(starting..));
        if first { Joined::First(requests) } else { Joined::Queued }
    }

    /// The requests of the next call, in the order in which they came; none closes the lane.
    pub(crate) fn next(&self, lane: LaneId) -> Option<Batch<R>> {
        let mut lanes = self.shard(lane).lock();
        let queue = lanes.get_mut(&lane)?;
        if queue.is_empty() {
            lanes.remove(&lane);
            self.open.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let batch: Batch<R> = queue.drain(..queue.len().min(LARGEST_BATCH)).collect();
        self.waiting.fetch_sub(batch.len(), Ordering::Relaxed);
        Some(batch)
    }

    /// Closes the lane: everybody who still waits in it.
    pub(crate) fn close(&self, lane: LaneId) -> VecDeque<R> {
        let Some(queue) = self.shard(lane).lock().remove(&lane) else { return VecDeque::new() };
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.waiting.fetch_sub(queue.len(), Ordering::Relaxed);
        queue
    }

    /// Calls under way.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    fn shard(&self, lane: LaneId) -> &Mutex<OpenLanes<R>> {
        &self.shards[usize::try_from(lane.0 % SHARDS as u64).unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANE: LaneId = LaneId(7);

    fn lanes(in_one_lane: usize) -> Lanes<usize> {
        Lanes::new(LaneBounds { calls: 2, waiting_in_a_lane: in_one_lane, waiting: in_one_lane })
    }

    fn batch(requests: impl IntoIterator<Item = usize>) -> Batch<usize> {
        requests.into_iter().collect()
    }

    #[test]
    fn what_comes_while_a_call_is_under_way_is_carried_by_the_next_in_order() {
        let lanes = lanes(1_000);
        assert!(matches!(lanes.join(LANE, batch([0])), Joined::First(first) if first[..] == [0]));
        for request in 1..=300 {
            assert!(matches!(lanes.join(LANE, batch([request])), Joined::Queued));
        }
        let calls: Vec<Batch<usize>> = std::iter::from_fn(|| lanes.next(LANE)).collect();
        assert_eq!(calls.iter().map(SmallVec::len).collect::<Vec<_>>(), [128, 128, 44]);
        assert!(calls.into_iter().flatten().eq(1..=300));
        assert_eq!((lanes.waiting(), lanes.open()), (0, 0));
    }

    #[test]
    fn another_lane_does_not_wait() {
        let lanes = lanes(10);
        assert!(matches!(lanes.join(LANE, batch([0])), Joined::First(_)));
        assert!(matches!(lanes.join(LaneId(8), batch([1])), Joined::First(_)));
    }

    #[test]
    fn a_group_larger_than_a_call_is_carried_by_several() {
        let lanes = lanes(1_000);
        let Joined::First(first) = lanes.join(LANE, batch(0..200)) else { panic!("the lane was empty") };
        assert_eq!((first.len(), lanes.waiting()), (128, 72));
        assert!(lanes.next(LANE).unwrap().into_iter().eq(128..200));
    }

    #[test]
    fn what_does_not_fit_is_given_back() {
        let lanes = lanes(2);
        assert!(matches!(lanes.join(LANE, batch([0])), Joined::First(_)));
        assert!(matches!(lanes.join(LANE, batch([1, 2])), Joined::Queued));
        assert!(matches!(lanes.join(LANE, batch([3])), Joined::Full(back) if back[..] == [3]));
        // A lane of its own does not queue.
        assert!(matches!(lanes.join(LaneId(8), batch([4])), Joined::First(_)));
        assert!(matches!(lanes.join(LaneId(9), batch([5])), Joined::Full(_)));
        assert!(lanes.close(LANE).into_iter().eq([1, 2]));
        assert_eq!((lanes.waiting(), lanes.open()), (0, 1));
        assert!(matches!(lanes.join(LaneId(9), batch([5])), Joined::First(_)));
    }
}
