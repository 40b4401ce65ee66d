//! `CL.THROTTLE` and `THROTTLE`: a token bucket that the caller describes with every call, as in redis-cell and throttlecrab.
//!
//! The two answer the other way round: 0 is allowed in redis-cell, 1 in throttlecrab. throttlecrab's bucket holds `max_burst`
//! tokens, redis-cell's one more; and its times are rounded up here, so that who waits as told is not early.
//!
//! Numbers and replies are redis-cell's, with three differences: a negative quantity is an error and refunds nothing,
//! numbers out of range are an error and never wrap, and a key with a changed *period* starts afresh (with a changed burst
//! or count it continues from what was spent).

use std::sync::Arc;

use tidegate_core::{
    Ask, Group, Hits, Limit, LimitError, Micros, Outcome, Rate, Scope, TokenBucket, Touch, append_part,
};
use tidegate_store::{CellKey, Spend};

use super::reply::{Replies, quoted};
use crate::json::MAX_VALUE_BYTES;

/// A parsed call.
#[derive(Debug)]
pub(crate) struct Throttle<'b> {
    pub(crate) key: &'b [u8],
    /// The selected database: the same key in another one is another bucket.
    pub(crate) database: u8,
    pub(crate) quota: Quota,
    pub(crate) hits: Hits,
}

/// Whose numbers and replies a call has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `CL.THROTTLE`: limited (0 is allowed), limit, remaining, retry, reset.
    RedisCell,
    /// `THROTTLE`: allowed (1 is allowed), limit, remaining, reset, retry.
    Throttlecrab,
}

/// The numbers that describe a bucket, as given by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    dialect: Dialect,
    max_burst: u64,
    count: u64,
    period_s: u64,
}

impl<'b> Throttle<'b> {
    /// Parses `key max_burst count period [quantity]`; the number of words was checked before.
    ///
    /// # Errors
    /// What is wrong, as text for the client.
    #[inline]
    pub(crate) fn read(dialect: Dialect, words: &[&'b [u8]]) -> Result<Self, String> {
        let [key, max_burst, count, period, quantity @ ..] = words else {
            return Err("expected key max_burst count period [quantity]".to_owned());
        };
        if key.len() > MAX_VALUE_BYTES {
            return Err(format!("key is longer than {MAX_VALUE_BYTES} bytes"));
        }
        let quota = Quota {
            dialect,
            max_burst: read_number("max_burst", max_burst)?,
            count: read_number("count", count)?,
            period_s: read_number("period", period)?,
        };
        let hits = quantity.first().map_or(Ok(1), |quantity| read_number("quantity", quantity))?;
        Ok(Throttle { key, database: 0, quota, hits: Hits::new(hits) })
    }
}

impl Throttle<'_> {
    /// Writes the key of its cell.
    #[inline]
    pub(crate) fn write_key(&self, key: &mut impl Extend<u8>) {
        if self.database > 0 {
            append_part(key, &[self.database]);
        }
        append_part(key, self.key);
    }
}

/// A whole number from 0 to `i64::MAX`: a larger one does not fit into a reply.
#[inline]
pub(crate) fn read_number(name: &str, word: &[u8]) -> Result<u64, String> {
    // Nineteen digits always fit.
    if word.is_empty() || word.len() > 19 {
        return Err(not_a_number(name, word));
    }
    let mut number = 0u64;
    for byte in word {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(not_a_number(name, word));
        }
        number = number * 10 + u64::from(digit);
    }
    if number > i64::MAX.cast_unsigned() { Err(not_a_number(name, word)) } else { Ok(number) }
}

#[cold]
fn not_a_number(name: &str, word: &[u8]) -> String {
    let is_number = |digits: &[u8]| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    match word {
        [b'-', digits @ ..] if is_number(digits) => format!("{name} must not be negative"),
        digits if is_number(digits) => format!("{name} is out of range, at most {} is allowed", i64::MAX),
        _ => format!("{name} is not a whole number: {}", quoted(word)),
    }
}

