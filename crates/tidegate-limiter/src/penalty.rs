//! Once refused, refused for at least as long as the rule says.
//!
//! A penalty is a limit of one hit that every request looks at and only a refused one spends. It begins after the refusal
//! that causes it, with a call that nobody waits for: until it arrives, the limit that refused goes on refusing.

use std::collections::HashMap;

use smallvec::SmallVec;
use tidegate_core::{Hits, Outcome, Verdict};
use tidegate_rules::{Coordination, Rule};
use tidegate_store::{CellCharge, Clock, HELD_RETRY_AFTER};

use crate::check::{Asks, Cells, CheckAnswer, MatchedLimit, Plan};
use crate::deny_cache::{AnsweredCell, CachedCell};
use crate::limiter::Limiter;
use crate::local::charge_now;
use crate::owned::OwnedCell;

impl Limiter {
    /// Begins the penalties of the rules whose limits refused, and says so in `answer`.
    pub(crate) async fn begin_penalties(&self, plan: &Plan<'_>, answer: &mut CheckAnswer) {
        let mut begun: SmallVec<[usize; 1]> = SmallVec::new();
        for penalty in plan.penalties() {
            let Asks::Limit { limit, spend } = penalty.asks else { continue };
            if answer.outcomes[spend].is_admitted() && is_refused(plan, answer, penalty) {
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
        if begun.is_empty() {
            return;
        }
        match &self.remote {
            None => {
                let charges: SmallVec<[CellCharge<'_>; 1]> =
                    begun.iter().map(|spend| charge_now(plan.spends[*spend], 1)).collect();
                if let Err(error) = self.store.charge(&charges).answer().await {
                    self.observer.store_failed(&error);
                }
            }
            Some(remote) => {
                self.remember_penalties(plan, answer, &begun);
                let cells = begun.iter().map(|spend| &plan.spends[*spend]);
                remote.charge_soon(cells.map(|spend| OwnedCell::new(&spend.cell, spend.touch.limit)));
            }
        }
    }

    /// Remembers penalties as if the store had told of them: what the deny cache refuses next has its penalty already, and a
    /// flood charges none of it again.
    fn remember_penalties(&self, plan: &Plan<'_>, answer: &CheckAnswer, begun: &[usize]) {
        let (cells, now) = (Cells::new(&self.hasher, &plan.spends, plan.policies()), self.clock.now());
        for &spend in begun {
            let CachedCell { hash, version, limit, hits, .. } = cells.cached[spend];
            let outcome = answer.outcomes[spend];
            let told = AnsweredCell { limit, version, hits, outcome, sent: now, received: now };
            self.deny_cache.remember(hash, &told);
        }
    }
}

/// The same requests in order, parted before each that another one of its part may punish: one of the same key that is not
/// equal to it. Of equal requests at one moment none passes after one was refused, so they may be asked for together.
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

/// Whether a limit of the penalty's rule refused this request in a way that time heals.
fn is_refused(plan: &Plan<'_>, answer: &CheckAnswer, penalty: &MatchedLimit<'_>) -> bool {
    let index = |entry: &MatchedLimit<'_>| entry.rule.map(Rule::index);
    plan.limits().iter().any(|entry| {
        let Asks::Limit { spend, .. } = entry.asks else { return false };
        entry.descriptor == penalty.descriptor
            && index(entry) == index(penalty)
            && plan.spends[spend].touch.ask.hits > Hits::ZERO
            && answer.outcomes[spend].retry_after().is_some_and(|wait| wait != HELD_RETRY_AFTER)
    })
}
