//! A table with a bound, in which what nobody has asked about for long makes room for what is new.
//!
//! Without that, rules that were taken out of use would keep their places, and those that came after them have none.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::Hash;

/// How often room is looked for.
const TIDY_EVERY_US: u64 = 60_000_000;

/// At most so many entries; one that was not asked for in `keep_us` may be dropped.
pub(crate) struct Table<K, V> {
    entries: HashMap<K, Kept<V>, RandomState>,
    most: usize,
    keep_us: u64,
    tidied_us: Option<u64>,
}

struct Kept<V> {
    asked_us: u64,
    value: V,
}

impl<K: Eq + Hash, V> Table<K, V> {
    pub(crate) fn new(most: usize, keep_us: u64) -> Self {
        Table { entries: HashMap::default(), most, keep_us, tidied_us: None }
    }

    /// The entry of `key`, begun where there is none; none where there is no room.
    pub(crate) fn at(&mut self, now_us: u64, key: K, begin: impl FnOnce() -> V) -> Option<&mut V> {
        if self.entries.len() >= self.most && !self.entries.contains_key(&key) {
            self.make_room(now_us);
        }
        let is_full = self.entries.len() >= self.most;
        let kept = match self.entries.entry(key) {
            Entry::Occupied(kept) => kept.into_mut(),
            Entry::Vacant(_) if is_full => return None,
            Entry::Vacant(place) => place.insert(Kept { asked_us: now_us, value: begin() }),
        };
        kept.asked_us = now_us;
        Some(&mut kept.value)
    }

    /// Looking through all entries costs: now and then only.
    fn make_room(&mut self, now_us: u64) {
        if self.tidied_us.is_some_and(|tidied| now_us.abs_diff(tidied) < TIDY_EVERY_US) {
            return;
        }
        self.tidied_us = Some(now_us);
        self.entries.retain(|_, kept| now_us.abs_diff(kept.asked_us) <= self.keep_us);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|kept| &kept.value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, kept)| (key, &kept.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_takes_nothing_new_until_something_is_old() {
        let mut table = Table::new(2, 100_000_000);
        let mut at = |now_s: u64, key: &'static str| table.at(now_s * 1_000_000, key, || now_s).copied();
        assert_eq!((at(0, "a"), at(10, "b")), (Some(0), Some(10)));
        assert_eq!(at(100, "c"), None, "both were asked about lately");
        assert_eq!(at(105, "b"), Some(10), "what is in it goes on");
        assert_eq!(at(150, "c"), None, "it was looked a moment ago");
        assert_eq!(at(161, "c"), Some(161), "in the place of a");
        assert_eq!(at(162, "a"), None);
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_keep_a_table_full_for_ever() {
        let mut table = Table::new(1, 100_000_000);
        assert!(table.at(9_000_000_000, "a", || ()).is_some());
        assert!(table.at(1_000_000_000, "b", || ()).is_some());
    }
}
