//! Before a core takes requests: connects, loads the scripts of the rules, and learns the fleet size.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tidegate_core::{Algorithm, Ask, Limit, Micros, Scope, Stance, Touch};
use tidegate_store::{CellKey, Clock, Request, Spend};

use super::Remote;
use crate::lease_key::LeaseKeys;
use crate::snapshot::Snapshot;

/// Pause between attempts.
const TRY_EVERY: Micros = Micros::from_millis(20);
/// Scripts are preloaded for this many rules. Others load on first use.
const MOST_RULES: usize = 64;
/// A node without a tag among so many has next to no cells.
const MOST_TAGS: u32 = 4_096;

impl Remote {
    /// Tries to reach the store for at most `patience`; false if that was too short.
    pub(crate) async fn warm_up(
        self: &Arc<Self>,
        rules: &ArcSwap<Snapshot>,
        keys: &LeaseKeys,
        patience: Micros,
    ) -> bool {
        let until = self.clock.now() + patience;
        loop {
            if self.is_in_touch(keys).await {
                self.load_scripts(rules).await;
                return true;
            }
            if self.clock.now() >= until {
                return false;
            }
            self.runtime.sleep(TRY_EVERY).await;
        }
    }

    async fn is_in_touch(&self, keys: &LeaseKeys) -> bool {
        let (member, ttl) = (self.local.fleet.member, super::background::MEMBER_TTL);
        self.local.fleet.joined.store(true, Ordering::Relaxed);
        let heartbeat = self.store.heartbeat(member, ttl).answer();
        let Some(Ok(size)) = self.attend(TRIED_FOR, heartbeat).await else { return false };
        self.local.fleet.heard(size, self.clock.now());
        for node in 0..self.store.nodes() {
            let probe = self.attend(TRIED_FOR, self.store.probe(node).answer()).await;
            if !matches!(probe, Some(Ok(()))) {
                return false;
            }
        }
        self.share_lease_key(keys).await
    }

    /// Looks at unused cells of each node, as requests would: at each algorithm alone, and at all limits of a rule at once.
    async fn load_scripts(&self, rules: &ArcSwap<Snapshot>) {
        let snapshot = rules.load_full();
        let tags = self.tag_of_each_node();
        let mut asked: Vec<Vec<Algorithm>> = Vec::new();
        for rule in snapshot.rules().rules().take(MOST_RULES) {
            let limits: Vec<&Limit> = rule.limits().map(|limit| &limit.limit).collect();
            let alone = limits.iter().map(std::slice::from_ref);
            for limits in alone.chain([&limits[..]]) {
                let algorithms: Vec<Algorithm> = limits.iter().map(|limit| limit.algorithm()).collect();
                if !asked.contains(&algorithms) && !algorithms.is_empty() {
                    asked.push(algorithms);
                    for tag in &tags {
                        self.look_at(limits, tag.as_bytes()).await;
                    }
                }
            }
        }
    }

    /// A tag of a cell on each node, for as many nodes as have one among the first few thousand.
    fn tag_of_each_node(&self) -> Vec<String> {
        let mut tags = vec![None; self.store.nodes().max(1)];
        for tag in (0..MOST_TAGS).map(|number| format!("warm-up{number}")) {
            let node = self.store.node_of(tag.as_bytes());
            if let Some(found) = tags.get_mut(node) {
                found.get_or_insert(tag);
            }
            if tags.iter().all(Option::is_some) {
                break;
            }
        }
        tags.into_iter().flatten().collect()
    }

    async fn look_at(&self, limits: &[&Limit], tag: &[u8]) {
        let scopes: Vec<Scope> =
            (0..limits.len()).map(|number| Scope::new(&[b"warm-up", &number.to_le_bytes()])).collect();
        let look = |(limit, scope)| {
            let cell = CellKey { scope, key: tag, tag };
            Spend { cell, touch: Touch { limit, ask: Ask::look(), stance: Stance::Enforced } }
        };
        let spends: SmallVec<[Spend<'_>; 4]> = limits.iter().copied().zip(&scopes).map(look).collect();
        let request = [Request::once(&spends)];
        // What failed to load loads on first use.
        let _ = self.attend(TRIED_FOR, self.store.decide(&request).answer()).await;
    }
}

/// How long to wait for one answer, connecting included.
const TRIED_FOR: Micros = Micros::from_millis(500);
