//! Background work: heartbeats, settling with a store that has recovered, approximate counts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tidegate_core::{Charge, Hits, Micros};
use tidegate_store::{CellCharge, Clock, Record, Request, Spend, Stamped, StoreError};

use super::{Remote, RequestNames};
use crate::cell::{CellPolicy, Charges, KeptAsk};
use crate::lease::keys::{self, LeaseKeys};
use crate::lifecycle::{End, Lifecycle};
use crate::local::approximate::Unreported;
use crate::observer::{BreakerState, StoreCall};
use crate::snapshot::Snapshot;

/// How often servers that recovered, and debts, are looked for.
const LOOK_EVERY: Micros = Micros::from_millis(500);
/// How long a limiter counts as alive after a heartbeat; heartbeats are five times as frequent.
pub(super) const MEMBER_TTL: Micros = Micros::from_secs(5);
/// The shortest interval between two syncs of approximate counts, however short a rule sets it.
const SHORTEST_SYNC: Micros = Micros::from_millis(10);
/// How often the store is asked for the lease signing key.
const LEASE_KEY_EVERY: Micros = Micros::from_secs(60);
/// The most cells in one background call.
pub(crate) const LARGEST_BATCH: usize = 128;
/// Local cells are swept in this many parts, one per second.
const SWEEP_PARTS: usize = 60;

impl Remote {
    /// Keeps this node in touch with its store, until its limiter ends.
    pub(crate) async fn maintain(
        self: &Arc<Self>,
        rules: &ArcSwap<Snapshot>,
        names: &RequestNames,
        lease_keys: &LeaseKeys,
        life: &Lifecycle,
    ) -> End {
        let _probing = self.start_probing();
        let mut next_beat = self.clock.uptime();
        let mut next_key = next_beat;
        let mut next_look = next_beat;
        let mut next_sync = next_beat + sync_every(rules);
        loop {
            if let Some(end) = life.ending() {
                return end;
            }
            let uptime = self.clock.uptime();
            if uptime >= next_beat {
                next_beat = uptime + LOOK_EVERY + LOOK_EVERY;
                self.beat().await;
                self.local.memory.sweep(SWEEP_PARTS);
                self.local.approximate.sweep(self.clock.now());
            }
            if uptime >= next_look {
                next_look = uptime + LOOK_EVERY;
                self.readmit().await;
                self.pay_debts().await;
                self.give_orphans_back().await;
                self.return_hits().await;
                self.write_what_is_unwritten(names).await;
            }
            if uptime >= next_key {
                let shared = self.share_lease_key(lease_keys).await;
                next_key = uptime + if shared { LEASE_KEY_EVERY } else { LOOK_EVERY };
            }
            if uptime >= next_sync {
                self.reconcile().await;
                next_sync = self.clock.uptime() + sync_every(rules);
            }
            let next = next_beat.min(next_look).min(next_sync).min(next_key);
            let pause = next.saturating_sub(self.clock.uptime());
            self.pause(pause.max(Micros::from_millis(1)), life).await;
        }
    }

    /// Sends a heartbeat, and learns the number of live limiters.
    async fn beat(&self) {
        let began = self.clock.uptime();
        self.local.fleet.joined.store(true, Ordering::Relaxed);
        let heartbeat = self.store.heartbeat(self.local.fleet.member, MEMBER_TTL).answer();
        let answer = self.attend(self.timeout, heartbeat).await;
        self.observer.store_called(StoreCall::Heartbeat, self.clock.uptime().saturating_sub(began));
        match answer.unwrap_or_else(|| Err(self.timed_out(&[0], self.timeout))) {
            Ok(size) => {
                self.local.fleet.heard(size, self.clock.now());
                let uptime = self.clock.uptime();
                self.local.fleet.answered(uptime, uptime.saturating_sub(began));
                self.observer.fleet_counted(self.local.fleet.size());
            }
            // Overloaded: no fault is known, and the next heartbeat comes long before the fleet drops this limiter.
            Err(StoreError::TimedOut { endpoint, .. }) if !self.has_failed(&endpoint) => {}
            Err(error) => {
                self.observer.store_failed(&error);
                let why = with_its_cause(&error);
                if self.local.fleet.unheard(why.clone()) {
                    self.observer.heartbeat_lost(&why);
                }
            }
        }
    }

    /// Signs leases with the key that the fleet keeps in the store, or makes its own that key; false if the store does not
    /// answer. Called periodically, so that the key does not expire in the store.
    pub(crate) async fn share_lease_key(&self, keys: &LeaseKeys) -> bool {
        if !keys.are_shared_by_the_store() {
            return true;
        }
        let own = keys.signing();
        let put = self.store.put_record(Record { name: keys::RECORD, value: &own }, keys::KEPT).answer();
        let Some(Ok(known)) = self.attend(self.timeout, put).await else { return false };
        let fleets = known.unwrap_or(own.to_vec());
        keys.learn(&fleets);
        let same = Record { name: keys::RECORD, value: &fleets };
        let again = self.store.replace_record(same, Some(&fleets), keys::KEPT).answer();
        matches!(self.attend(self.timeout, again).await, Some(Ok(_)))
    }

