//! The limiter: one request, top to bottom.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_rules::{RuleSet, UnknownDomain};
use tidegate_store::{Outcomes, Reply, Request, Store};

use crate::breaker::{BreakerConfig, Breakers};
use crate::cell_hash::CellHasher;
use crate::config::LimiterConfig;
use crate::decision::{Decision, Source};
use crate::failure::without_the_store;
use crate::health::{Health, NodeHealth, RemoteStats};
use crate::layer::{Answer, LocalLayer, local_layer, settle_together};
use crate::matched::Matched;
use crate::node_clock::NodeClock;
use crate::own::OwnCells;
use crate::plan::Plan;
use crate::recall::Recall;
use crate::remote::{Orphans, Remote};
use crate::request::CheckRequest;
use crate::runtime::Runtime;
use crate::shared::{Fleet, LeaseIds, Shared};
use crate::snapshot::Snapshot;

/// Decides requests by rules that may change at any time, on a store that may fail at any time.
pub struct Limiter {
    pub(crate) shared: Arc<Shared>,
    pub(crate) store: Arc<dyn Store>,
    /// The way to a store over a network; none where the store is this process's memory.
    pub(crate) remote: Option<Arc<Remote>>,
}

impl Limiter {
    /// A limiter made of these parts.
    #[must_use]
    pub fn new(config: LimiterConfig) -> Self {
        let LimiterConfig { rules, store, remote, observer, clock, fallback } = config;
        let clock = NodeClock(clock);
        let random = RandomState::new();
        let (secret, recalled, booked, breaker) = match &remote {
            Some(remote) => (remote.secret, remote.recalled_cells, remote.booked_cells, remote.breaker),
            None => ([random.hash_one(0), random.hash_one(1)], 0, 0, BreakerConfig::default()),
        };
        let shared = Arc::new(Shared {
            snapshot: ArcSwap::from_pointee(Snapshot::new(rules, 1, &*observer)),
            observer,
            clock: clock.clone(),
            lease_ids: LeaseIds::new(),
            own: OwnCells::new(fallback, booked, clock),
            recall: Recall::new(recalled, CellHasher::new(secret)),
            breakers: Breakers::new(store.nodes(), breaker),
            fleet: Fleet::new(secret[0] ^ secret[1].rotate_left(32)),
            orphans: Orphans::new(booked),
        });
        let remote = remote.map(|remote| {
            Remote::new(store.clone(), remote.runtime, shared.clone(), remote.lanes, remote.timeout)
        });
        Limiter { shared, store, remote: remote.map(Arc::new) }
    }

    /// The same limiter for another core: with calls to the store of its own, over connections and a runtime of its own,
    /// and with everything else in common.
    #[must_use]
    pub fn for_core(&self, store: Arc<dyn Store>, runtime: Arc<dyn Runtime>) -> Self {
        let remote = self.remote.as_ref().map(|remote| Arc::new(remote.for_core(store.clone(), runtime)));
        Limiter { shared: self.shared.clone(), store, remote }
    }

    /// Decides one request.
    ///
    /// # Errors
    /// When no rule speaks of the domain. A refusal is a decision, and so is what a rule wants where the store fails.
    pub async fn check(&self, request: &CheckRequest<'_>) -> Result<Decision, UnknownDomain> {
        let snapshot = self.shared.snapshot.load();
        let mut matched = Matched::new();
        matched.find(&snapshot, request, &self.shared)?;
        let plan = matched.plan(request, &self.shared.lease_ids);
        let answer = match &self.remote {
            // A store in memory answers at once and does not fail: nothing is put before it.
            None => self.ask_memory(&plan).await,
            Some(remote) => match local_layer(remote, &plan, snapshot.version()) {
                LocalLayer::Decided(answer) => answer,
                // The store decides or, where it does not answer, the failure policy of each rule.
                LocalLayer::Ask(mut asking) => {
                    let stored = asking.ask_store(remote).await;
                    asking.settle(stored)
                }
            },
        };
        let decision = Decision::new(Arc::clone(&snapshot), &plan, &answer);
        if decision.is_refused_by_quotas_alone() {
            self.take_back(&plan, &decision).await;
        }
        self.tell(&decision);
        Ok(decision)
    }

