//! The limiter: one request, top to bottom.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_core::{KeyRoom, Micros};
use tidegate_rules::{
    Coordination, Descriptor, Diagnostics, IntoRules, Match, MatchedLimits, Matches, Mode, Rule, RuleSet,
    UnknownDomain,
};
use tidegate_store::{Clock, Outcomes, Reply, Request, Store};

use crate::answer::Answer;
use crate::cell_hash::CellHasher;
use crate::check::{Answers, Matched, Plan, decide_on_remote, decide_together, without_the_store};
use crate::config::LimiterConfig;
use crate::decision::Decision;
use crate::deny_cache::DenyCache;
use crate::health::{Health, NodeHealth, RemoteStats};
use crate::home::{self, HomeStatus};
use crate::lease::LeaseIds;
use crate::lifecycle::{End, Handle};
use crate::local::LocalCells;
use crate::local::fleet::Fleet;
use crate::local::homes::Homes;
use crate::local::purses::ShareStats;
use crate::node_clock::NodeClock;
use crate::observer::{Decided, Observer, watch_rules};
use crate::remote::{Remote, RemoteParts, RequestNames};
use crate::request::CheckRequest;
use crate::rule_watcher::RequestResult;
use crate::runtime::Runtime;
use crate::snapshot::Snapshot;
use crate::source::Source;

/// Decides requests by rules that may change at any time, on a store that may fail at any time.
///
/// A handle that is cheap to clone. Dropping the last one stops the background task, releases the store and leaves the fleet
/// at once; [`Limiter::shutdown`] first settles debts. On a server with one runtime per core, each core has a handle from
/// [`Limiter::for_core`], with its own path to the store and everything else shared.
#[derive(Clone)]
pub struct Limiter {
    pub(crate) rules: Arc<ArcSwap<Snapshot>>,
    /// Grows after each change of the rules: what was found in an earlier snapshot may no longer hold.
    pub(crate) epoch: Arc<AtomicU64>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) clock: NodeClock,
    pub(crate) hasher: CellHasher,
    pub(crate) lease_ids: Arc<LeaseIds>,
    pub(crate) request_names: Arc<RequestNames>,
    pub(crate) deny_cache: Arc<DenyCache>,
    pub(crate) local: Arc<LocalCells>,
    pub(crate) store: Arc<dyn Store>,
    /// Whether a store that is not over a network has proved not to answer immediately.
    store_takes_time: Arc<AtomicBool>,
    /// Whether the store decides at once, so that nothing has to be awaited.
    pub(crate) decides_now: bool,
    /// The path to a store over a network; `None` if the store is this process's memory.
    pub(crate) remote: Option<Arc<Remote>>,
    /// The paths to the stores that count for all regions, shared by all cores.
    pub(crate) homes: Homes<Arc<Remote>>,
    handle: Arc<Handle>,
}

impl Limiter {
    /// Creates a limiter from its configuration.
    #[must_use]
    pub fn new(config: LimiterConfig) -> Self {
        let LimiterConfig { rules, store, remote, observer, clock, fallback, lease_secret, homes: homes_of } =
            config;
        let clock = NodeClock(clock);
        let (secret, cached, booked) = match &remote {
            Some(remote) => (remote.secret, remote.remembered_cells, remote.booked_cells),
            None => (tidegate_store::random_hash_keys(), 0, 0),
        };
        let member = secret[0] ^ secret[1].rotate_left(32);
        let deny_cache = Arc::new(DenyCache::new(cached));
        let expected = remote.as_ref().and_then(|remote| remote.expected_nodes);
        let fleet = Fleet::new(member, expected);
        let mut local = LocalCells::new(fallback, booked, fleet, clock.clone());
        let (mut homes, mut kept) = (Homes::none(), Homes::none());
        if let Some(remote) = &remote {
            for home in &homes_of {
                let of_home = Arc::new(local.of_home(booked, Fleet::new(member, None)));
                kept.add(&home.domains, of_home.clone());
                homes.add(&home.domains, Arc::new(home::path(home, remote, of_home, (&observer, &clock))));
            }
        }
        local.homes = kept;
        let local = Arc::new(local);
        let remote = remote.map(|remote| {
            Arc::new(Remote::new(RemoteParts {
                store: store.clone(),
                runtime: remote.runtime,
                prober: remote.prober,
                queue: remote.queue,
                timeout: remote.timeout,
                breaker: remote.breaker,
                most_orphans: booked,
                deny_cache: deny_cache.clone(),
                local: local.clone(),
                observer: observer.clone(),
                clock: clock.clone(),
            }))
        });
        let watchers = watch_rules(&*observer, &rules);
        let rules = Arc::new(ArcSwap::from_pointee(Snapshot::first(rules, watchers)));
        let lease_ids = Arc::new(LeaseIds::new(lease_secret.as_deref()));
        let hasher = CellHasher::new(secret);
        let request_names = Arc::new(RequestNames::new());
        let handle = Arc::new(Handle(Arc::default()));
        let decides_now = remote.is_none() && decides_now(&*store);
        Limiter {
            rules,
            epoch: Arc::default(),
            observer,
            clock,
            hasher,
            lease_ids,
            request_names,
            deny_cache,
            local,
            store,
            store_takes_time: Arc::default(),
            decides_now,
            remote,
            homes,
            handle,
        }
    }

