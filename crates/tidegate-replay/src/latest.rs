//! A map keyed by marks that keeps only the latest entries.

use std::collections::{HashMap, VecDeque};

use foldhash::quality::RandomState;

/// A bounded number of entries: a new one replaces the oldest.
pub(crate) struct LatestMap<V> {
    most: usize,
    entries: HashMap<u64, V, RandomState>,
    /// The marks in insertion order; some have been removed from the map.
    in_turn: VecDeque<u64>,
}

impl<V> LatestMap<V> {
    pub(crate) fn new(most: usize) -> Self {
        LatestMap { most, entries: HashMap::default(), in_turn: VecDeque::new() }
    }

    pub(crate) fn get(&self, mark: u64) -> Option<&V> {
        self.entries.get(&mark)
    }

    pub(crate) fn insert(&mut self, mark: u64, value: V) {
        if self.entries.insert(mark, value).is_some() {
            return;
        }
        self.in_turn.push_back(mark);
        if self.in_turn.len() > self.most
            && let Some(oldest) = self.in_turn.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }

    pub(crate) fn remove(&mut self, mark: u64) -> Option<V> {
        self.entries.remove(&mark)
    }
}
