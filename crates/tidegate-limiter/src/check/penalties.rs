//! Starts the penalties of the rules that refuse a request.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Charge, Hits, Outcome, Timestamp, Touch, Verdict};
use tidegate_rules::{Coordination, Rule};
use tidegate_store::{Clock, HELD_RETRY_AFTER};

use super::classify::Cells;
use super::pending::CheckAnswer;
use super::plan::{Asks, MatchedLimit, Plan};
use crate::deny_cache::AnsweredCell;
use crate::limiter::Limiter;
use crate::observer::{Settled, Settlement};
use crate::owned::{OwnedCell, OwnedCharge};
use crate::penalty::{Penalty, PenaltyCell, StartingPenalty};
use crate::remote::Remote;
use crate::request::PenaltyStart;

/// What waits until a penalty has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PenaltyWait {
    /// Nothing.
    Nobody,
    /// The later requests of a batch.
    Others,
}

impl Limiter {
    /// Starts the penalties of the rules whose limits refused, and records that in `answer`.
    pub(crate) async fn begin_penalties(
        &self,
        plan: &Plan<'_>,
        start: PenaltyStart,
        answer: &mut CheckAnswer,
        wait: PenaltyWait,
    ) {
        let asked_at = self.clock.now();
        let begun = self.refused_penalties(plan, start, answer);
        if begun.is_empty() {
            return;
        }
        let cells = Cells::new(&self.hasher, &plan.spends, plan.policies());
        let is_new =
            |spend: &&usize| self.remote.is_none() || self.penalties.begin(cells.cached[**spend].hash);
        let cell = |spend: &usize| {
            let asked = &plan.spends[*spend];
            let cell = OwnedCell::new(&asked.cell, asked.touch.limit);
            PenaltyCell { cell, hash: cells.cached[*spend].hash }
        };
        let cells: SmallVec<[PenaltyCell; 1]> = begun.iter().filter(is_new).map(cell).collect();
        if cells.is_empty() {
            return;
        }
        let penalty = Arc::new(Penalty { mark: self.penalties.next_mark(), cells });
        answer.penalty = Some(penalty.clone());
        match &self.remote {
            _ if start == PenaltyStart::WhenTold => {}
            None => self.penalize(&penalty).await,
            Some(remote) => {
                let starting = StartingPenalty { penalty, penalties: self.penalties.clone() };
                let charge = remote.clone().charge_penalty(starting, asked_at);
                match wait {
                    PenaltyWait::Nobody => remote.spawn(Box::pin(charge)),
                    PenaltyWait::Others => charge.await,
                }
            }
        }
    }

    /// The places of penalties that start now, of those the store counts. `answer` reports all as refusing. One already
    /// started does not start again, except with `PenaltyStart::WhenTold`: a node learns late what others have started.
    fn refused_penalties(
        &self,
        plan: &Plan<'_>,
        start: PenaltyStart,
        answer: &mut CheckAnswer,
    ) -> SmallVec<[usize; 1]> {
        let mut begun: SmallVec<[usize; 1]> = SmallVec::new();
        for penalty in plan.penalties() {
            let Asks::Limit { limit, spend } = penalty.asks else { continue };
            let is_new = answer.outcomes[spend].is_admitted();
            if (is_new || start == PenaltyStart::WhenTold) && is_refused(plan, answer, penalty) {
                if !is_new {
                    begun.push(spend);
                    continue;
                }
                let span = limit.limit.quota_window().unwrap_or_default();
                let verdict = Verdict::Refused { retry_after: Some(span) };
                answer.outcomes[spend] = Outcome { verdict, remaining: 0, reset_after: span };
                if penalty.rule.map(Rule::coordination) == Some(Coordination::Local) && self.remote.is_some()
                {
                    self.local.set(plan.spends[spend], 1);
                } else {
                    begun.push(spend);
                }
            }
        }
        begun
    }

    /// Starts a penalty in an in-memory store, now: for a request made with [`PenaltyStart::WhenTold`].
    pub async fn penalize(&self, penalty: &Penalty) {
        let asked_at = self.clock.now();
        match self.store.charge(&penalty.charges()).answer().await {
            Ok(charged) => self.settled(Settlement::Penalized(penalty), (asked_at, charged.at), &[]),
            Err(error) => self.observer.store_failed(&error),
        }
    }
}

