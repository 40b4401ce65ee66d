//! Before a core takes requests: connects, loads the scripts of the rules, and learns the fleet size.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tidegate_core::{Algorithm, Ask, Charge, Group, Hits, LeaseId, Limit, Micros, Scope, Touch};
use tidegate_store::{CellCharge, CellKey, Clock, LeaseRef, Request, Spend};

use super::Remote;
use crate::lease::keys::LeaseKeys;
use crate::snapshot::Snapshot;

/// Pause between attempts.
const TRY_EVERY: Micros = Micros::from_millis(20);
/// Scripts are preloaded for this many rules. Others load on first use.
const MOST_RULES: usize = 64;
/// The most kinds of limits whose scripts are preloaded in all combinations: 63 of them.
const MOST_KINDS: usize = 6;
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
        let until = self.clock.uptime() + patience;
        loop {
            if self.is_in_touch(keys).await {
                self.load_scripts(rules, until).await;
                return true;
            }
            if self.clock.uptime() >= until {
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
        // A node without an endpoint holds no cells.
        for node in (0..self.store.nodes()).filter(|node| !self.store.endpoint(*node).is_empty()) {
            let probe = self.attend(TRIED_FOR, self.store.probe(node).answer()).await;
            if !matches!(probe, Some(Ok(()))) {
                return false;
            }
        }
        self.share_lease_key(keys).await
    }

    /// Looks at unused cells of each node, as calls would. Which script a call needs depends on the kinds of limits in it, and
    /// on whether a request has several: calls carry the requests of a moment, so any of these kinds may come together.
    async fn load_scripts(&self, rules: &ArcSwap<Snapshot>, until: Micros) {
        let snapshot = rules.load_full();
        let tags = self.tag_of_each_node();
        let mut kinds: Vec<&Limit> = Vec::new();
        for limit in snapshot.rules().rules().take(MOST_RULES).flat_map(|rule| rule.limits()) {
            let is_known = |known: &&Limit| kind(known) == kind(&limit.limit);
            if !kinds.iter().any(is_known) {
                kinds.push(&limit.limit);
            }
        }
        let sets = sets_of(&kinds);
        for set in &sets {
            for tag in &tags {
                if self.clock.uptime() >= until {
                    return;
                }
                self.look_at(set, tag.as_bytes()).await;
            }
        }
        for set in &sets {
            for tag in &tags {
                if self.clock.uptime() >= until {
                    return;
                }
                self.change_nothing(set, tag.as_bytes()).await;
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

    /// Charges limits of these kinds with nothing, and releases no lease of them. What is owed to a store may be paid while it
    /// stands still: if it did not know the script, it would say so when nobody hears it any more.
    async fn change_nothing(&self, limits: &[&Limit], tag: &[u8]) {
        let scope = Scope::new(&[b"warm-up"]);
        let cell = CellKey { scope: &scope, key: tag, tag };
        let charge = Charge { age: LONG_AGO, ..Charge::now(Hits::ZERO) };
        let charges: Vec<CellCharge<'_>> =
            limits.iter().map(|limit| CellCharge { cell, limit, charge }).collect();
        let _ = self.attend(TRIED_FOR, self.store.charge(&charges).answer()).await;
        if let [limit] = limits
            && limit.takes_lease()
        {
            let lease = LeaseRef { cell, limit, id: LeaseId(NonZeroU64::MIN) };
            let _ = self.attend(TRIED_FOR, self.store.release(lease).answer()).await;
        }
    }

    /// Looks at limits of these kinds: in a request each, and in one request.
    async fn look_at(&self, limits: &[&Limit], tag: &[u8]) {
        // One kind comes together with itself, as in two rules of the same kind.
        let together = if limits.len() == 1 { limits.repeat(2) } else { limits.to_vec() };
        let scopes: Vec<Scope> =
            (0..together.len()).map(|number| Scope::new(&[b"warm-up", &number.to_le_bytes()])).collect();
        let look = |(limit, scope)| {
            let cell = CellKey { scope, key: tag, tag };
            Spend { cell, touch: Touch { limit, ask: Ask::look(), group: Group::ENFORCED } }
        };
        let spends: SmallVec<[Spend<'_>; 4]> = together.iter().copied().zip(&scopes).map(look).collect();
        let alone: Vec<Request<'_>> = spends.chunks(1).take(limits.len()).map(Request::once).collect();
        for batch in [&alone[..], &[Request::once(&spends)]] {
            // What failed to load loads on first use.
            let _ = self.attend(TRIED_FOR, self.store.decide(batch).answer()).await;
        }
    }
}

/// Longer ago than any window: nothing of it counts any more.
const LONG_AGO: Micros = Micros::from_secs(100 * 365 * 24 * 3600);

/// What distinguishes the scripts of limits.
fn kind(limit: &Limit) -> (Algorithm, bool) {
    (limit.algorithm(), limit.counts_refused())
}

/// All sets of these kinds, the smaller ones first, so that those come first that requests are likely to need.
fn sets_of<'l>(kinds: &[&'l Limit]) -> Vec<Vec<&'l Limit>> {
    let kinds = &kinds[..kinds.len().min(MOST_KINDS)];
    let set = |members: u32| {
        let is_in = move |(at, _): &(usize, &&Limit)| members & (1 << at) != 0;
        kinds.iter().enumerate().filter(is_in).map(|(_, limit)| *limit).collect()
    };
    let mut sets: Vec<Vec<&Limit>> = (1..1_u32 << kinds.len()).map(set).collect();
    sets.sort_by_key(Vec::len);
    sets
}

/// How long to wait for one answer, connecting included.
const TRIED_FOR: Micros = Micros::from_millis(500);
