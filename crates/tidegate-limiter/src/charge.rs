//! Charges for hits not known in advance: tokens of a response, bytes of an upload.

use smallvec::SmallVec;
use tidegate_core::{Charge, Hits};
use tidegate_rules::Coordination;
use tidegate_store::CellCharge;

use crate::cell::Charges;
use crate::check::Matched;
use crate::limiter::Limiter;
use crate::observer::Settlement;
use crate::refund::{RefundError, SpentAt};
use crate::request::CheckRequest;

impl Limiter {
    /// Charges `amount` hits to every cell that `request` would touch, whether or not they fit, for cost that was unknown
    /// when the request was admitted. They exceed a limit as far as the rule's `overdraft` allows, and count from when they
    /// were spent: a window that is over is not charged, nor is the next. The request's own costs are ignored; leases cannot
    /// be charged.
    ///
    /// # Errors
    /// When no rule has the domain, or the store did not answer.
    pub async fn charge(
        &self,
        request: &CheckRequest<'_>,
        amount: Hits,
        spent: SpentAt<'_>,
    ) -> Result<(), RefundError> {
        let Some(age) = self.age_of(spent) else { return Ok(()) };
        let how = Settlement::Charged(request, amount, self.spent_before(spent));
        let snapshot = self.rules.load_full();
        let matched = Matched::of(&snapshot, request, self)?;
        let plan = matched.plan(request, &self.lease_ids);
        let charges = plan.refundable().filter(|place| !plan.spends[*place].touch.limit.takes_lease());
        let charges = charges.map(|place| {
            let (spend, overdraft) = (&plan.spends[place], plan.overdraft(place));
            let charge = Charge { hits: amount, age, overdraft };
            (place, CellCharge { cell: spend.cell, limit: spend.touch.limit, charge })
        });
        let Some(remote) = &self.remote else {
            let charges: SmallVec<[CellCharge<'_>; 4]> = charges.map(|(_, charge)| charge).collect();
            let charged = self.store.charge(&charges).answer().await?;
            self.settled(how, (matched.asked_at, charged.at), matched.matches());
            return Ok(());
        };
        let cells = plan.cells(&self.hasher);
        let (mut stored, mut at_home) = (Charges::new(), Vec::new());
        for (place, charge) in charges {
            let ask = &cells.asks[place];
            let coordination = self.local.coordination(ask);
            if coordination != Coordination::Exact {
                self.local.charge(charge);
            }
            if let Some(home) = self.home(ask) {
                at_home.push((home, (home.home_cell(ask), charge.charge)));
            } else if coordination != Coordination::Local {
                stored.push((ask.cell(), charge.charge));
            }
        }
        let charged = remote.charge(stored).await?;
        for (home, charge) in at_home {
            home.charge(vec![charge]).await?;
        }
        self.settled(how, (matched.asked_at, charged.at), matched.matches());
        Ok(())
    }
}
