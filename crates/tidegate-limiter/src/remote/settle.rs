//! What this node owes a store that has recovered: hits spent and leases issued here while the store was unavailable. The
//! store gets both before requests go there again: otherwise it would admit the same once more.
//!
//! A failure of unknown fate is not retried: it may have been applied.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::{Ask, Charge, Group, Hits, Micros, Touch};
use tidegate_store::{CellCharge, Clock, Request, Spend, StoreError};

use super::background::LARGEST_BATCH;
use super::{LATE_CALLS_HEARD_FOR, Remote};
use crate::cell::{Charges, KeptAsk, KeptCell};
use crate::deny_cache::AnswerTimes;
use crate::local::ledger::Debt;
use crate::observer::{BreakerState, StoreCall};
use crate::runtime::within;

/// The pause after a node that answers was found to be owed nothing.
const NOTHING_OWED_PAUSE: Micros = Micros::from_millis(100);

impl Remote {
    /// Whether anything is owed to any node.
    fn owes(&self) -> bool {
        self.local.ledger.len() + self.local.lent.unknown() > 0
    }

    /// `node` has answered, and proved that it is alive. If it is owed something, it is settled first, and its breaker stays
    /// as it is until then.
    pub(super) fn answers_again(self: &Arc<Self>, node: usize) {
        let is_closed = self.breakers.all_closed() || self.breakers.state(node) == BreakerState::Closed;
        if !is_closed && self.owes() {
            return self.readmit_soon(node);
        }
        self.tell(self.breakers.answered(node));
        if self.local.ledger.owes_shares() && !self.local.settling.is_under_way() {
            self.settle_soon(node);
        }
    }

    /// Settles with `node` in the background, and closes its breaker.
    fn readmit_soon(self: &Arc<Self>, node: usize) {
        if self.stats_of(node).is_settled_with.swap(true, Ordering::Relaxed) {
            return;
        }
        let remote = self.clone();
        self.spawn(Box::pin(async move {
            if remote.settle_with(node).await {
                remote.tell(remote.breakers.answered(node));
            }
            remote.stats_of(node).is_settled_with.store(false, Ordering::Relaxed);
        }));
    }

    /// Settles with `node` in the background. What is owed may all be owed to other nodes: then there is a pause before this
    /// one is looked at again, because it answers thousands of calls a second, and each look reads all debts.
    fn settle_soon(self: &Arc<Self>, node: usize) {
        let uptime = self.clock.uptime();
        if !self.stats_of(node).next_settlement.is_due(uptime) {
            return;
        }
        let remote = self.clone();
        self.spawn(Box::pin(async move {
            if remote.local.ledger.owes(|cell| remote.store.node_of(cell.tag()) == node) {
                remote.settle_with(node).await;
            } else {
                remote.stats_of(node).next_settlement.put_off(uptime, NOTHING_OWED_PAUSE);
            }
        }));
    }

    /// Settles with every node that answers.
    pub(super) async fn pay_debts(self: &Arc<Self>) {
        for node in 0..self.store.nodes() {
            if self.breakers.state(node) == BreakerState::Closed && self.owes() {
                self.settle_with(node).await;
            }
        }
    }

    /// Settles with `node`; false if anything remains owed.
    pub(super) async fn settle_with(self: &Arc<Self>, node: usize) -> bool {
        let Some(_turn) = self.local.settling.turn() else { return false };
        // What calls of unknown fate have taken is released first: it may block the leases that are held.
        self.pay_debts_to(node).await
            && self.release_orphans_of(node).await
            && self.hand_over_leases(node).await
    }

    /// Releases the orphaned leases of `node`.
    async fn release_orphans_of(&self, node: usize) -> bool {
        for _ in 0..self.orphans.len() {
            let Some(lease) = self.orphans.next() else { break };
            if self.store.node_of(lease.cell.tag()) != node || self.local.lent.get(&lease).is_some() {
                self.orphans.put_back(lease);
                continue;
            }
            let released = self.store.release(lease.as_ref()).answer();
            if self.told(StoreCall::Release, node, released).await.is_err() {
                self.orphans.put_back(lease);
                return false;
            }
            self.orphans.done(&lease);
        }
        true
    }