    /// The same limiter for another core: with its own store calls, connections and runtime, and everything else shared.
    #[must_use]
    pub fn for_core(&self, store: Arc<dyn Store>, runtime: Arc<dyn Runtime>) -> Self {
        Limiter {
            remote: self.remote.as_ref().map(|remote| Arc::new(remote.for_core(store.clone(), runtime))),
            decides_now: self.remote.is_none() && decides_now(&*store),
            store,
            store_takes_time: self.store_takes_time.clone(),
            rules: self.rules.clone(),
            epoch: self.epoch.clone(),
            observer: self.observer.clone(),
            clock: self.clock.clone(),
            hasher: self.hasher,
            lease_ids: self.lease_ids.clone(),
            request_names: self.request_names.clone(),
            deny_cache: self.deny_cache.clone(),
            local: self.local.clone(),
            homes: self.homes.clone(),
            handle: self.handle.clone(),
        }
    }

    /// Decides one request.
    ///
    /// Where a rule has a concurrency limit, release [`Decision::lease`] when the request is done: a decision that is dropped with it
    /// leaves the slot taken until the limit's `ttl` ends. In an application `tidegate::Ask::check` is the better call: what it
    /// returns gives the slot back when it is dropped.
    ///
    /// # Errors
    /// When no rule set has this domain. A refusal is a decision, and so is a failure policy's answer.
    pub async fn check(&self, request: &CheckRequest<'_>) -> Result<Decision, UnknownDomain> {
        if let Some(decided) = self.check_now(request) {
            return decided;
        }
        let snapshot = self.rules.load();
        let mut matched = Matched::new();
        matched.find(&snapshot, request, self)?;
        let mut decision = Decision::not_yet(&snapshot, matched.asked_at);
        self.decide(&matched, request, &mut decision).await;
        Ok(decision)
    }

    /// Decides one request on a store that answers at once, as memory does; `None` on any other, and then nothing has happened.
    ///
    /// # Errors
    /// When no rule set has this domain.
    pub fn check_now(&self, request: &CheckRequest<'_>) -> Option<Result<Decision, UnknownDomain>> {
        if !self.decides_now {
            return None;
        }
        let snapshot = self.rules.load();
        let mut matched = Matched::new();
        if let Err(unknown) = matched.find(&snapshot, request, self) {
            return Some(Err(unknown));
        }
        let mut decision = Decision::not_yet(&snapshot, matched.asked_at);
        let mut plan = Plan::new();
        matched.add_to(&mut plan, request, &self.lease_ids);
        let answer = match &*plan.spends {
            [] => Answer::new(Outcomes::new(), Source::None, None),
            spends => {
                let decided = self.store.decide_now(&Request::once(spends))?;
                Answer::new(decided.outcomes, plan.source_in_memory(), decided.decided_at)
            }
        };
        self.finish(&matched, request, &plan, &answer, &mut decision);
        Some(Ok(decision))
    }

    /// Decides a request whose rules are matched: plans its cells, and asks for each who decides it. A decision is large, so
    /// it is filled in place.
    #[inline]
    pub(crate) async fn decide(
        &self,
        matched: &Matched<'_>,
        request: &CheckRequest<'_>,
        decision: &mut Decision,
    ) {
        let mut plan = Plan::new();
        matched.add_to(&mut plan, request, &self.lease_ids);
        let answer = match &self.remote {
            None => self.ask_memory(&plan).await,
            Some(remote) => decide_on_remote(self, remote, &plan).await,
        };
        self.finish(matched, request, &plan, &answer, decision);
    }

