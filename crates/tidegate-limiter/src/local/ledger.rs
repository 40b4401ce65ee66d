//! What this node has spent from cells whose store was unavailable, so that it can be charged there once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tidegate_store::Spend;

use super::Portion;
use crate::cell_hash::CellHash;
use crate::owned::OwnedCell;

/// Debts by cell: bounded; the rest is forgiven and counted.
pub(crate) struct Ledger {
    debts: Mutex<HashMap<CellHash, Debt, RandomState>>,
    /// How many of them are debts of shares.
    shares: AtomicUsize,
    most: usize,
    forgiven: AtomicU64,
}

/// The debt to one cell.
#[derive(Clone, Debug)]
pub(crate) struct Debt {
    pub(crate) cell: OwnedCell,
    pub(crate) hits: u64,
    /// The portion of the limit from which it was spent.
    pub(crate) portion: Portion,
}

/// Whether a cell was already decided here since its store became unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Account {
    New,
    Known,
    /// There is no room for it.
    None,
}

impl Ledger {
    pub(crate) fn new(most: usize) -> Self {
        Ledger { debts: Mutex::default(), shares: AtomicUsize::new(0), most, forgiven: AtomicU64::new(0) }
    }

    /// Opens an account for the cell of `spend`, if it has none.
    pub(crate) fn open(&self, hash: CellHash, spend: &Spend<'_>, portion: Portion) -> Account {
        let mut debts = self.debts.lock();
        let full = debts.len() >= self.most;
        match debts.entry(hash) {
            Entry::Occupied(_) => Account::Known,
            Entry::Vacant(_) if full => Account::None,
            Entry::Vacant(place) => {
                let cell = OwnedCell::new(&spend.cell, spend.touch.limit);
                place.insert(Debt { cell, hits: 0, portion });
                self.shares.fetch_add(usize::from(portion == Portion::Share), Ordering::Relaxed);
                Account::New
            }
        }
    }

    pub(crate) fn spent(&self, hash: CellHash, hits: u64) {
        match self.debts.lock().get_mut(&hash) {
            Some(debt) => debt.hits = debt.hits.saturating_add(hits),
            None => drop(self.forgiven.fetch_add(hits, Ordering::Relaxed)),
        }
    }

    pub(crate) fn gave_back(&self, hash: CellHash, hits: u64) {
        if let Some(debt) = self.debts.lock().get_mut(&hash) {
            debt.hits = debt.hits.saturating_sub(hits);
        }
    }

    /// Up to `most` accounts whose store has recovered.
    pub(crate) fn due(&self, most: usize, is_back: impl Fn(&OwnedCell) -> bool) -> Vec<(CellHash, Debt)> {
        let debts = self.debts.lock();
        let due = debts.iter().filter(|(_, debt)| is_back(&debt.cell)).take(most);
        due.map(|(hash, debt)| (*hash, debt.clone())).collect()
    }

    /// Subtracts `hits` from an account, and closes it if nothing was spent meanwhile.
    pub(crate) fn settle(&self, hash: CellHash, hits: u64) {
        let mut debts = self.debts.lock();
        let Entry::Occupied(mut debt) = debts.entry(hash) else { return };
        debt.get_mut().hits = debt.get().hits.saturating_sub(hits);
        if debt.get().hits == 0 {
            let portion = debt.remove().portion;
            self.shares.fetch_sub(usize::from(portion == Portion::Share), Ordering::Relaxed);
        }
    }

    /// Whether an account of a share is open. Takes no lock.
    pub(crate) fn owes_shares(&self) -> bool {
        self.shares.load(Ordering::Relaxed) > 0
    }

    /// Open accounts.
    pub(crate) fn len(&self) -> usize {
        self.debts.lock().len()
    }

    /// Hits that will never be charged because there was no room for their account.
    pub(crate) fn forgiven(&self) -> u64 {
        self.forgiven.load(Ordering::Relaxed)
    }
}

/// Serialises settling: two at once would pay a debt twice.
#[derive(Default)]
pub(crate) struct Settling(AtomicBool);

impl Settling {
    /// Whether a settlement is in progress.
    pub(crate) fn is_under_way(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The turn to settle, until it is dropped; `None` while another settlement runs.
    pub(crate) fn turn(&self) -> Option<impl Drop + use<'_>> {
        struct Turn<'s>(&'s AtomicBool);
        impl Drop for Turn<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        (!self.0.swap(true, Ordering::Acquire)).then(|| Turn(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_the_turn_taken_does_not_end_it() {
        let settling = Settling::default();
        let turn = settling.turn();
        assert!(turn.is_some());
        assert!(settling.turn().is_none());
        assert!(settling.turn().is_none(), "the first attempt must not have freed it");
        drop(turn);
        assert!(settling.turn().is_some());
    }
}
