//! Remembers for a minute what was answered to a request that named itself, so that a retry spends nothing again.
//!
//! It remembers on this node only, and a bounded number; it never waits.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::{Micros, Timestamp};

/// A name that a caller gave its request, and a fingerprint of what it asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// The name, within its domain.
    pub id: String,
    /// Whose rules apply.
    pub domain: String,
    /// Stands for everything that was asked, so that a name used for two things is noticed.
    pub fingerprint: u64,
}

/// Why a named request is not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayError {
    /// Another request had this name within the last minute.
    UsedForAnother,
    /// The first one is still being decided.
    UnderWay,
}

impl std::fmt::Display for ReplayError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ReplayError::UsedForAnother => "request_id was used for another request less than a minute ago",
            ReplayError::UnderWay => "a request with this request_id is still being decided",
        })
    }
}

impl std::error::Error for ReplayError {}

/// What was answered to named requests. `T` is the answer.
#[derive(Debug)]
pub struct ReplayCache<T> {
    inner: Mutex<Inner<T>>,
    bounds: ReplayBounds,
}

/// How much is remembered. Where there is no room, the oldest is forgotten before its minute is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayBounds {
    /// So many named requests.
    pub requests: usize,
    /// So many bytes of names and answers, as those who answer count them.
    pub bytes: usize,
}

#[derive(Debug)]
struct Inner<T> {
    known: HashMap<Arc<Name>, Remembered<T>>,
    /// In the order in which they are forgotten. One that was dropped without an answer keeps its place until then.
    order: VecDeque<Turn>,
    next_turn: u64,
    bytes: usize,
}

/// Domain and id.
type Name = (String, String);

/// One use of a name.
#[derive(Clone, Debug)]
struct Turn {
    /// Tells it from other uses of the same name.
    number: u64,
    name: Arc<Name>,
    until: Timestamp,
}

#[derive(Debug)]
struct Remembered<T> {
    turn: u64,
    fingerprint: u64,
    /// None while it is being decided.
    answer: Option<Arc<T>>,
    bytes: usize,
}

/// A named request that must be decided now. Dropped without an answer, it is forgotten.
#[derive(Debug)]
pub struct FirstTime<'c, T> {
    cache: &'c ReplayCache<T>,
    turn: Option<Turn>,
}

/// How long an answer is remembered.
const KEPT: Micros = Micros::from_secs(60);

impl<T> ReplayCache<T> {
    /// Remembers as much as `bounds` say.
    #[must_use]
    pub fn new(bounds: ReplayBounds) -> Self {
        let inner = Inner { known: HashMap::new(), order: VecDeque::new(), next_turn: 0, bytes: 0 };
        ReplayCache { inner: Mutex::new(inner), bounds }
    }

    /// The answer that was given to `request`, or leave to decide it.
    ///
    /// # Errors
    /// When the name stands for another request, or the first one is still being decided.
    pub fn look_up(
        &self,
        request: &RequestId,
        now: Timestamp,
    ) -> Result<Result<Arc<T>, FirstTime<'_, T>>, ReplayError> {
        let mut inner = self.inner.lock();
        inner.forget_while(|_, oldest| oldest.until <= now);
        let name = (request.domain.clone(), request.id.clone());
        match inner.known.get(&name) {
            Some(known) if known.fingerprint != request.fingerprint => Err(ReplayError::UsedForAnother),
            Some(Remembered { answer: Some(answer), .. }) => Ok(Ok(answer.clone())),
            Some(_) => Err(ReplayError::UnderWay),
            None => {
                let ReplayBounds { requests, bytes } = self.bounds;
                inner.forget_while(|inner, _| inner.order.len() >= requests || inner.bytes >= bytes);
                let turn = inner.add(name, request.fingerprint, now + KEPT);
                Ok(Err(FirstTime { cache: self, turn: Some(turn) }))
            }
        }
    }
}

impl<T> Inner<T> {
    /// Forgets the oldest while `over` says so.
    fn forget_while(&mut self, over: impl Fn(&Self, &Turn) -> bool) {
        while let Some(oldest) = self.order.front()
            && over(self, oldest)
            && let Some(oldest) = self.order.pop_front()
        {
            self.remove(&oldest);
        }
    }

    fn add(&mut self, name: Name, fingerprint: u64, until: Timestamp) -> Turn {
        let turn = Turn { number: self.next_turn, name: Arc::new(name), until };
        self.next_turn += 1;
        let known = Remembered { turn: turn.number, fingerprint, answer: None, bytes: 0 };
        self.known.insert(turn.name.clone(), known);
        self.order.push_back(turn.clone());
        turn
    }

    /// Forgets one use of a name, unless it is forgotten already and the name used anew.
    fn remove(&mut self, turn: &Turn) {
        if let Some(known) = self.of(turn) {
            let bytes = known.bytes;
            self.known.remove(&turn.name);
            self.bytes -= bytes;
        }
    }

