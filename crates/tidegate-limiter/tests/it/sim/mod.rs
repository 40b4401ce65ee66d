//! Several limiters on one model store, in virtual time, on one thread: a seed decides who runs when and what gets lost.

mod approximate;
mod breaker;
mod deny_cache;
mod drops;
mod exact;
pub(crate) mod executor;
mod fallback;
mod faults;
mod lag;
mod late;
mod lost;
mod mixed;
mod names;
mod over;
mod overload;
mod promises;
mod region_changes;
mod regions;
mod replicated;
mod shadow;
mod stepped_clock;
pub(crate) mod store;

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_limiter::{
    BreakerState, CheckRequest, Decision, DescriptorAsk, Incurred, LateCall, Limiter, LimiterConfig,
    NoObserver, Observer, Overload, RemoteConfig, RuleWatcher, Settled, Settlement, Source, SpentAt,
};
use tidegate_rules::{Descriptor, Rule};
use tidegate_store::{Clock, ManualClock};

use crate::world::compile;
use executor::{Executor, Handle};
use store::{Link, Truth, Weather};

/// Limiters on one store.
pub(crate) struct Fleet {
    pub(crate) executor: Executor,
    pub(crate) truth: Arc<Truth>,
    pub(crate) nodes: Vec<Node>,
    rules: String,
    setting: Setting,
}

/// One limiter, and its way to the store.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) link: Arc<Link>,
    pub(crate) heard: Arc<Heard>,
    clock: Arc<Skewed>,
    executor: Executor,
}

/// What an observer heard.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) breaker: Mutex<Vec<(String, BreakerState)>>,
    pub(crate) fell_back: Mutex<Vec<Source>>,
    pub(crate) debts: Mutex<Vec<(usize, u64)>>,
    pub(crate) overloaded: Mutex<Vec<(Overload, usize)>>,
    pub(crate) heartbeats_lost: Mutex<usize>,
    pub(crate) released: Mutex<usize>,
    pub(crate) late_calls: Mutex<Vec<LateCall>>,
}

/// What became of one request, and how long it took.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    pub(crate) decision: Decision,
    pub(crate) took: Micros,
}

/// How a fleet differs from the usual one.
pub(crate) struct Setting {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    /// One way, in microseconds, at least and at most.
    pub(crate) latency: (u64, u64),
    /// How far the nodes' clocks are ahead of each other.
    pub(crate) skew: Micros,
    pub(crate) change: fn(&mut RemoteConfig),
}

impl Default for Setting {
    fn default() -> Self {
        Setting { seed: 1, nodes: 1, latency: (100, 400), skew: Micros::ZERO, change: |_| {} }
    }
}

impl Fleet {
    pub(crate) fn new(rules: &str, setting: Setting) -> Self {
        let executor = Executor::new(setting.seed);
        let truth = Truth::new(&executor);
        let mut fleet = Fleet { executor, truth, nodes: Vec::new(), rules: rules.to_owned(), setting };
        fleet.nodes = (0..fleet.setting.nodes as u64).map(|number| fleet.node(number)).collect();
        fleet
    }

    /// A limiter that nobody has asked yet.
    fn node(&self, number: u64) -> Node {
        let Fleet { executor, truth, rules, setting, .. } = self;
        let link = Link::new(truth, executor, setting.latency);
        let heard = Arc::new(Heard::default());
        let mut remote = RemoteConfig::new(Arc::new(executor.clone()));
        remote.secret = [setting.seed, number];
        (setting.change)(&mut remote);
        let mut config = LimiterConfig::new(compile(rules), link.clone(), Arc::new(Ears(heard.clone())));
        let ahead = Micros::new(setting.skew.get() * number);
        let clock = Arc::new(Skewed { clock: executor.clock(), ahead, set_back: AtomicU64::new(0) });
        config.clock = clock.clone();
        let limiter = Arc::new(Limiter::new(config.over_a_network(remote)));
        Node { limiter, link, heard, clock, executor: executor.clone() }
    }

    /// A node dies with all it knew, and another one takes its place. What it had sent is still on its way.
    pub(crate) fn crash(&mut self, place: usize) {
        let number = 1_000 + self.executor.below(1 << 32);
        let new = self.node(number);
        new.link.set(self.nodes[place].link.weather());
        *new.link.second_node.lock().unwrap() = *self.nodes[place].link.second_node.lock().unwrap();
        // A dead node sends nothing more, and hears nothing.
        let old = &self.nodes[place].link;
        old.set(Weather::Hangs);
        if let Some((_, weather)) = &mut *old.second_node.lock().unwrap() {
            *weather = Weather::Hangs;
        }
        self.executor.start(new.limiter.maintain());
        self.nodes[place] = new;
    }

    /// The same, with what goes on in the background, and after the nodes have heard of each other.
    pub(crate) fn running(rules: &str, setting: Setting) -> Self {
        let fleet = Fleet::new(rules, setting);
        for node in &fleet.nodes {
            fleet.executor.start(node.limiter.maintain());
        }
        fleet.executor.run_for(Micros::from_millis(2_500));
        fleet.nodes.iter().for_each(|node| node.link.forget_calls());
        fleet
    }

    pub(crate) fn run_for_millis(&self, millis: u64) {
        self.executor.run_for(Micros::from_millis(millis));
    }

    pub(crate) fn set(&self, weather: Weather) {
        self.nodes.iter().for_each(|node| node.link.set(weather));
    }

    pub(crate) fn calls(&self) -> usize {
        self.nodes.iter().map(|node| node.link.calls()).sum()
    }
}

