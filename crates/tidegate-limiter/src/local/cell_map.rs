//! What this node keeps of cells, by their hash: bounded, and behind many locks, each held for one cell or one part of them all.
//! Requests on different cells hardly ever meet.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use foldhash::fast::RandomState;
use parking_lot::{Mutex, MutexGuard};

use crate::cell_hash::CellHash;

type Shard<V> = HashMap<CellHash, V, RandomState>;

/// The most locks, and how many cells are worth one.
const MOST_SHARDS: usize = 64;
const CELLS_PER_SHARD: usize = 1_024;

pub(super) struct CellMap<V> {
    shards: Box<[Mutex<Shard<V>>]>,
    most_per_shard: usize,
}

impl<V> CellMap<V> {
    /// Holds at most about `most` cells.
    pub(super) fn new(most: usize) -> Self {
        let shards = (most / CELLS_PER_SHARD).clamp(1, MOST_SHARDS);
        CellMap {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            most_per_shard: most.div_ceil(shards),
        }
    }

    fn shard(&self, cell: CellHash) -> MutexGuard<'_, Shard<V>> {
        self.shards[cell.below(self.shards.len())].lock()
    }

    /// What `read` says of a cell, and whether there is room for it if it is not known.
    pub(super) fn look<T>(&self, cell: CellHash, read: impl FnOnce(Option<&V>, HasRoom) -> T) -> T {
        let shard = self.shard(cell);
        let has_room = HasRoom(shard.len() < self.most_per_shard);
        read(shard.get(&cell), has_room)
    }

    /// Changes what is kept of a cell; `None` if nothing is.
    pub(super) fn change<T>(&self, cell: CellHash, change: impl FnOnce(&mut V) -> T) -> Option<T> {
        self.shard(cell).get_mut(&cell).map(change)
    }

    /// Changes what is kept of a cell, which is `new` if nothing is; `None` if there is no room for it.
    pub(super) fn change_or_insert<T>(
        &self,
        cell: CellHash,
        new: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> T,
    ) -> Option<T> {
        let mut shard = self.shard(cell);
        let is_full = shard.len() >= self.most_per_shard;
        match shard.entry(cell) {
            Entry::Occupied(known) => Some(change(known.into_mut())),
            Entry::Vacant(_) if is_full => None,
            Entry::Vacant(place) => Some(change(place.insert(new()))),
        }
    }

    /// Changes what is kept of a cell, and forgets it if `is_over` then.
    pub(super) fn change_or_remove(&self, cell: CellHash, is_over: impl FnOnce(&mut V) -> bool) -> Option<V> {
        let mut shard = self.shard(cell);
        let Entry::Occupied(mut known) = shard.entry(cell) else { return None };
        is_over(known.get_mut()).then(|| known.remove())
    }

    /// What `pick` makes of each cell, until there are `most`.
    pub(super) fn collect<T>(&self, most: usize, mut pick: impl FnMut(&mut V) -> Option<T>) -> Vec<T> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let left = most - all.len();
            all.extend(shard.lock().values_mut().filter_map(&mut pick).take(left));
        }
        all
    }

    /// Whether any of them is so.
    pub(super) fn any(&self, mut is_so: impl FnMut(&V) -> bool) -> bool {
        self.shards.iter().any(|shard| shard.lock().values().any(&mut is_so))
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// How many of them are so.
    pub(super) fn count(&self, mut is_so: impl FnMut(&V) -> bool) -> usize {
        self.shards.iter().map(|shard| shard.lock().values().filter(|value| is_so(value)).count()).sum()
    }

    /// Forgets those that are not so.
    pub(super) fn retain(&self, mut is_so: impl FnMut(&V) -> bool) {
        self.shards.iter().for_each(|shard| shard.lock().retain(|_, value| is_so(value)));
    }
}

/// Whether one more cell would fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HasRoom(pub(super) bool);

#[cfg(test)]
mod tests {
    use tidegate_core::Scope;
    use tidegate_store::CellKey;

    use super::*;
    use crate::cell_hash::CellHasher;

    fn cells(count: u32) -> Vec<CellHash> {
        let (scope, hasher) = (Scope::new(&[b"a"]), CellHasher::new([1, 2]));
        let hash = |number: u32| {
            let key = number.to_le_bytes();
            hasher.cell(&CellKey { scope: &scope, key: &key, tag: &key })
        };
        (0..count).map(hash).collect()
    }

    #[test]
    fn a_full_map_takes_no_new_cell_and_keeps_those_it_has() {
        let (map, cells) = (CellMap::new(1 << 14), cells(40_000));
        let taken: Vec<&CellHash> = cells
            .iter()
            .filter(|cell| map.change_or_insert(**cell, || 0, |hits| *hits += 1).is_some())
            .collect();
        assert_eq!((taken.len(), map.len()), (1 << 14, 1 << 14));
        assert!(taken.iter().all(|cell| map.change(**cell, |hits| *hits) == Some(1)));
        assert_eq!(map.collect(100, |hits| Some(*hits)).len(), 100);
        assert_eq!(map.change_or_remove(*taken[0], |_| true), Some(1));
        assert!(map.change_or_insert(*taken[0], || 0, |_| ()).is_some(), "there is room again");
    }

    #[test]
    fn one_cell_is_changed_while_another_is_locked() {
        let (map, cells) = (CellMap::<u64>::new(1 << 17), cells(100));
        let locked = map.shard(cells[0]);
        let others = cells.iter().filter(|cell| {
            let shard = &map.shards[cell.below(map.shards.len())];
            shard.try_lock().is_some()
        });
        assert!(others.count() > 90, "few of them share its lock");
        drop(locked);
    }
}
