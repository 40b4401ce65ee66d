//! The limiter: one request, top to bottom.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tidegate_core::{Hits, LeaseId, Micros};
use tidegate_rules::{Descriptor, Matches, RuleSet, UnknownDomain};
use tidegate_store::{
    Clock, MemoryConfig, MemoryStore, Outcomes, Refund, Request, Store, StoreError, SystemClock,
};

use crate::decision::{Decision, Source};
use crate::failure::decide_without_store;
use crate::lease::LeaseToken;
use crate::observer::Observer;
use crate::plan::{OverrideKeys, Plan, WithoutWaiting, override_keys, without_waiting};
use crate::request::CheckRequest;
use crate::snapshot::Snapshot;

/// Decides requests by rules that may change at any time, on a store that may fail at any time.
pub struct Limiter {
    snapshot: ArcSwap<Snapshot>,
    pub(crate) store: Arc<dyn Store>,
    /// Where rules decide that must go on without the store.
    pub(crate) fallback: MemoryStore,
    pub(crate) observer: Arc<dyn Observer>,
    clock: Arc<dyn Clock>,
    lease_ids: LeaseIds,
}

/// What a limiter is made of.
pub struct LimiterConfig {
    /// The rules to begin with.
    pub rules: RuleSet,
    /// Where cells live.
    pub store: Arc<dyn Store>,
    /// Who hears of decisions.
    pub observer: Arc<dyn Observer>,
    /// This node's clock. It only tells whether a rule's `until` has passed; cells go by the store's.
    pub clock: Arc<dyn Clock>,
    /// Bounds of the memory in which rules decide while the store is away.
    pub fallback: MemoryConfig,
}

impl LimiterConfig {
    /// `rules` on `store`, heard by `observer`, with the machine's clock.
    #[must_use]
    pub fn new(rules: RuleSet, store: Arc<dyn Store>, observer: Arc<dyn Observer>) -> Self {
        let fallback = MemoryConfig { max_cells: 1_000_000, max_log_bytes: 64 << 20 };
        LimiterConfig { rules, store, observer, clock: Arc::new(SystemClock::new()), fallback }
    }
}

