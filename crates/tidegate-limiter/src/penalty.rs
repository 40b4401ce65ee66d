//! Once refused, refused for at least as long as the rule says.
//!
//! A penalty is a limit of one hit that every request looks at and only a refused one spends. It begins after the refusal
//! that causes it, with a call that nobody waits for: until it arrives, the limit that refused goes on refusing.

use smallvec::SmallVec;
use tidegate_core::{Hits, Outcome, Verdict};
use tidegate_rules::{Coordination, Rule};
use tidegate_store::{CellCharge, Spend};

use crate::check::{Asks, CheckAnswer, MatchedLimit, Plan};
use crate::decision::Source;
use crate::limiter::Limiter;
use crate::local::charge_now;
use crate::owned::OwnedCell;

impl Limiter {
    /// Begins the penalties of the rules whose limits refused, and says so in `answer`.
    pub(crate) async fn begin_penalties(&self, plan: &Plan<'_>, answer: &mut CheckAnswer) {
        let mut begun: SmallVec<[Spend<'_>; 1]> = SmallVec::new();
        for penalty in plan.penalties() {
            let Asks::Limit { limit, spend } = penalty.asks else { continue };
            if answer.outcomes[spend].is_admitted() && is_refused(plan, answer, penalty) {
                let span = limit.limit.quota_window().unwrap_or_default();
                let verdict = Verdict::Refused { retry_after: Some(span) };
                answer.outcomes[spend] = Outcome { verdict, remaining: 0, reset_after: span };
                begun.push(plan.spends[spend]);
                if penalty.rule.map(Rule::coordination) == Some(Coordination::Local) && self.remote.is_some()
                {
                    begun.pop().into_iter().for_each(|spend| self.local.set(spend, 1));
                }
            }
        }
        // What the deny cache refuses was refused by the store a moment ago, and the penalty has begun then.
        if begun.is_empty() || answer.source == Source::DenyCache {
            return;
        }
        match &self.remote {
            None => {
                let charges: SmallVec<[CellCharge<'_>; 1]> =
                    begun.iter().map(|spend| charge_now(*spend, 1)).collect();
                if let Err(error) = self.store.charge(&charges).answer().await {
                    self.observer.store_failed(&error);
                }
            }
            Some(remote) => {
                remote.charge_soon(begun.iter().map(|spend| OwnedCell::new(&spend.cell, spend.touch.limit)));
            }
        }
    }
}

/// Whether a limit of the penalty's rule refused this request in a way that time heals.
fn is_refused(plan: &Plan<'_>, answer: &CheckAnswer, penalty: &MatchedLimit<'_>) -> bool {
    let index = |entry: &MatchedLimit<'_>| entry.rule.map(Rule::index);
    plan.limits().iter().any(|entry| {
        let Asks::Limit { spend, .. } = entry.asks else { return false };
        entry.descriptor == penalty.descriptor
            && index(entry) == index(penalty)
            && plan.spends[spend].touch.ask.hits > Hits::ZERO
            && answer.outcomes[spend].retry_after().is_some()
    })
}
