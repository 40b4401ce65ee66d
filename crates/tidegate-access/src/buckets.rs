//! Token buckets by key, in bounded memory, on a clock that nobody can set.
//!
//! Their time is this process's own: a step of the wall clock, by NTP or by an attacker who can send it, would otherwise
//! refill every bucket at once, or none for hours.

use std::collections::HashMap;
use std::hash::Hash;

use parking_lot::Mutex;
use tidegate_core::{Ask, Cell, Limit, Micros, Rate, Timestamp, TokenBucket};
use tokio::time::Instant;

/// The most keys remembered. Beyond that, keys with something left are forgotten.
const MOST_KEYS: usize = 16_384;

/// A token bucket for each key.
#[derive(Debug)]
pub struct Buckets<K> {
    limit: Limit,
    began: Instant,
    buckets: Mutex<HashMap<K, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    cell: Cell,
    /// Refused since the last admission.
    refused: u64,
}

impl<K: Hash + Eq> Buckets<K> {
    /// Buckets that hold `burst`, and get one more every `refill`.
    ///
    /// # Panics
    /// If that is no rate: both must be above zero.
    #[must_use]
    pub fn new(burst: u64, refill: Micros) -> Self {
        let rate = Rate::new(1, refill).expect("a refill interval is a rate");
        let bucket = TokenBucket::new(rate, burst).expect("a burst fits a bucket");
        Buckets { limit: Limit::TokenBucket(bucket), began: Instant::now(), buckets: Mutex::default() }
    }

    /// How long until `key` has one left; `None` if it has.
    #[must_use]
    pub fn wait(&self, key: &K) -> Option<Micros> {
        let buckets = self.buckets.lock();
        let bucket = buckets.get(key)?;
        self.limit.look(&bucket.cell, self.now(), Ask::hits(1)).retry_after()
    }

    /// Takes one from the bucket of `key`; returns how often it was refused since the last time, or `None` if it is now.
    pub fn take(&self, key: K) -> Option<u64> {
        let (mut buckets, now) = (self.buckets.lock(), self.now());
        if buckets.len() >= MOST_KEYS && !buckets.contains_key(&key) {
            self.make_room(&mut buckets, now);
        }
        let bucket = buckets.entry(key).or_insert(Bucket { cell: Cell::Vacant, refused: 0 });
        if self.limit.decide(&mut bucket.cell, now, Ask::hits(1)).is_admitted() {
            return Some(std::mem::take(&mut bucket.refused));
        }
        bucket.refused += 1;
        None
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Forgets keys with something left, and all of them if that is not enough: half must be free, or the next key would
    /// cause another full scan.
    fn make_room(&self, buckets: &mut HashMap<K, Bucket>, now: Timestamp) {
        buckets.retain(|_, bucket| !self.limit.look(&bucket.cell, now, Ask::hits(1)).is_admitted());
        if buckets.len() > MOST_KEYS / 2 {
            buckets.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MINUTE: Micros = Micros::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_bucket_counts_what_it_refused_until_it_refills() {
        let buckets = Buckets::new(2, MINUTE);
        let takes = || buckets.take("a");
        assert_eq!([takes(), takes(), takes(), takes()], [Some(0), Some(0), None, None]);
        assert_eq!((buckets.wait(&"a"), buckets.wait(&"b")), (Some(MINUTE), None));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!([takes(), takes()], [Some(2), None]);
    }

    #[test]
    fn many_keys_take_bounded_memory() {
        let buckets = Buckets::new(10, MINUTE);
        (0..40_000_u32).for_each(|key| assert_eq!(buckets.take(key), Some(0)));
        assert!(buckets.buckets.lock().len() <= MOST_KEYS);
    }
}