/// Why a lease could not be renewed or released.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// It had ended already, by its time to live or by a release.
    #[error("the lease has ended")]
    Ended,
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Limiter {
    /// A limiter made of these parts.
    #[must_use]
    pub fn new(config: LimiterConfig) -> Self {
        let snapshot = Snapshot::new(config.rules, 1, &*config.observer);
        Limiter {
            snapshot: ArcSwap::from_pointee(snapshot),
            store: config.store,
            fallback: MemoryStore::new(config.fallback),
            observer: config.observer,
            clock: config.clock,
            lease_ids: LeaseIds::new(),
        }
    }

    /// Decides one request.
    ///
    /// # Errors
    /// When no rule speaks of the domain. A refusal is a decision, and so is what a rule wants where the store fails.
    pub async fn check(&self, request: &CheckRequest<'_>) -> Result<Decision, UnknownDomain> {
        let snapshot = self.snapshot.load_full();
        let matched = self.match_rules(&snapshot, request)?;
        let lease = self.lease_ids.next();
        let plan = matched.plan(request, lease);
        let (outcomes, source) = self.spend(&plan).await;
        let mut decision = Decision::new(snapshot.clone(), &plan, &outcomes, source);
        self.settle(&plan, &mut decision, lease).await;
        self.tell(&decision);
        Ok(decision)
    }

    /// Decides several requests that have nothing to do with each other, in one call to the store.
    pub async fn check_batch(&self, requests: &[CheckRequest<'_>]) -> Vec<Result<Decision, UnknownDomain>> {
        let snapshot = self.snapshot.load_full();
        let matched: Vec<_> = requests.iter().map(|request| self.match_rules(&snapshot, request)).collect();
        let lease_ids: Vec<LeaseId> = requests.iter().map(|_| self.lease_ids.next()).collect();
        let plans: Vec<_> = matched
            .iter()
            .zip(requests)
            .zip(&lease_ids)
            .map(|((matched, request), lease)| matched.as_ref().map(|matched| matched.plan(request, *lease)))
            .collect();
        let known = || plans.iter().filter_map(|plan| plan.as_ref().ok());
        let answers = self.spend_batch(known()).await;
        let mut answers = answers.into_iter();
        let mut decisions = Vec::with_capacity(requests.len());
        for (plan, lease) in plans.iter().zip(&lease_ids) {
            let plan = match plan {
                Ok(plan) => plan,
                Err(unknown) => {
                    decisions.push(Err((*unknown).clone()));
                    continue;
                }
            };
            let (outcomes, source) = answers.next().expect("one answer per known domain");
            let mut decision = Decision::new(snapshot.clone(), plan, &outcomes, source);
            self.settle(plan, &mut decision, *lease).await;
            self.tell(&decision);
            decisions.push(Ok(decision));
        }
        decisions
    }

    /// Gives `amount` hits back to every cell that `request` would touch. Its own costs do not matter.
    ///
    /// # Errors
    /// When no rule speaks of the domain, or the store did not answer.
    pub async fn refund(&self, request: &CheckRequest<'_>, amount: Hits) -> Result<(), RefundError> {
        let snapshot = self.snapshot.load_full();
        let matched = self.match_rules(&snapshot, request)?;
        let plan = matched.plan(request, self.lease_ids.next());
        let refunds: SmallVec<[Refund<'_>; 4]> = plan
            .spends
            .iter()
            .map(|spend| Refund {
                cell: spend.cell,
                limit: spend.touch.limit,
                hits: amount,
                age: Micros::ZERO,
            })
            .collect();
        Ok(self.store.refund(&refunds).answer().await?)
    }

    /// Ends the leases of a request that is done.
    ///
    /// # Errors
    /// When they had all ended already, or the store did not answer.
    pub async fn release(&self, token: &LeaseToken) -> Result<(), LeaseError> {
        let mut ended = false;
        for lease in token.leases() {
            ended |= self.store.release(lease).answer().await?;
            // A lease taken while the store was away lives here.
            ended |= self.fallback.release(lease).answer().await?;
        }
        if ended { Ok(()) } else { Err(LeaseError::Ended) }
    }

    /// Gives the leases of a request that goes on another time to live.
    ///
    /// # Errors
    /// When one of them had ended already, or the store did not answer.
    pub async fn renew(&self, token: &LeaseToken) -> Result<(), LeaseError> {
        for lease in token.leases() {
            let renewed =
                self.store.renew(lease).answer().await? || self.fallback.renew(lease).answer().await?;
            if !renewed {
                return Err(LeaseError::Ended);
            }
        }
        Ok(())
    }

    /// The rules in use.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Takes new rules into use. Requests under way finish under the old ones; no counter is lost.
    pub fn replace_rules(&self, rules: RuleSet) -> u64 {
        let version = self.snapshot.load().version() + 1;
        self.snapshot.store(Arc::new(Snapshot::new(rules, version, &*self.observer)));
        version
    }

    fn match_rules<'r>(
        &self,
        snapshot: &'r Snapshot,
        request: &CheckRequest<'_>,
    ) -> Result<Matched<'r>, UnknownDomain> {
        // A descriptor that brings its own limit is no business of the rules: they neither limit nor replace for it.
        let by_rules = request.descriptors.iter().enumerate().filter(|(_, ask)| ask.limit.is_none());
        let (places, descriptors): (SmallVec<[usize; 2]>, SmallVec<[Descriptor<'_>; 2]>) =
            by_rules.map(|(place, ask)| (place, ask.descriptor)).unzip();
        let mut matches = Matches::new();
        snapshot
            .rules()
            .matches(request.domain, &descriptors, self.clock.now(), &mut matches)
            .inspect_err(|_| self.observer.unknown_domain())?;
        for found in &mut matches {
            found.descriptor = places[found.descriptor];
        }
        let without_waiting = without_waiting(request, &matches);
        Ok(Matched { matches, overrides: override_keys(request), without_waiting })
    }

    /// Asks the store, or where it fails, each rule's policy.
    async fn spend(&self, plan: &Plan<'_>) -> (Outcomes, Source) {
        if plan.spends.is_empty() {
            return (Outcomes::new(), Source::None);
        }
        match self.store.decide(&[Request { spends: &plan.spends }]).answer().await {
            Ok(outcomes) => (outcomes, Source::Store),
            Err(error) => {
                self.observer.store_failed(&error);
                decide_without_store(plan, &self.fallback).await
            }
        }
    }

    /// Asks the store for all `plans` at once.
    async fn spend_batch<'s, 'p: 's>(
        &self,
        plans: impl Iterator<Item = &'s Plan<'p>> + Clone,
    ) -> Vec<(Outcomes, Source)> {
        let batch: Vec<Request<'_>> = plans.clone().map(|plan| Request { spends: &plan.spends }).collect();
        let answer = self.store.decide(&batch).answer().await;
        let mut answers = Vec::with_capacity(batch.len());
        match answer {
            Ok(outcomes) => {
                let mut outcomes = outcomes.into_iter();
                for plan in plans {
                    answers.push((outcomes.by_ref().take(plan.spends.len()).collect(), Source::Store));
                }
            }
            Err(error) => {
                self.observer.store_failed(&error);
                for plan in plans {
                    answers.push(decide_without_store(plan, &self.fallback).await);
                }
            }
        }
        answers
    }

    /// Hands out the leases of a request that passed, and takes back what one that did not has spent after all.
    async fn settle(&self, plan: &Plan<'_>, decision: &mut Decision, lease: LeaseId) {
        if decision.allowed {
            decision.lease = LeaseToken::new(lease, plan.leases());
            return;
        }
        // The store decides limits, not quotas that refuse only together: it let this request spend elsewhere.
        if decision.is_refused_by_quotas_alone() {
            let refunds: SmallVec<[Refund<'_>; 4]> = plan
                .spends
                .iter()
                .zip(0..)
                .filter(|(_, place)| plan.was_admitted(*place, decision))
                .map(|(spend, _)| Refund {
                    cell: spend.cell,
                    limit: spend.touch.limit,
                    hits: spend.touch.ask.hits,
                    age: Micros::ZERO,
                })
                .collect();
            if let Err(error) = self.store.refund(&refunds).answer().await {
                self.observer.store_failed(&error);
            }
        }
    }

    fn tell(&self, decision: &Decision) {
        if decision.reports.is_empty() {
            self.observer.no_rule_matched();
        }
        for report in &decision.reports {
            if let Some(rule) = decision.rule_of(report) {
                decision.snapshot().watcher(rule).decided(report.result(), decision.source);
            }
        }
    }
}

/// Why hits could not be given back.
#[derive(Debug, thiserror::Error)]
pub enum RefundError {
    /// No rule speaks of the domain.
    #[error(transparent)]
    UnknownDomain(#[from] UnknownDomain),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What the rules say of a request; a plan borrows from it.
struct Matched<'r> {
    matches: Matches<'r>,
    overrides: OverrideKeys,
    without_waiting: WithoutWaiting<'r>,
}

impl Matched<'_> {
    fn plan<'p>(&'p self, request: &'p CheckRequest<'p>, lease: LeaseId) -> Plan<'p> {
        let mut plan = Plan::new(request, &self.matches, &self.overrides, lease);
        plan.go_now(&self.without_waiting);
        if plan.is_refused_for_a_missing_key() {
            plan.only_look();
        }
        plan
    }
}

/// Names leases: random, so that nobody can guess another's, and never zero.
struct LeaseIds {
    random: RandomState,
    next: AtomicU64,
}

impl LeaseIds {
    fn new() -> Self {
        LeaseIds { random: RandomState::new(), next: AtomicU64::new(0) }
    }

    fn next(&self) -> LeaseId {
        let hash = self.random.hash_one(self.next.fetch_add(1, Ordering::Relaxed));
        LeaseId(NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN))
    }
}

impl std::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limiter").field("snapshot", &self.snapshot.load()).finish_non_exhaustive()
    }
}
