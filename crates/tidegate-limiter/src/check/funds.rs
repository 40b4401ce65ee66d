//! Waits for hits of rules for all regions, where this node holds too few.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::Micros;
use tidegate_rules::Coordination;
use tidegate_store::Clock;

use super::classify::Cells;
use crate::cell::CellAsk;
use crate::limiter::Limiter;
use crate::local::LocalReason;
use crate::local::purses::Funds;
use crate::observer::BreakerState;
use crate::remote::{Funded, Remote};
use crate::runtime::within;

/// Waits until every purse that these requests touch can pay, or refuses; at most as long as a request may wait for its home. What is
/// still unknown then is for the rule's failure policy.
#[inline]
pub(super) async fn until_funded(limiter: &Limiter, requests: &[Cells<'_>]) {
    let first = limiter.ask_homes(requests);
    if !first.is_empty() {
        // Seldom, and large: a request whose purses can pay does not pay for this.
        Box::pin(wait(limiter, requests, first)).await;
    }
}

async fn wait<'l>(limiter: &'l Limiter, requests: &[Cells<'_>], first: Waits<'l>) {
    let began = limiter.clock.uptime();
    let mut waits = first;
    while !waits.is_empty() {
        for (home, waiter) in waits {
            let left = home.timeout().saturating_sub(limiter.clock.uptime().saturating_sub(began));
            if left == Micros::ZERO || home.until(left, waiter).await.is_none() {
                return;
            }
        }
        waits = limiter.ask_homes(requests);
    }
}

type Waits<'l> = SmallVec<[(&'l Arc<Remote>, Funded); 2]>;

impl Limiter {
    /// Asks for what purses lack.
    fn ask_homes(&self, requests: &[Cells<'_>]) -> Waits<'_> {
        let asks = requests.iter().filter(|cells| !cells.without_the_store && !cells.is_only_shown);
        let escrow = |ask: &&CellAsk<'_>| ask.policy.coordination == Coordination::Escrow;
        let asks = asks.flat_map(|cells| &cells.asks).filter(escrow);
        let lacks = asks.filter(|ask| self.local.funds(ask) == Some(Funds::Unknown));
        lacks.filter_map(|ask| self.home(ask).and_then(|home| Some((home, home.fund(ask)?)))).collect()
    }

    /// The home of this cell, if all regions count it.
    pub(crate) fn home(&self, ask: &CellAsk<'_>) -> Option<&Arc<Remote>> {
        let is_global = ask.policy.coordination.is_global();
        self.homes.of(ask.spend.cell.scope).filter(|_| is_global)
    }

    /// Pays for `ask` from its purse, or refuses because home has; `None` if neither is possible any more.
    pub(super) fn pay(&self, ask: &CellAsk<'_>) -> Option<LocalReason> {
        let home = self.home(ask)?;
        let (is_paid, is_due) = home.local.purses.pay(ask, self.local.uptime());
        if is_due {
            home.take_soon(ask.hash);
        }
        match self.local.funds(ask)? {
            _ if is_paid => Some(LocalReason::Prepaid),
            Funds::Refused(_) => {
                if home.local.purses.doubts(ask, self.local.uptime()) {
                    home.take_soon(ask.hash);
                }
                Some(LocalReason::Unpaid)
            }
            Funds::Enough | Funds::Unknown => None,
        }
    }

    /// Whether the home of this cell answers, though not in time for it.
    pub(super) fn home_is_late(&self, ask: &CellAsk<'_>) -> bool {
        self.home(ask)
            .is_some_and(|home| home.breakers.state(home.node_of(ask.spend.cell.tag)) == BreakerState::Closed)
    }
}

impl Remote {
    /// Waits for hits for at most `span`.
    async fn until(&self, span: Micros, waiter: Funded) -> Option<Option<()>> {
        within(self.runtime(), span, waiter).await
    }
}