    fn of(&mut self, turn: &Turn) -> Option<&mut Remembered<T>> {
        self.known.get_mut(&turn.name).filter(|known| known.turn == turn.number)
    }
}

impl<T> FirstTime<'_, T> {
    /// Remembers the answer, which takes so many bytes.
    pub fn answered(mut self, answer: T, bytes: usize) -> Arc<T> {
        let answer = Arc::new(answer);
        let mut inner = self.cache.inner.lock();
        if let Some(turn) = self.turn.take()
            && let Some(known) = inner.of(&turn)
        {
            known.answer = Some(answer.clone());
            known.bytes = bytes;
            inner.bytes += bytes;
        }
        answer
    }
}

impl<T> Drop for FirstTime<'_, T> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.cache.inner.lock().remove(&turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: ReplayBounds = ReplayBounds { requests: 10, bytes: 1_000 };

    fn named(id: &str, fingerprint: u64) -> RequestId {
        RequestId { id: id.into(), domain: "api".into(), fingerprint }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn answer(cache: &ReplayCache<u32>, id: &str, answer: u32, now: Timestamp) {
        cache.look_up(&named(id, 7), now).unwrap().unwrap_err().answered(answer, 100);
    }

    fn remembers(cache: &ReplayCache<u32>, id: &str, now: Timestamp) -> bool {
        cache.look_up(&named(id, 7), now).unwrap().is_ok()
    }

    #[test]
    fn a_retry_within_a_minute_gets_the_same_answer_and_a_later_one_is_decided_anew() {
        let cache = ReplayCache::new(BOUNDS);
        answer(&cache, "a", 1, at(0));
        assert_eq!(*cache.look_up(&named("a", 7), at(59)).unwrap().unwrap(), 1);
        assert!(cache.look_up(&named("a", 7), at(60)).unwrap().is_err());
    }

    #[test]
    fn a_name_used_for_another_request_is_an_error() {
        let cache = ReplayCache::new(BOUNDS);
        answer(&cache, "a", 1, at(0));
        assert_eq!(cache.look_up(&named("a", 8), at(1)).unwrap_err(), ReplayError::UsedForAnother);
    }

    #[test]
    fn a_request_still_under_way_is_not_decided_twice() {
        let cache: ReplayCache<u32> = ReplayCache::new(BOUNDS);
        let first = cache.look_up(&named("a", 7), at(0)).unwrap().unwrap_err();
        assert_eq!(cache.look_up(&named("a", 7), at(0)).unwrap_err(), ReplayError::UnderWay);
        drop(first);
        assert!(cache.look_up(&named("a", 7), at(0)).unwrap().is_err());
    }

    #[test]
    fn where_there_is_no_room_the_oldest_is_forgotten() {
        let requests = ReplayCache::new(ReplayBounds { requests: 2, ..BOUNDS });
        let bytes = ReplayCache::new(ReplayBounds { bytes: 200, ..BOUNDS });
        for cache in [requests, bytes] {
            for (id, number) in [("a", 1), ("b", 2), ("c", 3)] {
                answer(&cache, id, number, at(0));
            }
            let inner = cache.inner.lock();
            let known = |id: &str| inner.known.contains_key(&("api".to_owned(), id.to_owned()));
            assert_eq!([known("a"), known("b"), known("c")], [false, true, true]);
        }
    }

    #[test]
    fn requests_that_come_to_nothing_take_no_more_room_than_others() {
        let cache: ReplayCache<u32> = ReplayCache::new(BOUNDS);
        for number in 0..100 {
            drop(cache.look_up(&named(&number.to_string(), 7), at(0)));
        }
        assert!(cache.inner.lock().order.len() <= BOUNDS.requests);
    }

    #[test]
    fn an_answer_that_comes_when_its_name_stands_for_another_request_is_not_taken_for_its() {
        let cache: ReplayCache<u32> = ReplayCache::new(ReplayBounds { requests: 1, ..BOUNDS });
        let slow = cache.look_up(&named("a", 7), at(0)).unwrap().unwrap_err();
        answer(&cache, "b", 2, at(0));
        assert!(remembers(&cache, "b", at(0)));
        let newer = cache.look_up(&named("a", 8), at(0)).unwrap().unwrap_err();
        slow.answered(1, 100);
        newer.answered(3, 100);
        assert_eq!(*cache.look_up(&named("a", 8), at(0)).unwrap().unwrap(), 3);
    }

    #[test]
    fn what_is_forgotten_gives_its_bytes_back() {
        let cache = ReplayCache::new(BOUNDS);
        for minute in 0..5 {
            for id in ["a", "b", "c"] {
                answer(&cache, id, 1, at(60 * minute));
            }
        }
        assert_eq!(cache.inner.lock().bytes, 300);
    }
}
