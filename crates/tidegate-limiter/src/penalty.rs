//! Once refused, refused for at least as long as the rule's penalty lasts.
//!
//! A penalty is a one-hit limit that every request looks at and only a refused one spends. It starts after the refusal that
//! causes it, with a call that no request waits for: until that arrives, the limit that refused keeps refusing. It starts at
//! one moment, the store's, for all nodes: this node repeats it only once the store has it.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::{Charge, Hits};
use tidegate_store::CellCharge;

use crate::cell_hash::CellHash;
use crate::owned::OwnedCell;

/// The most cells with penalties in flight: beyond that, some are charged more than once.
const MOST_UNDER_WAY: usize = 65_536;

/// The penalty that a refused request starts.
#[derive(Debug)]
pub struct Penalty {
    pub(crate) mark: u64,
    pub(crate) cells: SmallVec<[PenaltyCell; 1]>,
}

#[derive(Debug)]
pub(crate) struct PenaltyCell {
    pub(crate) cell: OwnedCell,
    pub(crate) hash: CellHash,
}

impl Penalty {
    /// A number that identifies the penalty.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// The domain of its rules.
    #[must_use]
    pub fn domain(&self) -> Option<&str> {
        self.cells.first().and_then(|one| one.cell.domain())
    }

    pub(crate) fn charges(&self) -> SmallVec<[CellCharge<'_>; 1]> {
        let charge = Charge::now(Hits::ONE);
        let cells = self.cells.iter().map(|one| &one.cell);
        cells.map(|cell| CellCharge { cell: cell.key(), limit: &cell.limit, charge }).collect()
    }
}

/// IDs for penalties, and the cells whose penalties are in flight to the store.
#[derive(Default)]
pub(crate) struct Penalties {
    names: RandomState,
    next: AtomicU64,
    under_way: Mutex<HashSet<CellHash>>,
}

impl Penalties {
    pub(crate) fn next_mark(&self) -> u64 {
        self.names.hash_one(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether to charge a cell's penalty: not while one is in flight, or a flood would charge it again and again.
    pub(crate) fn begin(&self, hash: CellHash) -> bool {
        let mut under_way = self.under_way.lock();
        under_way.len() >= MOST_UNDER_WAY || under_way.insert(hash)
    }
}

/// A penalty in flight to the store. Dropping it, even unrun because its runtime ended, lets the next one start.
pub(crate) struct StartingPenalty {
    pub(crate) penalty: Arc<Penalty>,
    pub(crate) penalties: Arc<Penalties>,
}

impl Drop for StartingPenalty {
    fn drop(&mut self) {
        let mut under_way = self.penalties.under_way.lock();
        for one in &self.penalty.cells {
            under_way.remove(&one.hash);
        }
    }
}