    /// Decides several requests that have nothing to do with each other, in one call to the store.
    pub async fn check_batch(&self, requests: &[CheckRequest<'_>]) -> Vec<Result<Decision, UnknownDomain>> {
        let snapshot = self.shared.snapshot.load_full();
        let found: Vec<Result<Matched<'_>, UnknownDomain>> = requests
            .iter()
            .map(|request| {
                let mut matched = Matched::new();
                matched.find(&snapshot, request, &self.shared).map(|()| matched)
            })
            .collect();
        let plans: Vec<Result<Plan<'_>, &UnknownDomain>> = found
            .iter()
            .zip(requests)
            .map(|(found, request)| Ok(found.as_ref()?.plan(request, &self.shared.lease_ids)))
            .collect();
        let known: Vec<&Plan<'_>> = plans.iter().filter_map(|plan| plan.as_ref().ok()).collect();
        let answers = match &self.remote {
            None => self.ask_memory_together(&known).await,
            Some(remote) => {
                let layers = known.iter().map(|plan| local_layer(remote, plan, snapshot.version()));
                settle_together(remote, layers.collect()).await
            }
        };
        let mut answers = answers.into_iter();
        let mut decisions = Vec::with_capacity(requests.len());
        for plan in &plans {
            let Ok(plan) = plan.as_ref().map_err(|unknown| decisions.push(Err((*unknown).clone()))) else {
                continue;
            };
            let answer = answers.next().expect("one answer per known domain");
            let decision = Decision::new(snapshot.clone(), plan, &answer);
            if decision.is_refused_by_quotas_alone() {
                self.take_back(plan, &decision).await;
            }
            self.tell(&decision);
            decisions.push(Ok(decision));
        }
        decisions
    }

    /// The rules in use.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.snapshot.load_full()
    }

    /// Takes new rules into use. Requests under way finish under the old ones; no counter is lost.
    pub fn replace_rules(&self, rules: RuleSet) -> u64 {
        let version = self.shared.snapshot.load().version() + 1;
        self.shared.snapshot.store(Arc::new(Snapshot::new(rules, version, &*self.shared.observer)));
        version
    }

    /// Whether decisions are made as the rules want them, or as best as can be.
    #[must_use]
    pub fn health(&self) -> Health {
        self.remote.as_ref().map_or(Health::Healthy, |remote| Health::of(remote))
    }

    /// What a limiter on a remote store holds; nothing for one on this process's memory.
    #[must_use]
    pub fn remote_stats(&self) -> Option<RemoteStats> {
        self.remote.as_ref().map(|remote| RemoteStats::of(remote))
    }

    /// The nodes of a remote store; none where the store is this process's memory.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeHealth> {
        self.remote.as_ref().map_or_else(Vec::new, |remote| NodeHealth::of_all(remote))
    }

    /// Keeps a limiter on a remote store going: heartbeats, health probes, what is owed to a store that is back, the counts
    /// of approximate rules. Run it on one core, for as long as the limiter is in use; it never ends by itself, unless
    /// the store is this process's memory.
    pub fn maintain(&self) -> impl Future<Output = ()> + Send + use<> {
        let remote = self.remote.clone();
        async move {
            if let Some(remote) = remote {
                remote.maintain().await;
            }
        }
    }

    async fn ask_memory(&self, plan: &Plan<'_>) -> Answer {
        if plan.spends.is_empty() {
            return Answer { outcomes: Outcomes::new(), source: Source::None };
        }
        let request = [Request::once(&plan.spends)];
        let answer = match self.store.decide(&request) {
            Reply::Now(answer) => answer,
            Reply::Later(answer) => answer.await,
        };
        match answer {
            Ok(told) => Answer { outcomes: told.outcomes, source: plan.source_in_memory() },
            Err(error) => {
                self.shared.observer.store_failed(&error);
                without_the_store(&self.shared, &plan.spends, plan.terms())
            }
        }
    }

    async fn ask_memory_together(&self, plans: &[&Plan<'_>]) -> Vec<Answer> {
        let requests: Vec<Request<'_>> = plans.iter().map(|plan| Request::once(&plan.spends)).collect();
        match self.store.decide(&requests).answer().await {
            Ok(outcomes) => {
                let mut outcomes = outcomes.into_iter();
                let answer = |plan: &&Plan<'_>| Answer {
                    outcomes: outcomes.by_ref().take(plan.spends.len()).collect(),
                    source: plan.source_in_memory(),
                };
                plans.iter().map(answer).collect()
            }
            Err(error) => {
                self.shared.observer.store_failed(&error);
                plans.iter().map(|plan| without_the_store(&self.shared, &plan.spends, plan.terms())).collect()
            }
        }
    }

    fn tell(&self, decision: &Decision) {
        if decision.reports.is_empty() {
            self.shared.observer.no_rule_matched();
        }
        for (rule, result) in decision.rule_results() {
            decision.snapshot().watcher(rule).decided(result, decision.source);
        }
    }
}

impl std::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limiter").field("snapshot", &self.shared.snapshot.load()).finish_non_exhaustive()
    }
}