impl Node {
    /// Sets its clock back by another `span`.
    pub(crate) fn set_back(&self, span: Micros) {
        self.clock.set_back.fetch_add(span.get(), Ordering::SeqCst);
    }

    /// Decides one request, to its end.
    pub(crate) fn check(&self, user: &str) -> Decision {
        self.check_cost(user, 1)
    }

    pub(crate) fn check_cost(&self, user: &str, cost: u64) -> Decision {
        self.start_cost(user, cost).wait().decision
    }

    /// Begins to decide one request.
    pub(crate) fn start(&self, user: &str) -> Handle<Checked> {
        self.start_cost(user, 1)
    }

    pub(crate) fn start_cost(&self, user: &str, cost: u64) -> Handle<Checked> {
        let attributes = vec![("user".to_owned(), user.to_owned())];
        self.executor.start(self.checking(attributes, cost))
    }

    /// Begins to charge a cost that was incurred already.
    pub(crate) fn start_charge(&self, user: &str, cost: u64) -> Handle<Checked> {
        let attributes = vec![("user".to_owned(), user.to_owned())];
        self.executor.start(self.asking(attributes, cost, Incurred::Already))
    }

    pub(crate) fn checking(
        &self,
        attributes: Vec<(String, String)>,
        cost: u64,
    ) -> impl Future<Output = Checked> + Send + 'static {
        self.asking(attributes, cost, Incurred::default())
    }

    fn asking(
        &self,
        attributes: Vec<(String, String)>,
        cost: u64,
        incurred: Incurred,
    ) -> impl Future<Output = Checked> + Send + 'static {
        let (limiter, executor) = (self.limiter.clone(), self.executor.clone());
        async move {
            let began = executor.now();
            let entries: Vec<(&str, &[u8])> =
                attributes.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
            let descriptor = Descriptor { entries: &entries };
            let asks = [DescriptorAsk::of(descriptor).cost(Hits::new(cost)).incurred(incurred)];
            let request = CheckRequest::new("api", &asks);
            let decision = limiter.check(&request).await.unwrap();
            Checked { decision, took: executor.now().since(began) }
        }
    }

    /// Charges what was done already.
    pub(crate) fn charge(&self, user: &str, cost: u64) -> Decision {
        let (limiter, user) = (self.limiter.clone(), user.to_owned());
        self.executor.finish(async move {
            let entries: [(&str, &[u8]); 1] = [("user", user.as_bytes())];
            let asks = [DescriptorAsk::one(&entries).cost(Hits::new(cost)).incurred(Incurred::Already)];
            limiter.check(&CheckRequest::new("api", &asks)).await.unwrap()
        })
    }

    pub(crate) fn refund(&self, user: &str, hits: u64) {
        let (limiter, user) = (self.limiter.clone(), user.to_owned());
        self.executor.finish(async move {
            let entries: [(&str, &[u8]); 1] = [("user", user.as_bytes())];
            let descriptors = [DescriptorAsk::one(&entries)];
            let request = CheckRequest::new("api", &descriptors);
            limiter.refund(&request, Hits::new(hits), SpentAt::Unknown).await.unwrap();
        });
    }

    pub(crate) fn reset(&self, user: &str) {
        let (limiter, user) = (self.limiter.clone(), user.to_owned());
        self.executor.finish(async move {
            let entries: [(&str, &[u8]); 1] = [("user", user.as_bytes())];
            let descriptors = [DescriptorAsk::one(&entries)];
            let request = CheckRequest::new("api", &descriptors);
            limiter.reset(&request).await.unwrap();
        });
    }

    /// Nothing waits, nothing is under way, nothing is owed.
    pub(crate) fn assert_idle(&self) {
        let stats = self.limiter.remote_stats().unwrap();
        assert_eq!(
            (stats.calls, stats.late_calls, stats.waiting, stats.debts, stats.orphans),
            (0, 0, 0, 0, 0),
            "{stats:?}"
        );
        assert_eq!(self.link.seen.lock().unwrap().under_way_in_all, 0);
    }
}

/// The clock of one node, which may be set while its uptime goes on.
struct Skewed {
    clock: Arc<ManualClock>,
    ahead: Micros,
    set_back: AtomicU64,
}

impl Clock for Skewed {
    fn now(&self) -> Timestamp {
        (self.clock.now() + self.ahead).back(Micros::new(self.set_back.load(Ordering::SeqCst)))
    }

    fn uptime(&self) -> Micros {
        Micros::new(self.clock.now().as_micros())
    }
}

struct Ears(Arc<Heard>);

impl Observer for Ears {
    fn watch_rule(&self, rule: &Rule) -> Arc<dyn RuleWatcher> {
        NoObserver.watch_rule(rule)
    }

    fn settled(&self, settled: &Settled<'_>) {
        *self.0.released.lock().unwrap() += usize::from(matches!(settled.how, Settlement::Released(_)));
    }

    fn breaker_changed(&self, endpoint: &str, state: BreakerState) {
        self.0.breaker.lock().unwrap().push((endpoint.to_owned(), state));
    }

    fn fell_back(&self, source: Source) {
        self.0.fell_back.lock().unwrap().push(source);
    }

    fn debts_paid(&self, cells: usize, hits: u64, _error: Option<&tidegate_store::StoreError>) {
        self.0.debts.lock().unwrap().push((cells, hits));
    }

    fn heartbeat_lost(&self, _why: &str) {
        *self.0.heartbeats_lost.lock().unwrap() += 1;
    }

    fn late_call(&self, end: LateCall) {
        self.0.late_calls.lock().unwrap().push(end);
    }

    fn overloaded(&self, why: Overload, requests: usize) {
        self.0.overloaded.lock().unwrap().push((why, requests));
    }
}