    /// Decides several requests in order, in one store call where that gains anything.
    pub async fn check_batch(&self, requests: &[CheckRequest<'_>]) -> Vec<Result<Decision, UnknownDomain>> {
        let snapshot = self.rules.load_full();
        let found: Vec<Result<Matched<'_>, UnknownDomain>> =
            requests.iter().map(|request| Matched::of(&snapshot, request, self)).collect();
        let known =
            found.iter().zip(requests).filter_map(|(found, request)| Some((found.as_ref().ok()?, request)));
        let plans: Vec<Plan<'_>> =
            known.map(|(matched, request)| matched.plan(request, &self.lease_ids)).collect();
        let answers = match &self.remote {
            None => self.ask_memory_together(&plans).await,
            Some(remote) => {
                decide_together(self, remote, plans.iter().map(|plan| plan.cells(&self.hasher))).await
            }
        };
        let mut decided = plans.iter().zip(&answers);
        let decision = |(found, request): (&Result<Matched<'_>, UnknownDomain>, &CheckRequest<'_>)| {
            let matched = found.as_ref().map_err(Clone::clone)?;
            let (plan, answer) = decided.next().expect("one of each that has rules");
            let mut decision = Decision::not_yet(&snapshot, matched.asked_at);
            self.finish(matched, request, plan, answer, &mut decision);
            Ok(decision)
        };
        found.iter().zip(requests).map(decision).collect()
    }

    /// The tail of every decision: what the answer means for each rule, and who hears of it.
    #[inline]
    fn finish(
        &self,
        matched: &Matched<'_>,
        request: &CheckRequest<'_>,
        plan: &Plan<'_>,
        answer: &Answer,
        decision: &mut Decision,
    ) {
        decision.fill(plan, answer, self.lease_ids.keys(), &self.hasher);
        if !self.observer.wants_decisions() {
            return;
        }
        let (matches, of_readings) = (matched.matches(), matched.of_readings);
        self.tell(&Decided { request, matches, decision, of_readings });
    }

    /// The first rule that would count a request with these descriptors if they did not lack an attribute of its key; `None`
    /// if every rule can count it or the domain is unknown.
    #[must_use]
    pub fn rule_without_key(&self, domain: &str, descriptors: &[Descriptor<'_>]) -> Option<String> {
        let snapshot = self.rules.load();
        let mut found = Matches::new();
        snapshot.rules().matches(domain, descriptors, self.clock.now(), &mut found).ok()?;
        let lacks = |one: &&Match<'_>| {
            matches!(one.limits, MatchedLimits::KeyMissing(_)) && one.rule.mode() != Mode::Shadow
        };
        found.iter().find(lacks).map(|one| one.rule.name().to_owned())
    }

    /// The rules in use.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.rules.load_full()
    }

    /// Swaps in new rules, from whatever rules are made of: [`Limiter::use_rules`] of what they compile to.
    ///
    /// # Errors
    /// With every mistake in the rules, each with its place and a hint. The old rules then stay in use.
    pub fn replace_rules(&self, rules: impl IntoRules) -> Result<u64, Diagnostics> {
        let rules = rules.into_rules()?;
        self.check_room(&rules, Vec::new)?;
        Ok(self.use_rules(rules))
    }

    /// Checks that the stores have room for what `rules` keep of one key, which were compiled from `sources`; of rules in code
    /// there are none.
    ///
    /// # Errors
    /// The rules that keep too much, each with its place, and by how much.
    pub fn check_room(
        &self,
        rules: &RuleSet,
        sources: impl FnOnce() -> Vec<tidegate_rules::Source>,
    ) -> Result<(), Diagnostics> {
        rules.check_room(sources, &|rule| self.room_of(rule))
    }

    /// The room of the store that counts `rule` for one key, and which store that is.
    #[must_use]
    pub fn room_of(&self, rule: &Rule) -> Option<(usize, KeyRoom)> {
        match rule.coordination() {
            Coordination::Local => None,
            coordination if coordination.is_global() && !self.homes.is_empty() => {
                let place = self.homes.place_of(rule.domain().as_bytes())?;
                let room = self.homes.iter().nth(place)?.store().key_room()?;
                Some((place + 1, room))
            }
            _ => self.store.key_room().map(|room| (0, room)),
        }
    }

