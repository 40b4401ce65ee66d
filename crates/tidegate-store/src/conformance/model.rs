//! The simplest store: a map of cells and core's own transitions.

use std::collections::HashMap;

use tidegate_core::{Ask, Cell, Limit, Timestamp, decide_fold, decide_request};

use crate::contract::{BatchOutcomes, CellCharge, CellKey, LeaseRef, Refund, Request};

/// Cells by scope and key.
#[derive(Debug, Default)]
pub(super) struct Model(HashMap<(Vec<u8>, Vec<u8>), Cell>);

impl Model {
    pub(super) fn decide(&mut self, batch: &[Request<'_>], now: Timestamp) -> BatchOutcomes {
        let mut told = BatchOutcomes::default();
        for request in batch {
            let mut cells: Vec<Cell> =
                request.spends.iter().map(|spend| self.get(spend.cell).clone()).collect();
            let touches = request.spends.iter().map(|spend| spend.touch).enumerate();
            if request.is_fold() {
                decide_fold(touches, &mut cells, now, request.count.get(), |fold| {
                    told.outcomes.push(fold.last);
                    told.folds.push(fold);
                });
            } else {
                decide_request(touches, &mut cells, now, |outcome| told.outcomes.push(outcome));
            }
            for (spend, cell) in request.spends.iter().zip(cells) {
                *self.get(spend.cell) = cell;
            }
        }
        told
    }

    pub(super) fn refund(&mut self, refund: &Refund<'_>, now: Timestamp) {
        refund.limit.refund(self.get(refund.cell), now, refund.hits, refund.age);
    }

    pub(super) fn charge(&mut self, charge: &CellCharge<'_>, now: Timestamp) {
        charge.limit.charge(self.get(charge.cell), now, charge.charge);
    }

    pub(super) fn reset(&mut self, cell: CellKey<'_>) {
        *self.get(cell) = Cell::Vacant;
    }

    pub(super) fn is_idle(&mut self, cell: CellKey<'_>, limit: &Limit, now: Timestamp) -> bool {
        limit.look(self.get(cell), now, Ask::look()).remaining == limit.quota()
    }

    pub(super) fn renew(&mut self, lease: LeaseRef<'_>, now: Timestamp) -> bool {
        lease.limit.renew(self.get(lease.cell), now, lease.id)
    }

    pub(super) fn release(&mut self, lease: LeaseRef<'_>, now: Timestamp) -> bool {
        lease.limit.release(self.get(lease.cell), now, lease.id)
    }

    fn get(&mut self, cell: CellKey<'_>) -> &mut Cell {
        self.0.entry((cell.scope.as_bytes().to_vec(), cell.key.to_vec())).or_default()
    }
}
