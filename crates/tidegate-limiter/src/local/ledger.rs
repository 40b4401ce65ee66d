//! What this node has spent from cells whose store was unavailable, so that it can be charged there once.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::Portion;
use super::cell_map::CellMap;
use crate::cell::{CellAsk, KeptCell};
use crate::cell_hash::CellHash;

/// Debts by cell: bounded; the rest is forgiven and counted.
pub(crate) struct Ledger {
    debts: CellMap<Debt>,
    /// How many of them are debts of shares.
    shares: AtomicUsize,
    forgiven: AtomicU64,
}

/// The debt to one cell.
#[derive(Clone, Debug)]
pub(crate) struct Debt {
    pub(crate) cell: KeptCell,
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
        Ledger { debts: CellMap::new(most), shares: AtomicUsize::new(0), forgiven: AtomicU64::new(0) }
    }

    /// Opens an account for this cell, if it has none.
    pub(crate) fn open(&self, cell: &CellAsk<'_>, portion: Portion) -> Account {
        let mut account = Account::Known;
        let new = || {
            account = Account::New;
            self.new_debt(cell.cell(), portion)
        };
        if self.debts.change_or_insert(cell.hash, new, |_| ()).is_some() { account } else { Account::None }
    }

    /// Adds `hits` to the account of this cell. A settlement may have closed it since it was opened, while nothing was owed.
    pub(crate) fn spent(&self, cell: &CellAsk<'_>, hits: u64, portion: Portion) {
        self.owe(cell.hash, hits, || self.new_debt(cell.cell(), portion));
    }

    /// Restores a debt that was settled, but not paid after all.
    pub(crate) fn owe_again(&self, debt: Debt) {
        let Debt { cell, hits, portion } = debt;
        self.owe(cell.hash(), hits, || self.new_debt(cell.clone(), portion));
    }

    fn owe(&self, cell: CellHash, hits: u64, new: impl FnOnce() -> Debt) {
        let add = |debt: &mut Debt| debt.hits = debt.hits.saturating_add(hits);
        if self.debts.change_or_insert(cell, new, add).is_none() {
            self.forgiven.fetch_add(hits, Ordering::Relaxed);
        }
    }

    fn new_debt(&self, cell: KeptCell, portion: Portion) -> Debt {
        self.shares.fetch_add(usize::from(portion == Portion::Share), Ordering::Relaxed);
        Debt { cell, hits: 0, portion }
    }

    /// Whether an account is open of a cell that is there.
    pub(crate) fn owes(&self, is_there: impl Fn(&KeptCell) -> bool) -> bool {
        self.debts.any(|debt| is_there(&debt.cell))
    }

    /// Up to `most` accounts whose store has recovered.
    pub(crate) fn due(&self, most: usize, is_back: impl Fn(&KeptCell) -> bool) -> Vec<Debt> {
        self.debts.collect(most, |debt| is_back(&debt.cell).then(|| debt.clone()))
    }

    /// Subtracts `hits` from the account of a cell, and closes it if nothing was spent meanwhile.
    pub(crate) fn settle(&self, cell: CellHash, hits: u64) {
        let closed = self.debts.change_or_remove(cell, |debt| {
            debt.hits = debt.hits.saturating_sub(hits);
            debt.hits == 0
        });
        if closed.is_some_and(|debt| debt.portion == Portion::Share) {
            self.shares.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether an account of a share is open. Takes no lock.
    pub(crate) fn owes_shares(&self) -> bool {
        self.shares.load(Ordering::Relaxed) > 0
    }

    /// Open accounts.
    pub(crate) fn len(&self) -> usize {
        self.debts.len()
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
    use tidegate_core::{Ask, FixedWindow, Group, Limit, Micros, Scope, Touch};
    use tidegate_store::{CellKey, Spend};

    use super::*;
    use crate::cell::CellPolicy;
    use crate::cell_hash::CellHasher;

    #[test]
    fn what_is_spent_after_a_settlement_closed_the_account_is_owed_all_the_same() {
        let limit = Limit::FixedWindow(FixedWindow::new(9, Micros::from_secs(1)).unwrap());
        let scope = Scope::new(&[b"a"]);
        let cell = CellKey { scope: &scope, key: b"k", tag: b"k" };
        let spend = Spend { cell, touch: Touch { limit: &limit, ask: Ask::hits(7), group: Group::ENFORCED } };
        let cell = CellAsk::new(&CellHasher::new([1, 2]), spend, CellPolicy::CALLER_LIMIT);
        let ledger = Ledger::new(10);
        assert_eq!(ledger.open(&cell, Portion::Share), Account::New);
        ledger.settle(cell.hash, 0);
        ledger.spent(&cell, 7, Portion::Share);
        let owed: Vec<u64> = ledger.due(10, |_| true).iter().map(|debt| debt.hits).collect();
        assert_eq!((owed, ledger.forgiven(), ledger.owes_shares()), (vec![7], 0, true));
    }

    #[test]
    fn a_settlement_that_is_under_way_is_not_ended_by_another() {
        let settling = Settling::default();
        let turn = settling.turn();
        assert!(turn.is_some());
        assert!(settling.turn().is_none());
        assert!(settling.turn().is_none(), "the first attempt must not have freed it");
        drop(turn);
        assert!(settling.turn().is_some());
    }
}