    /// Whether the node with this endpoint has failed.
    fn has_failed(&self, endpoint: &str) -> bool {
        let named = (0..self.store.nodes()).find(|node| self.store.endpoint(*node) == endpoint);
        named.is_some_and(|node| self.breakers.state(node) != BreakerState::Closed)
    }

    /// Reports to the store what approximate rules have admitted here, and learns what is left.
    async fn reconcile(self: &Arc<Self>) {
        loop {
            let due = self.local.approximate.due(LARGEST_BATCH, self.clock.now());
            let more = due.len() == LARGEST_BATCH;
            let mut all_told = true;
            for due in self.by_node(due) {
                all_told &= self.report(due).await;
            }
            if !all_told || !more {
                return;
            }
        }
    }

    /// Splits `due` by node: if one of several nodes fails, it would be unknown which of the rest were reported.
    fn by_node(&self, due: Vec<Unreported>) -> Vec<Vec<Unreported>> {
        let mut nodes: Vec<(usize, Vec<Unreported>)> = Vec::new();
        for due in due {
            let node = self.store.node_of(due.cell.tag());
            match nodes.iter_mut().find(|(known, _)| *known == node) {
                Some((_, of_node)) => of_node.push(due),
                None => nodes.push((node, vec![due])),
            }
        }
        nodes.into_iter().map(|(_, of_node)| of_node).collect()
    }

    /// Reports one cell to the store in the background.
    pub(crate) fn report_soon(self: &Arc<Self>, due: Unreported) {
        let remote = self.clone();
        self.runtime.spawn(Box::pin(async move {
            remote.report(vec![due]).await;
        }));
    }

    /// Reports these cells to the store, and learns what is left of each; false if it does not answer.
    pub(super) async fn report(self: &Arc<Self>, due: Vec<Unreported>) -> bool {
        let charge = |due: &Unreported| (due.cell.clone(), Charge::now(Hits::new(due.hits)));
        let told = self.charge(due.iter().map(charge).collect()).await;
        for Unreported { cell, hits } in &due {
            let (hash, hits) = (cell.hash(), *hits);
            match &told {
                Err(error) if error.is_certainly_not_applied() => {
                    self.local.approximate.was_not_told(hash, hits);
                }
                // What may have been counted is not reported again: the fleet may admit that much more.
                Err(_) => self.local.approximate.may_have_been_told(hash, hits, self.clock.now()),
                Ok(_) => self.local.approximate.was_told(hash, hits),
            }
        }
        if told.is_err() {
            return false;
        }
        let looks: Vec<KeptAsk> = due.iter().map(|due| due.cell.look(CellPolicy::CALLER_LIMIT)).collect();
        let nodes = self.nodes_of(looks.iter().map(|look| look.cell.tag()));
        let (remote, asked) = (self.clone(), looks.clone());
        let heard = self.run(StoreCall::Decide, nodes, async move {
            let spends: Vec<[Spend<'_>; 1]> = asked.iter().map(|look| [look.spend()]).collect();
            let batch: Vec<Request<'_>> = spends.iter().map(|spends| Request::once(spends)).collect();
            remote.store.decide(&batch).answer().await
        });
        let Ok(outcomes) = heard.await else { return false };
        for (look, outcome) in looks.iter().zip(&outcomes) {
            self.local.hear(&look.borrow(), outcome, self.clock.now());
        }
        true
    }

    pub(crate) async fn charge(self: &Arc<Self>, charges: Charges) -> Result<Stamped<()>, StoreError> {
        if charges.is_empty() {
            return Ok(Stamped::default());
        }
        let nodes = self.nodes_of(charges.iter().map(|(cell, _)| cell.tag()));
        let remote = self.clone();
        let work = async move {
            let charges: SmallVec<[CellCharge<'_>; 8]> =
                charges.iter().map(|(cell, charge)| cell.charge(*charge)).collect();
            remote.store.charge(&charges).answer().await
        };
        self.run(StoreCall::Charge, nodes, work).await
    }

    /// Releases orphaned leases. Doing so twice is harmless.
    pub(crate) async fn give_orphans_back(self: &Arc<Self>) {
        while let Some(lease) = self.orphans.next() {
            let node = self.store.node_of(lease.cell.tag());
            let (remote, given) = (self.clone(), lease.clone());
            let work = async move { remote.store.release(given.as_ref()).answer().await };
            if self.run(StoreCall::Release, [node].into_iter().collect(), work).await.is_err() {
                return self.orphans.put_back(lease);
            }
            self.orphans.done(&lease);
        }
    }
}

/// How often approximate counts are synced: the shortest interval of any rule.
fn sync_every(rules: &ArcSwap<Snapshot>) -> Micros {
    let snapshot = rules.load();
    let shortest = snapshot.rules().rules().filter_map(|rule| rule.coordination().sync_every()).min();
    shortest.unwrap_or(LOOK_EVERY).max(SHORTEST_SYNC)
}

/// Includes the cause, for operators.
fn with_its_cause(error: &StoreError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
