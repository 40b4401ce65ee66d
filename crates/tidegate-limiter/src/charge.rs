//! Hits that turn out to be more than were asked for: tokens of an answer, bytes of an upload.

use smallvec::SmallVec;
use tidegate_core::{Ask, Hits, Micros};
use tidegate_rules::Coordination;
use tidegate_store::{Clock, Spend};

use crate::check::{Matched, Plan};
use crate::limiter::Limiter;
use crate::owned::{OwnedCell, OwnedSpend};
use crate::refund::{RefundError, SpentAt};
use crate::remote::charge_of;
use crate::request::CheckRequest;

impl Limiter {
    /// Takes `amount` hits from every cell that `request` would touch, whether or not they fit: at most the whole quota, for
    /// what was spent before it was known how much. Its own costs do not matter. A window that is over is not charged, nor
    /// is the one after it; leases cannot be.
    ///
    /// # Errors
    /// When no rule speaks of the domain, or the store did not answer.
    pub async fn charge(
        &self,
        request: &CheckRequest<'_>,
        amount: Hits,
        spent: SpentAt<'_>,
    ) -> Result<(), RefundError> {
        let snapshot = self.rules.load_full();
        let mut matched = Matched::new();
        matched.find(&snapshot, request, self)?;
        let plan = matched.plan(request, &self.lease_ids);
        let charge = |place: usize| {
            let mut spend = plan.spends[place];
            spend.touch.ask = Ask { hits: amount, lease: None };
            spend
        };
        let charges = plan.refundable().filter(|place| self.is_chargeable(&plan, *place, spent));
        let Some(remote) = &self.remote else {
            let charges: SmallVec<[Spend<'_>; 4]> = charges.map(charge).collect();
            return Ok(self.store.charge(&charges).answer().await?);
        };
        let policies: SmallVec<[_; 4]> = plan.policies().collect();
        let mut stored: Vec<OwnedSpend> = Vec::new();
        for place in charges {
            let spend = charge(place);
            if policies[place].coordination != Coordination::Exact {
                self.local.charge(spend);
            }
            if policies[place].coordination != Coordination::Local {
                let cell = OwnedCell::new(&spend.cell, spend.touch.limit);
                stored.push(charge_of(self.hasher.cell(&spend.cell), cell, amount.get()));
            }
        }
        Ok(remote.charge(stored).await?)
    }

    /// Whether hits that were spent then still count in the cell at this place.
    fn is_chargeable(&self, plan: &Plan<'_>, place: usize, spent: SpentAt<'_>) -> bool {
        let limit = plan.spends[place].touch.limit;
        let age = match spent {
            SpentAt::Unknown => Micros::ZERO,
            SpentAt::Ago(age) => age,
            SpentAt::By(decision) if !decision.allowed => return false,
            SpentAt::By(decision) => self.clock.now().since(decision.asked_at()),
        };
        // Of a window the decision said when it ends; a bucket is idle again after its refill time at the latest.
        let over_after = match spent {
            SpentAt::By(decision) if plan.is_of(decision) && !limit.refills() => {
                plan.reset_after(place, decision)
            }
            _ => limit.quota_window(),
        };
        !limit.takes_lease() && over_after.is_none_or(|over_after| age < over_after)
    }
}
