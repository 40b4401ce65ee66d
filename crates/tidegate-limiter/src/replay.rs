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
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Another request had this name within the last minute.
    #[error("request_id was used for another request less than a minute ago")]
    UsedForAnother,
    /// The first one is still being decided.
    #[error("a request with this request_id is still being decided")]
    UnderWay,
}

/// What was answered to named requests. `T` is the answer.
#[derive(Debug)]
pub struct ReplayCache<T> {
    inner: Mutex<Inner<T>>,
    capacity: usize,
}

#[derive(Debug)]
struct Inner<T> {
    known: HashMap<(String, String), Known<T>>,
    /// In the order in which they are forgotten.
    order: VecDeque<(Timestamp, (String, String))>,
}

#[derive(Debug)]
struct Known<T> {
    fingerprint: u64,
    /// None while it is being decided.
    answer: Option<Arc<T>>,
    until: Timestamp,
}

/// A named request that must be decided now. Dropped without an answer, it is forgotten.
#[derive(Debug)]
pub struct FirstTime<'c, T> {
    cache: &'c ReplayCache<T>,
    name: Option<(String, String)>,
}

/// How long an answer is remembered.
const KEPT: Micros = Micros::from_secs(60);

impl<T> ReplayCache<T> {
    /// Remembers at most `capacity` answers.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let inner = Inner { known: HashMap::new(), order: VecDeque::new() };
        ReplayCache { inner: Mutex::new(inner), capacity: capacity.max(1) }
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
        inner.forget(now, self.capacity);
        let name = (request.domain.clone(), request.id.clone());
        match inner.known.get(&name) {
            Some(known) if known.fingerprint != request.fingerprint => Err(ReplayError::UsedForAnother),
            Some(Known { answer: Some(answer), .. }) => Ok(Ok(answer.clone())),
            Some(_) => Err(ReplayError::UnderWay),
            None => {
                let until = now + KEPT;
                inner.order.push_back((until, name.clone()));
                inner
                    .known
                    .insert(name.clone(), Known { fingerprint: request.fingerprint, answer: None, until });
                Ok(Err(FirstTime { cache: self, name: Some(name) }))
            }
        }
    }
}

impl<T> Inner<T> {
    /// Forgets what is over, and the oldest where there is no room for one more.
    fn forget(&mut self, now: Timestamp, capacity: usize) {
        while let Some((until, name)) = self.order.front() {
            if *until > now && self.known.len() < capacity {
                return;
            }
            // A name may have been forgotten and used again since: then a later place in the order is its own.
            if self.known.get(name).is_some_and(|known| known.until == *until) {
                self.known.remove(name);
            }
            self.order.pop_front();
        }
    }
}

impl<T> FirstTime<'_, T> {
    /// Remembers the answer.
    pub fn answered(mut self, answer: Arc<T>) {
        if let Some(name) = self.name.take()
            && let Some(known) = self.cache.inner.lock().known.get_mut(&name)
        {
            known.answer = Some(answer);
        }
    }
}

impl<T> Drop for FirstTime<'_, T> {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            self.cache.inner.lock().known.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(id: &str, fingerprint: u64) -> RequestId {
        RequestId { id: id.into(), domain: "api".into(), fingerprint }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn answer(cache: &ReplayCache<u32>, id: &str, answer: u32, now: Timestamp) {
        cache.look_up(&named(id, 7), now).unwrap().unwrap_err().answered(Arc::new(answer));
    }

    #[test]
    fn a_retry_within_a_minute_gets_the_same_answer_and_a_later_one_is_decided_anew() {
        let cache = ReplayCache::new(10);
        answer(&cache, "a", 1, at(0));
        assert_eq!(*cache.look_up(&named("a", 7), at(59)).unwrap().unwrap(), 1);
        assert!(cache.look_up(&named("a", 7), at(60)).unwrap().is_err());
    }

    #[test]
    fn a_name_used_for_another_request_is_an_error() {
        let cache = ReplayCache::new(10);
        answer(&cache, "a", 1, at(0));
        assert_eq!(cache.look_up(&named("a", 8), at(1)).unwrap_err(), ReplayError::UsedForAnother);
    }

    #[test]
    fn a_request_still_under_way_is_not_decided_twice() {
        let cache: ReplayCache<u32> = ReplayCache::new(10);
        let first = cache.look_up(&named("a", 7), at(0)).unwrap().unwrap_err();
        assert_eq!(cache.look_up(&named("a", 7), at(0)).unwrap_err(), ReplayError::UnderWay);
        drop(first);
        assert!(cache.look_up(&named("a", 7), at(0)).unwrap().is_err());
    }

    #[test]
    fn at_capacity_the_oldest_is_forgotten() {
        let cache = ReplayCache::new(2);
        for (id, number) in [("a", 1), ("b", 2), ("c", 3)] {
            answer(&cache, id, number, at(0));
        }
        assert!(cache.look_up(&named("c", 7), at(0)).unwrap().is_ok());
        assert!(cache.look_up(&named("a", 7), at(0)).unwrap().is_err());
    }
}