/// A bucket that a caller described.
#[derive(Debug)]
pub(crate) struct Bucket {
    quota: Quota,
    limit: Limit,
    scope: Scope,
    refill_time: Micros,
    /// The prepared beginnings of its replies: admitted, and refused.
    openings: [Box<[u8]>; 2],
}

impl Dialect {
    /// The domain of its cells, beside those of rules.
    fn domain(self) -> &'static [u8] {
        match self {
            Self::RedisCell => b"cl.throttle",
            Self::Throttlecrab => b"throttle",
        }
    }

    /// The first number of a reply: admitted, and refused.
    fn verdicts(self) -> [u8; 2] {
        match self {
            Self::RedisCell => [0, 1],
            Self::Throttlecrab => [1, 0],
        }
    }
}

impl Bucket {
    fn new(quota: Quota) -> Result<Self, String> {
        let (size, at_least_one) = match quota.dialect {
            Dialect::RedisCell => (quota.max_burst.saturating_add(1), 1),
            Dialect::Throttlecrab => (quota.max_burst, quota.max_burst),
        };
        for (name, number) in
            [("max_burst", at_least_one), ("count", quota.count), ("period", quota.period_s)]
        {
            if number == 0 {
                return Err(format!("{name} must be at least 1"));
            }
        }
        let period = Micros::from_secs(quota.period_s);
        let bucket = Rate::new(quota.count, period).and_then(|rate| TokenBucket::new(rate, size));
        let bucket = bucket.map_err(|LimitError { problem, hint, .. }| format!("{problem}, {hint}"))?;
        let limit = Limit::TokenBucket(bucket);
        // Named like the cells of rules: domain, rule, limit name, algorithm, period.
        let period = period.to_string();
        let scope = Scope::new(&[
            quota.dialect.domain(),
            b"",
            b"",
            limit.algorithm().name().as_bytes(),
            period.as_bytes(),
        ]);
        let opening = |verdict: u8| format!("*5\r\n:{verdict}\r\n:{size}\r\n").into_bytes().into();
        let openings = quota.dialect.verdicts().map(opening);
        Ok(Bucket { quota, limit, scope, refill_time: bucket.refill_time(), openings })
    }

    /// Spends `hits` of it; `key` is prefixed with its length.
    #[inline]
    pub(crate) fn spend<'a>(&'a self, key: &'a [u8], hits: Hits) -> Spend<'a> {
        Spend {
            cell: CellKey { scope: &self.scope, key, tag: key },
            touch: Touch { limit: &self.limit, ask: Ask::hits(hits.get()), group: Group::ENFORCED },
        }
    }

    /// Writes the verdict, limit, remaining, and the seconds to wait (redis-cell: -1 for none; both: -1 for ever) and until the
    /// full quota is back, in the order of the dialect.
    #[inline]
    pub(crate) fn write_reply(&self, hits: Hits, outcome: &Outcome, to: &mut Replies) {
        let wait = match hits {
            // Zero tokens always fit, unless the bucket was larger when it was filled.
            Hits::ZERO => Some(outcome.reset_after.saturating_sub(self.refill_time)),
            _ if outcome.is_admitted() => Some(Micros::ZERO),
            _ => outcome.retry_after(),
        };
        let (opening, retry_after) = match wait {
            Some(Micros::ZERO) => (&self.openings[0], -1),
            Some(wait) => (&self.openings[1], signed(wait.as_secs_ceil())),
            None => (&self.openings[1], -1),
        };
        let reset_after = signed(outcome.reset_after.as_secs_ceil());
        let remaining = signed(outcome.remaining);
        let numbers = match self.quota.dialect {
            Dialect::RedisCell => [remaining, retry_after, reset_after],
            Dialect::Throttlecrab if wait == Some(Micros::ZERO) => [remaining, reset_after, 0],
            Dialect::Throttlecrab => [remaining, reset_after, retry_after],
        };
        to.opened_with(opening, numbers);
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The buckets that a connection described recently: most describe one, over and over.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    known: Vec<Arc<Bucket>>,
    /// The index of the last one used.
    latest: usize,
    /// The index of the next one to replace.
    next_out: usize,
}

const MOST_BUCKETS: usize = 32;

impl Buckets {
    /// The bucket of `quota`, created if it is not among the last few.
    ///
    /// # Errors
    /// What is wrong with the numbers, as text for the client.
    #[inline]
    pub(crate) fn get(&mut self, quota: Quota) -> Result<&Arc<Bucket>, String> {
        let is_latest = self.known.get(self.latest).is_some_and(|bucket| bucket.quota == quota);
        if !is_latest {
            self.latest = self.find_or_make(quota)?;
        }
        Ok(&self.known[self.latest])
    }

