//! Separates the charges of requests that are decided in several places.
//!
//! A charge after the fact neither holds the other spends of its request up nor is held up by them
//! ([`Over::Charge`](tidegate_core::Over::Charge)). So in a batch that may have to be undone in part, each charge is a
//! request of its own: what happens to the rest of its request does not undo it.

use tidegate_core::Over;
use tidegate_store::{BatchOutcomes, Outcomes, Request, Spend};

/// A batch in which the charges of some requests stand alone.
pub(crate) struct ChargesApart<'a> {
    spends: Vec<Vec<Spend<'a>>>,
    /// For each request of the original batch, its number among those of this one, and which of its spends are charges.
    parts: Vec<(usize, Vec<bool>)>,
}

impl<'a> ChargesApart<'a> {
    /// Separates the charges of `batch`; none if it has none beside other spends.
    pub(crate) fn of(batch: &[Request<'a>]) -> Option<Self> {
        let is_charge = |spend: &Spend<'_>| spend.touch.over() == Over::Charge;
        let is_split =
            |request: &Request<'_>| request.spends.len() > 1 && request.spends.iter().any(is_charge);
        if !batch.iter().any(is_split) {
            return None;
        }
        let (mut spends, mut parts) = (Vec::new(), Vec::new());
        for request in batch {
            let is_split = is_split(request);
            let charges: Vec<bool> =
                request.spends.iter().map(|spend| is_split && is_charge(spend)).collect();
            let rest = request.spends.iter().zip(&charges).filter(|(_, charge)| !**charge);
            parts.push((spends.len(), charges.clone()));
            spends.push(rest.map(|(spend, _)| *spend).collect());
            let alone = request.spends.iter().zip(&charges).filter(|(_, charge)| **charge);
            spends.extend(alone.map(|(spend, _)| vec![*spend]));
        }
        Some(ChargesApart { spends, parts })
    }

    /// The requests of this batch; `batch` is the original one.
    pub(crate) fn requests(&self, batch: &[Request<'a>]) -> Vec<Request<'_>> {
        let mut requests = Vec::with_capacity(self.spends.len());
        for ((first, charges), original) in self.parts.iter().zip(batch) {
            let alone = charges.iter().filter(|is_charge| **is_charge).count();
            let parts = &self.spends[*first..=*first + alone];
            requests.extend(parts.iter().map(|spends| Request { spends, count: original.count }));
        }
        requests
    }

    /// The outcomes in the order of the original batch.
    pub(crate) fn joined(&self, batch: &[Request<'_>], told: BatchOutcomes) -> BatchOutcomes {
        let (mut starts, mut fold_starts) = (vec![0], vec![0]);
        for request in self.requests(batch) {
            let (spends, folded) = (request.spends.len(), usize::from(request.is_fold()));
            starts.push(starts[starts.len() - 1] + spends);
            fold_starts.push(fold_starts[fold_starts.len() - 1] + spends * folded);
        }
        let (mut outcomes, mut folds) = (Outcomes::new(), Vec::new());
        for ((first, charges), original) in self.parts.iter().zip(batch) {
            outcomes.extend(in_order(charges, &starts[*first..], &told.outcomes));
            if original.is_fold() {
                folds.extend(in_order(charges, &fold_starts[*first..], &told.folds));
            }
        }
        BatchOutcomes { outcomes, folds, ..told }
    }
}

/// What the spends of one request were told: `starts` says where its other spends stand in `told`, and then its charges.
fn in_order<T: Copy>(charges: &[bool], starts: &[usize], told: &[T]) -> impl Iterator<Item = T> {
    let (mut rest, mut alone) = (starts[0], starts[1]);
    charges.iter().map(move |is_charge| {
        let next = if *is_charge { &mut alone } else { &mut rest };
        *next += 1;
        told[*next - 1]
    })
}