    /// Swaps in new rules, which [`Limiter::check_room`] has let pass. Requests in flight finish under the old ones; no counter is lost.
    pub fn use_rules(&self, rules: RuleSet) -> u64 {
        let watchers = watch_rules(&*self.observer, &rules);
        let next = self.rules.load().next(rules, watchers);
        let version = next.version();
        self.rules.store(Arc::new(next));
        // After the rules: who sees the new number finds the new rules.
        self.epoch.fetch_add(1, Ordering::Release);
        version
    }

    /// Whether the store decides, or failure policies do in part.
    #[must_use]
    pub fn health(&self) -> Health {
        match &self.remote {
            None => Health::Healthy,
            Some(_) if self.handle.0.is_abandoned() => Health::without_background(),
            Some(remote) => Health::of(std::iter::once(remote).chain(self.homes.iter())),
        }
    }

    /// What a limiter on a remote store holds; `None` if the store is this process's memory.
    #[must_use]
    pub fn remote_stats(&self) -> Option<RemoteStats> {
        self.remote.as_ref().map(|remote| RemoteStats::of(remote, &self.request_names))
    }

    /// The nodes of a remote store; empty if the store is this process's memory.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeHealth> {
        let mut nodes: Vec<NodeHealth> = Vec::new();
        for node in self.remote.iter().chain(self.homes.iter()).flat_map(|remote| NodeHealth::of_all(remote))
        {
            // A region may be its own home.
            if !nodes.iter().any(|known| known.endpoint == node.endpoint) {
                nodes.push(node);
            }
        }
        nodes
    }

    /// Whether rules for all regions of this domain are counted by all of them: without a home, each region counts for itself.
    #[must_use]
    pub fn has_home(&self, domain: &str) -> bool {
        self.homes.of_domain(domain.as_bytes()).is_some()
    }

    /// What this node holds of rules for all regions; `None` if no home is configured.
    #[must_use]
    pub fn shares(&self) -> Option<ShareStats> {
        let all = self.homes.iter().map(|home| home.local.purses.stats());
        all.reduce(ShareStats::plus)
    }

    /// The stores that count for all regions, as this node sees them.
    #[must_use]
    pub fn homes(&self) -> Vec<HomeStatus> {
        self.homes.iter().map(HomeStatus::of).collect()
    }

    /// This limiter's ID in its fleet, and in those of its homes.
    #[must_use]
    pub fn member(&self) -> u64 {
        self.local.fleet.member
    }

    /// Runs the background work of a limiter on a remote store: heartbeats, health probes, settling debts with a store that
    /// has recovered, syncing approximate counts. Run it on one core. It ends with the limiter: when the last handle is
    /// dropped, or on [`Limiter::shutdown`]. For an in-memory store, or if another call already runs it, it ends at once.
    pub fn maintain(&self) -> impl Future<Output = ()> + Send + use<> {
        let (remote, rules, homes) = (self.remote.clone(), self.rules.clone(), self.homes.clone());
        let (names, lease_ids) = (self.request_names.clone(), self.lease_ids.clone());
        let life = self.handle.0.clone();
        async move {
            if let (Some(remote), Some(_running)) = (remote, life.maintain()) {
                let own = async {
                    let end = remote.maintain(&rules, &names, lease_ids.keys(), &life).await;
                    remote.shut_down(end, &names).await;
                };
                let mut tasks: Vec<home::Work<'_>> = vec![Box::pin(own)];
                tasks.extend(homes.iter().map(|home| home::maintain(home, &rules, &life)));
                home::all(tasks).await;
            }
        }
    }

    /// Ends the limiter in order: charges the store with what was spent here while it was unavailable, reports what
    /// approximate rules admitted, releases orphaned leases, leaves the fleet, and stops the background task. Remaining
    /// handles still decide, but the fleet no longer counts them.
    ///
    /// # Errors
    /// When the store did not answer, so that debts remain.
    pub async fn shutdown(&self) -> Result<(), Unsettled> {
        let Some(remote) = &self.remote else { return Ok(()) };
        let life = &self.handle.0;
        life.end(End::ShutDown);
        // The background task does all of this. If there is none, or its runtime ended first, it is done here.
        life.until_unmaintained().await;
        for remote in std::iter::once(remote).chain(self.homes.iter()) {
            if remote.unsettled() > 0 || remote.has_joined() {
                remote.shut_down(End::ShutDown, &self.request_names).await;
            }
        }
        match remote.unsettled() {
            0 => Ok(()),
            cells => Err(Unsettled { cells }),
        }
    }

    /// How long a request waits for a remote store, queueing included, before its rules' failure policies decide; `None` if
    /// the store is this process's memory, which never waits.
    #[must_use]
    pub fn answers_within(&self) -> Option<Duration> {
        self.remote.as_ref().map(|remote| remote.timeout().into())
    }

    /// How long a blocking call waits for an answer: a store answers, or failure policies do, within the time-out; ten times that
    /// is a runtime that stands still.
    #[must_use]
    pub fn blocks_for(&self) -> Option<Duration> {
        self.answers_within().map(|span| span * 10 + Duration::from_secs(1))
    }

    /// Prepares this core for a remote store before it takes requests: connects, loads the scripts of the rules, learns the
    /// fleet size. False if that did not succeed within `patience`; until it does, failure policies decide. An in-memory
    /// store needs none of this.
    pub async fn warm_up(&self, patience: Micros) -> bool {
        match &self.remote {
            Some(remote) => remote.warm_up(&self.rules, self.lease_ids.keys(), patience).await,
            None => true,
        }
    }

    /// A store in memory answers at once and does not fail: it needs no queue, deny cache or breaker.
    async fn ask_memory(&self, plan: &Plan<'_>) -> Answer {
        if plan.spends.is_empty() {
            return Answer::new(Outcomes::new(), Source::None, None);
        }
        let request = [Request::once(&plan.spends)];
        let answer = match self.store.decide(&request) {
            Reply::Now(answer) => answer,
            Reply::Later(answer) => {
                self.store_takes_time.store(true, Ordering::Relaxed);
                answer.await
            }
        };
        match answer {
            Ok(decided) => Answer::new(decided.outcomes, plan.source_in_memory(), decided.decided_at),
            Err(error) => {
                self.observer.store_failed(&error);
                without_the_store(self, plan.cells(&self.hasher))
            }
        }
    }

    /// Memory gains nothing from a batch, and says of each request when it was decided. A store that does not answer
    /// immediately gets the rest in one call, as soon as that is known.
    async fn ask_memory_together(&self, plans: &[Plan<'_>]) -> Answers {
        let mut answers = Answers::with_capacity(plans.len());
        while answers.len() < plans.len() && !self.store_takes_time.load(Ordering::Relaxed) {
            answers.push(self.ask_memory(&plans[answers.len()]).await);
        }
        let plans = &plans[answers.len()..];
        if plans.is_empty() {
            return answers;
        }
        let requests: Vec<Request<'_>> = plans.iter().map(|plan| Request::once(&plan.spends)).collect();
        match self.store.decide(&requests).answer().await {
            Ok(decided) => {
                let (decided_at, mut outcomes) = (decided.decided_at, decided.into_iter());
                answers.extend(plans.iter().map(|plan| {
                    let outcomes = outcomes.by_ref().take(plan.spends.len()).collect();
                    Answer::new(outcomes, plan.source_in_memory(), decided_at)
                }));
            }
            Err(error) => {
                self.observer.store_failed(&error);
                answers.extend(plans.iter().map(|plan| without_the_store(self, plan.cells(&self.hasher))));
            }
        }
        answers
    }

    fn tell(&self, decided: &Decided<'_>) {
        if decided.is_look() {
            return self.observer.looked();
        }
        let decision = decided.decision;
        self.observer.request(decided.request.domain, RequestResult::of(decision.allowed), decision.source);
        if decision.reports.is_empty() {
            self.observer.no_rule_matched();
        }
        for (rule, result, variant) in decision.rule_results() {
            let watcher = decision.snapshot().watcher(rule);
            watcher.decided(result, decision.source);
            if let Some(variant) = variant {
                watcher.decided_in_experiment(variant, result);
            }
        }
        self.observer.decided(decided);
    }
}

/// Whether `store` decides at once: an empty request tells.
fn decides_now(store: &dyn Store) -> bool {
    store.decide_now(&Request::once(&[])).is_some()
}

/// What a limiter still owes that was shut down while its store did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unsettled {
    /// Cells with spends that the store has not been charged for.
    pub cells: usize,
}

impl std::fmt::Display for Unsettled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the store did not answer: what was spent from {} cells is not charged there", self.cells)
    }
}

impl std::error::Error for Unsettled {}

impl std::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limiter").field("snapshot", &self.rules.load()).finish_non_exhaustive()
    }
}
