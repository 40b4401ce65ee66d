//! A shadow rule spends as if it were enforced: from all its limits or from none, and from none while its penalty lasts.
//!
//! A refusal by a shadow rule refuses nothing, so the store decides each of its limits separately. What the others spent then
//! goes back: at once in memory. On the way to a remote store refunds are gathered for a moment first, because every request of
//! a flood that a shadow rule would refuse causes one.

use smallvec::SmallVec;
use tidegate_core::{Limit, Outcome, Timestamp};
use tidegate_rules::{Mode, Rule};
use tidegate_store::Clock;

use crate::check::{Asks, MatchedLimit, Plan};
use crate::limiter::Limiter;
use crate::owned::OwnedCell;
use crate::refund::Return;

impl Limiter {
    /// Gives back what limits of shadow rules spent on a request that passed, if another limit of the same rule refuses it.
    pub(crate) async fn settle_shadows(&self, plan: &Plan<'_>, outcomes: &[Outcome], asked_at: Timestamp) {
        if outcomes.iter().all(Outcome::is_spent) {
            return;
        }
        let age = self.clock.now().since(asked_at);
        let spent = spent_in_vain(plan, outcomes).into_iter();
        let returns: SmallVec<[Return; 4]> = spent
            .map(|place| {
                let hits = outcomes[place].spent_of(plan.spends[place].touch.ask.hits);
                Return { place, hits, age }
            })
            .collect();
        if returns.is_empty() {
            return;
        }
        let Some(remote) = &self.remote else {
            return self.refund_in_memory(plan, &returns).await;
        };
        let hash = |cell: &OwnedCell| self.hasher.cell(&cell.key());
        let given = self.given_back(plan, &returns).into_iter();
        remote.refund_gathered(given.map(|(cell, hits, _)| (hash(&cell), cell, hits)), asked_at);
    }
}

/// The spends of limits of shadow rules that admitted, where another limit of the same rule or its penalty refuses.
fn spent_in_vain(plan: &Plan<'_>, outcomes: &[Outcome]) -> SmallVec<[usize; 4]> {
    let refuses = |entry: &MatchedLimit<'_>| matches!(entry.asks, Asks::Limit { spend, .. } if !outcomes[spend].is_spent());
    let is_refused_shadow = |one: &MatchedLimit<'_>| {
        let same = |other: &&MatchedLimit<'_>| {
            other.descriptor == one.descriptor && other.rule.map(Rule::index) == one.rule.map(Rule::index)
        };
        one.rule.map(Rule::mode) == Some(Mode::Shadow) && plan.entries.iter().filter(same).any(refuses)
    };
    // By spend: two descriptors may share one.
    let in_vain = |place: &usize| {
        outcomes[*place].is_admitted()
            && may_go_back(plan.spends[*place].touch.limit)
            && plan.limits().iter().any(|entry| entry.is_for(*place) && is_refused_shadow(entry))
    };
    plan.refundable().filter(in_vain).collect()
}

/// Whether a limit would not count a refused request either, and can take hits back.
fn may_go_back(limit: &Limit) -> bool {
    !limit.counts_refused() && limit.takes_refunds()
}
