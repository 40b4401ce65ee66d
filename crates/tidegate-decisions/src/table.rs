//! A bounded table in which unused entries make room for new ones.
//!
//! Otherwise rules that are no longer in use would keep their entries, and newer rules would get none.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// How often unused entries are looked for.
const TIDY_EVERY_US: u64 = 60_000_000;

/// A bounded number of entries; one that was not used for `keep_us` may be dropped.
pub(crate) struct Table<K, V> {
    entries: HashMap<K, Kept<V>, BuildHasherDefault<Quick>>,
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

    /// Calls `then` with the entry of `key`, creating it if necessary; does not call it if there is no room. An existing
    /// entry is found with one lookup, without owning a key.
    pub(crate) fn at<Q, T>(
        &mut self,
        now_us: u64,
        key: &Q,
        begin: impl FnOnce() -> (K, V),
        then: impl FnOnce(&mut V) -> T,
    ) -> Option<T>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        if let Some(kept) = self.entries.get_mut(key) {
            kept.asked_us = now_us;
            return Some(then(&mut kept.value));
        }
        if self.entries.len() >= self.most {
            self.make_room(now_us);
        }
        if self.entries.len() >= self.most {
            return None;
        }
        let (key, mut value) = begin();
        let done = then(&mut value);
        self.entries.insert(key, Kept { asked_us: now_us, value });
        Some(done)
    }

    /// Drops unused entries. A scan of all entries is expensive, so it runs rarely.
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

    /// Changes the entry of `key`, if there is one.
    pub(crate) fn if_known<Q: ?Sized + Hash + Eq>(&mut self, key: &Q, change: impl FnOnce(&mut V))
    where
        K: Borrow<Q>,
    {
        if let Some(kept) = self.entries.get_mut(key) {
            change(&mut kept.value);
        }
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.values_mut().map(|kept| &mut kept.value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, kept)| (key, &kept.value))
    }
}

/// FNV-1a. Rule names come from operators, not callers, so nobody picks them to collide.
pub(crate) struct Quick(u64);

impl Default for Quick {
    fn default() -> Self {
        Quick(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        // The table uses low bits, and the high ones are mixed better.
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// A name of several parts, owned or borrowed, with equal hash and equality, so that a table finds one by the other.
pub(crate) trait Parts {
    fn parts(&self) -> [&str; 3];
}

impl Parts for [&str; 3] {
    fn parts(&self) -> [&str; 3] {
        *self
    }
}

/// The name of a rule or of a limit, owned.
#[derive(Clone, Debug)]
pub(crate) struct Name(pub(crate) [Box<str>; 3]);

impl Name {
    pub(crate) fn new(parts: [&str; 3]) -> Self {
        Name(parts.map(Box::from))
    }
}

impl Parts for Name {
    fn parts(&self) -> [&str; 3] {
        self.0.each_ref().map(|part| &**part)
    }
}

impl<'a> Borrow<dyn Parts + 'a> for Name {
    fn borrow(&self) -> &(dyn Parts + 'a) {
        self
    }
}

impl Hash for dyn Parts + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl PartialEq for dyn Parts + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn Parts + '_ {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Name {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_takes_nothing_new_until_something_is_old() {
        let mut table = Table::new(2, 100_000_000);
        let mut at =
            |now_s: u64, key: &'static str| table.at(now_s * 1_000_000, key, || (key, now_s), |value| *value);
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
        assert!(table.at(9_000_000_000, "a", || ("a", ()), |()| ()).is_some());
        assert!(table.at(1_000_000_000, "b", || ("b", ()), |()| ()).is_some());
    }
}
