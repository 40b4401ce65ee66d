//! Separates the charges of requests that are decided in several places.
//!
//! A charge after the fact neither holds the other spends of its request up nor is held up by them
//! ([`Over::Charge`](tidegate_core::Over::Charge)). So in a batch that may have to be undone in part, each charge is a
//! request of its own, with the penalty that it may start: what happens to the rest of its request does not undo it.

use tidegate_core::{Fold, Outcome, Over, Stance, Verdict};
use tidegate_store::{BatchOutcomes, Outcomes, Request, Spend};

/// A batch in which the charges of some requests stand alone.
pub(crate) struct ChargesApart<'a> {
    parts: Vec<SpendsApart<'a>>,
}

/// Some spends of a request.
struct SpendsApart<'a> {
    /// The number of its request in the original batch, and the places of these spends there.
    request: usize,
    places: Vec<usize>,
    spends: Vec<Spend<'a>>,
}

/// What one spend of the original batch got, once it is known.
type Told = Option<(Outcome, Option<Fold>)>;

impl<'a> ChargesApart<'a> {
    /// Separates the charges of `batch`; none if it has none beside other spends.
    pub(crate) fn of(batch: &[Request<'a>]) -> Option<Self> {
        let is_charge = |spend: &Spend<'_>| spend.touch.over() == Over::Charge;
        let is_split =
            |request: &Request<'_>| request.spends.len() > 1 && request.spends.iter().any(is_charge);
        if !batch.iter().any(is_split) {
            return None;
        }
        let mut parts = Vec::new();
        for (number, request) in batch.iter().enumerate() {
            let part = |wanted: &dyn Fn(usize, &Spend<'_>) -> bool| {
                let spends = request.spends.iter().enumerate().filter(|(place, spend)| wanted(*place, spend));
                let (places, spends) = spends.unzip();
                SpendsApart { request: number, places, spends }
            };
            let is_split = is_split(request);
            parts.push(part(&|_, spend| !is_split || !is_charge(spend)));
            let charges = request.spends.iter().enumerate().filter(|(_, spend)| is_split && is_charge(spend));
            parts.extend(charges.map(|(charge, Spend { touch, .. })| {
                let its_penalty = touch.group.penalty();
                let mut part = part(&|place, spend| place == charge || spend.touch.group == its_penalty);
                // A penalty does not refuse a charge.
                let penalties = part.spends.iter_mut().filter(|spend| spend.touch.group.is_penalty);
                penalties.for_each(|spend| spend.touch.group.stance = Stance::Shadow);
                part
            }));
        }
        Some(ChargesApart { parts })
    }

    /// The requests of this batch; `batch` is the original one.
    pub(crate) fn requests(&self, batch: &[Request<'a>]) -> Vec<Request<'_>> {
        let counted = self.parts.iter().map(|part| (&part.spends, batch[part.request].count));
        counted.map(|(spends, count)| Request { spends, count }).collect()
    }

    /// The outcomes in the order of the original batch.
    pub(crate) fn joined(&self, batch: &[Request<'_>], told: BatchOutcomes) -> BatchOutcomes {
        let is_start = |outcome: &Outcome| matches!(outcome.verdict, Verdict::Overdrawn { .. });
        let (mut outcomes, mut folds) = (told.outcomes.iter().copied(), told.folds.iter().copied());
        let mut told_of: Vec<Vec<Told>> =
            batch.iter().map(|request| vec![None; request.spends.len()]).collect();
        for part in &self.parts {
            for place in &part.places {
                let outcome = outcomes.next().expect("one outcome per spend");
                let fold = if batch[part.request].is_fold() { folds.next() } else { None };
                // A penalty is asked by each that may start it: by one it started, or all say the same.
                let known = &mut told_of[part.request][*place];
                if known.is_none() || is_start(&outcome) {
                    *known = Some((outcome, fold));
                }
            }
        }
        let all = told_of.into_iter().flatten().map(|told| told.expect("every spend is in a part"));
        let (outcomes, folds): (Outcomes, Vec<Option<Fold>>) = all.unzip();
        BatchOutcomes { outcomes, folds: folds.into_iter().flatten().collect(), ..told }
    }
}