    /// Charges `node` with what was spent here while it was unavailable: once, and only what still counts. Node by node: if
    /// one of several fails, it would be unknown which of the rest were charged.
    async fn pay_debts_to(self: &Arc<Self>, node: usize) -> bool {
        let local = &self.local;
        // Bounded, because concurrent spends create new debts.
        for _ in 0..local.ledger.len().div_ceil(LARGEST_BATCH) {
            let due = local.ledger.due(LARGEST_BATCH, |cell| self.store.node_of(cell.tag()) == node);
            if due.is_empty() {
                break;
            }
            let charges: Charges = due.iter().filter_map(|debt| self.charge_for(debt)).collect();
            let (cells, hits) = (charges.len(), charges.iter().map(|(_, charge)| charge.hits.get()).sum());
            let paid = match cells {
                0 => Ok(()),
                _ => self.charge_debts(node, charges, due.clone()).await,
            };
            if paid.as_ref().is_err_and(StoreError::is_certainly_not_applied) {
                // It is still owed.
                return false;
            }
            // What this node has spent of its share stays spent, for the next failure in the same window.
            due.iter().for_each(|debt| local.ledger.settle(debt.cell.hash(), debt.hits));
            self.observer.debts_paid(cells, hits, paid.as_ref().err());
        }
        true
    }

    /// Charges `node` within the deadline. If its answer comes later, and says that it did not begin with it, `debts` are owed
    /// again: a paused store discards what it finds after half a second.
    async fn charge_debts(
        self: &Arc<Self>,
        node: usize,
        charges: Charges,
        debts: Vec<Debt>,
    ) -> Result<(), StoreError> {
        let (store, sent) = (self.store(), self.clock.now());
        let mut call = Box::pin(async move {
            let charges: Vec<CellCharge<'_>> =
                charges.iter().map(|(cell, charge)| cell.charge(*charge)).collect();
            store.charge(&charges).answer().await
        });
        let answer = self.attend(self.timeout, call.as_mut()).await;
        self.observer.store_called(StoreCall::Charge, self.clock.now().since(sent));
        if let Some(answer) = answer {
            return answer.map(drop);
        }
        let remote = self.clone();
        self.spawn(Box::pin(async move {
            let answer = within(&*remote.runtime, LATE_CALLS_HEARD_FOR, call).await;
            if answer.is_some_and(|answer| answer.is_err_and(|error| error.is_certainly_not_applied())) {
                debts.into_iter().for_each(|debt| remote.local.ledger.owe_again(debt));
            }
        }));
        Err(self.timed_out(&[node], self.timeout))
    }

    /// What is still to be charged of a debt: not what has already left its window.
    fn charge_for(&self, debt: &Debt) -> Option<(KeptCell, Charge)> {
        let share = debt.cell.limit().divided(self.local.divisor(debt.portion));
        let touch = Touch { limit: &share, ask: Ask::look(), group: Group::ENFORCED };
        let left = self.local.look(Spend { cell: debt.cell.key(), touch }).remaining;
        let hits = debt.hits.min(share.quota().saturating_sub(left));
        (hits > 0).then(|| (debt.cell.clone(), Charge::now(Hits::new(hits))))
    }

    /// Takes over at `node`, by name, the leases that were issued here. One that finds no room there, because other nodes
    /// issued theirs too, is retried later.
    async fn hand_over_leases(&self, node: usize) -> bool {
        let is_there = |ask: &KeptAsk| self.store.node_of(ask.cell.tag()) == node;
        for ask in self.local.lent.due(self.clock.now(), is_there) {
            let Some(lease) = ask.lease() else { continue };
            // A call of unknown fate may have requested it before it was issued here, and queued its release.
            self.orphans.is_held(&lease);
            match self.take_over(&ask, node).await {
                Ok(true) if self.local.lent.is_known_now(&lease) => {}
                // Its holder has released it meanwhile.
                Ok(true) => self.orphans.add([lease]),
                Ok(false) => {}
                Err(_) => return false,
            }
        }
        true
    }

    async fn take_over(&self, ask: &KeptAsk, node: usize) -> Result<bool, StoreError> {
        let spends = [ask.spend()];
        let batch = [Request::once(&spends)];
        let sent = self.clock.now();
        let told = self.told(StoreCall::Decide, node, self.store.decide(&batch).answer()).await?;
        let Some(outcome) = told.outcomes.first() else { return Ok(false) };
        let when = AnswerTimes { sent, received: self.clock.now(), decided: told.decided_at };
        self.learn(ask, *outcome, when);
        Ok(outcome.is_admitted())
    }

    /// The answer of `node` to `work` within the deadline, whatever its breaker's state, and without notifying the breaker.
    async fn told<T>(
        &self,
        call: StoreCall,
        node: usize,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let sent = self.clock.now();
        let answer = self.attend(self.timeout, work).await;
        self.observer.store_called(call, self.clock.now().since(sent));
        answer.unwrap_or_else(|| Err(self.timed_out(&[node], self.timeout)))
    }
}