    /// The last bucket used.
    #[inline]
    pub(crate) fn latest(&self) -> Option<&Bucket> {
        self.known.get(self.latest).map(|bucket| &**bucket)
    }

    fn find_or_make(&mut self, quota: Quota) -> Result<usize, String> {
        if let Some(place) = self.known.iter().position(|bucket| bucket.quota == quota) {
            return Ok(place);
        }
        let bucket = Arc::new(Bucket::new(quota)?);
        if self.known.len() < MOST_BUCKETS {
            self.known.push(bucket);
            return Ok(self.known.len() - 1);
        }
        let place = self.next_out;
        self.next_out = (place + 1) % MOST_BUCKETS;
        self.known[place] = bucket;
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(words: &str) -> Result<Bucket, String> {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        Throttle::read(Dialect::RedisCell, &words).and_then(|throttle| Bucket::new(throttle.quota))
    }

    #[test]
    fn numbers_that_make_no_bucket_are_told_apart() {
        for (words, problem) in [
            ("k -1 1 1", "max_burst must not be negative"),
            ("k 1 1 1 -5", "quantity must not be negative"),
            ("k 1 x 1", "count is not a whole number: 'x'"),
            ("k 1 1.5 1", "count is not a whole number: '1.5'"),
            ("k 1  1", "count is not a whole number: ''"),
            ("k 1 1 9223372036854775808", "period is out of range, at most 9223372036854775807 is allowed"),
            ("k 1 0 1", "count must be at least 1"),
            ("k 1 1 0", "period must be at least 1"),
            ("k 1 1 316224001", "a period of 316224001s is too long, use at most 3660d"),
        ] {
            assert_eq!(ask(words).unwrap_err(), problem, "{words}");
        }
    }

    #[test]
    fn the_largest_numbers_are_refused_and_not_wrapped() {
        for words in
            ["k 4000000000 1 9000000000000", "k 9223372036854775807 1 1", "k 1 9223372036854775807 1"]
        {
            assert!(ask(words).is_err(), "{words}");
        }
        assert_eq!(ask("k 4000000000 1 1").unwrap().limit.quota(), 4_000_000_001);
    }

    #[test]
    fn a_repeated_bucket_is_not_made_again() {
        let mut buckets = Buckets::default();
        let quota = |max_burst| Quota { dialect: Dialect::RedisCell, max_burst, count: 1, period_s: 1 };
        let first = Arc::clone(buckets.get(quota(0)).unwrap());
        for other in 1..MOST_BUCKETS as u64 {
            buckets.get(quota(other)).unwrap();
        }
        assert!(Arc::ptr_eq(&first, buckets.get(quota(0)).unwrap()));
    }

    #[test]
    fn a_client_that_never_repeats_itself_is_remembered_in_bounds() {
        let mut buckets = Buckets::default();
        for max_burst in 0..1_000 {
            let quota = Quota { dialect: Dialect::RedisCell, max_burst, count: 1, period_s: 1 };
            assert_eq!(buckets.get(quota).unwrap().quota, quota);
        }
        assert_eq!(buckets.known.len(), MOST_BUCKETS);
    }
}
