//! A map by marks that keeps the latest entries.

use std::collections::{HashMap, VecDeque};

use foldhash::quality::RandomState;

/// At most a number of entries: one more takes the place of the oldest.
pub(crate) struct LatestMap<V> {
    most: usize,
    entries: HashMap<u64, V, RandomState>,
    /// The marks in the order in which they came, some of which are gone.
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