impl Remote {
    /// Charges the cells of a penalty and caches it as the store has it: the next request is refused here. A failure goes to
    /// the observer; then only this node keeps the penalty, for as long as it caches a refusal.
    async fn charge_penalty(self: Arc<Self>, starting: StartingPenalty, asked_at: Timestamp) {
        let penalty = &starting.penalty;
        let charge = Charge::now(Hits::ONE);
        let owned = |one: &PenaltyCell| OwnedCharge { cell: one.cell.clone(), charge };
        let sent = self.clock.now();
        let charged = self.charge(penalty.cells.iter().map(owned).collect()).await;
        let (received, done_at) = (self.clock.now(), charged.as_ref().ok().and_then(|charged| charged.at));
        for PenaltyCell { cell, hash } in &penalty.cells {
            let limit = &cell.limit;
            let (span, version) = (limit.quota_window().unwrap_or_default(), limit.fingerprint());
            let verdict = Verdict::Refused { retry_after: Some(span) };
            let outcome = Outcome { verdict, remaining: 0, reset_after: span };
            let (hits, decided_at) = (Hits::ZERO, done_at);
            let told = AnsweredCell { limit, version, hits, outcome, sent, received, decided_at };
            self.deny_cache.remember_charged(*hash, &told);
        }
        if charged.is_ok() {
            let how = Settlement::Penalized(penalty);
            self.observer.settled(&Settled { how, asked_at, done_at, matches: &[] });
        }
    }
}

/// Splits the requests, in order, before each one that another of its part may penalise: one with the same key that is not
/// equal to it. Of equal requests at one moment none passes after one was refused, so they may share a call.
pub(crate) fn apart_by_penalties<'a, 'p>(plans: &'a [&'a Plan<'p>]) -> Vec<&'a [&'a Plan<'p>]> {
    let (mut parts, mut start) = (Vec::new(), 0);
    let mut punishable: HashMap<([u64; 2], &[u8]), &Plan<'_>> = HashMap::new();
    for (place, plan) in plans.iter().enumerate() {
        let cells = || {
            plan.penalties().iter().filter_map(|penalty| match penalty.asks {
                Asks::Limit { spend, .. } => Some(plan.spends[spend].cell),
                _ => None,
            })
        };
        let names = || cells().map(|cell| (cell.scope.digest(), cell.key));
        let may_punish = |name| punishable.get(&name).is_some_and(|other| !plan.spends_the_same(other));
        if names().any(may_punish) {
            parts.push(&plans[start..place]);
            start = place;
            punishable.clear();
        }
        punishable.extend(names().map(|name| (name, *plan)));
    }
    parts.push(&plans[start..]);
    parts
}

/// Whether a limit of the penalty's rule refused this request: because of what was spent, or because it costs more than the
/// whole limit. A store that cannot be asked refuses too, but nobody is to blame for that.
fn is_refused(plan: &Plan<'_>, answer: &CheckAnswer, penalty: &MatchedLimit<'_>) -> bool {
    let index = |entry: &MatchedLimit<'_>| entry.rule.map(Rule::index);
    plan.limits().iter().any(|entry| {
        let Asks::Limit { spend, .. } = entry.asks else { return false };
        entry.descriptor == penalty.descriptor
            && index(entry) == index(penalty)
            && plan.spends[spend].touch.ask.hits > Hits::ZERO
            && is_to_blame(&plan.spends[spend].touch, &answer.outcomes[spend])
    })
}

fn is_to_blame(touch: &Touch<'_>, outcome: &Outcome) -> bool {
    match outcome.verdict {
        Verdict::Admitted { .. } | Verdict::Capped { .. } => false,
        Verdict::Refused { retry_after: Some(wait) } => wait != HELD_RETRY_AFTER,
        Verdict::Refused { retry_after: None } => touch.needs().get() > touch.limit.quota(),
        Verdict::Overdrawn { .. } => true,
    }
}
