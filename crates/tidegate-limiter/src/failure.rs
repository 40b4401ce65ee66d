//! What is answered when the store is not there: each rule's own policy.

use tidegate_core::{Micros, Outcome, Stance, Verdict};
use tidegate_rules::{OnStoreFailure, Rule};
use tidegate_store::{Outcomes, Request, Spend, Store};

use crate::decision::Source;
use crate::plan::Plan;

/// Decides `plan` without the store that failed. A closed rule refuses the whole request; otherwise open rules let it
/// pass and local ones decide on `fallback`, this node's own memory.
pub(crate) async fn decide_without_store(plan: &Plan<'_>, fallback: &dyn Store) -> (Outcomes, Source) {
    let policies: Vec<OnStoreFailure> = (0..plan.spends.len()).map(|spend| policy_of(plan, spend)).collect();
    let closed = |(spend, policy): (&Spend<'_>, &OnStoreFailure)| {
        *policy == OnStoreFailure::Closed && spend.touch.stance == Stance::Enforced
    };
    if plan.spends.iter().zip(&policies).any(closed) {
        let outcomes = policies.iter().map(|policy| match policy {
            OnStoreFailure::Closed => unavailable(),
            OnStoreFailure::Open | OnStoreFailure::Local => passed(),
        });
        return (outcomes.collect(), Source::FallbackClosed);
    }
    let local: Vec<Spend<'_>> = plan
        .spends
        .iter()
        .zip(&policies)
        .filter(|(_, policy)| **policy == OnStoreFailure::Local)
        .map(|(spend, _)| *spend)
        .collect();
    if local.is_empty() {
        return (policies.iter().map(|_| passed()).collect(), Source::FallbackOpen);
    }
    let batch = [Request { spends: &local }];
    let mut decided = match fallback.decide(&batch).answer().await {
        Ok(outcomes) => outcomes.into_iter(),
        Err(_) => return (policies.iter().map(|_| passed()).collect(), Source::FallbackOpen),
    };
    let outcomes = policies.iter().map(|policy| match policy {
        OnStoreFailure::Local => decided.next().unwrap_or_else(passed),
        OnStoreFailure::Open | OnStoreFailure::Closed => passed(),
    });
    (outcomes.collect(), Source::FallbackLocal)
}

/// The policy of the rule that a spend is for: a cell belongs to one rule. A limit that the caller brought along is
/// decided locally.
fn policy_of(plan: &Plan<'_>, spend: usize) -> OnStoreFailure {
    let entry = plan.entries.iter().find(|entry| entry.is_for(spend));
    entry.and_then(|entry| entry.rule).map_or(OnStoreFailure::Local, Rule::on_store_failure)
}

fn passed() -> Outcome {
    Outcome { verdict: Verdict::Admitted { delay: Micros::ZERO }, remaining: 0, reset_after: Micros::ZERO }
}

fn unavailable() -> Outcome {
    Outcome { verdict: Verdict::Refused { retry_after: None }, remaining: 0, reset_after: Micros::ZERO }
}
