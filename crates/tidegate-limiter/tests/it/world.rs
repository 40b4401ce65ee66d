//! A limiter, its store and its clock, and short ways to ask.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_limiter::{
    CheckRequest, Decision, DescriptorAsk, Incurred, Limiter, LimiterConfig, Observer, RuleResult,
    RuleWatcher, Source,
};
use tidegate_rules::{Format, Rule, RuleSet};
use tidegate_store::{ManualClock, MemoryConfig, MemoryStore, Store};

pub(crate) struct World {
    pub(crate) limiter: Limiter,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) heard: Arc<Heard>,
}

/// The start of a minute, an hour and a day.
pub(crate) const START: Timestamp = Timestamp::from_micros(1_800_057_600_000_000);

impl World {
    /// A limiter with these rules of the domain `api`.
    pub(crate) fn new(rules: &str) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let store = MemoryStore::with_clock(
            MemoryConfig::new().max_cells(10_000).max_log_bytes(1 << 20),
            clock.clone(),
        );
        World::on(Arc::new(store), clock, rules)
    }

    /// A limiter with these rules in envoyproxy/ratelimit's format.
    pub(crate) fn envoy(rules: &str) -> Self {
        let world = World::new("- { name: unused, limits: [1/minute] }");
        let source = tidegate_rules::Source::new("envoy.yaml", rules);
        world.limiter.use_rules(
            RuleSet::compile(&[source], Format::EnvoyRatelimit).unwrap_or_else(|error| panic!("{error}")),
        );
        world
    }

    pub(crate) fn on(store: Arc<dyn Store>, clock: Arc<ManualClock>, rules: &str) -> Self {
        let heard = Arc::new(Heard::default());
        let mut config = LimiterConfig::new(compile(rules), store, Arc::new(Ears(heard.clone())));
        config.clock = clock.clone();
        World { limiter: Limiter::new(config), clock, heard }
    }

    /// Decides one request of one hit.
    pub(crate) fn check(&self, attributes: &[(&str, &str)]) -> Decision {
        self.check_cost(attributes, 1)
    }

    pub(crate) fn check_cost(&self, attributes: &[(&str, &str)], cost: u64) -> Decision {
        self.check_descriptors(&[(attributes, cost)])
    }

    pub(crate) fn check_descriptors(&self, descriptors: &[(&[(&str, &str)], u64)]) -> Decision {
        let entries: Vec<Vec<(&str, &[u8])>> = descriptors
            .iter()
            .map(|(attributes, _)| attributes.iter().map(|(name, value)| (*name, value.as_bytes())).collect())
            .collect();
        let asks: Vec<DescriptorAsk<'_>> = entries
            .iter()
            .zip(descriptors)
            .map(|(entries, (_, cost))| DescriptorAsk::one(entries).cost(Hits::new(*cost)))
            .collect();
        let request = CheckRequest::new("api", &asks);
        at_once(self.limiter.check(&request)).unwrap()
    }

    /// Charges what was done already.
    pub(crate) fn charge(&self, attributes: &[(&str, &str)], cost: u64) -> Decision {
        let entries: Vec<(&str, &[u8])> =
            attributes.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let asks = [DescriptorAsk::one(&entries).cost(Hits::new(cost)).incurred(Incurred::Already)];
        at_once(self.limiter.check(&CheckRequest::new("api", &asks))).unwrap()
    }

    pub(crate) fn advance(&self, span: Micros) {
        self.clock.advance(span);
    }
}

pub(crate) fn compile(rules: &str) -> RuleSet {
    let text = format!("domain: api\nrules:\n{rules}");
    RuleSet::compile(&[tidegate_rules::Source::new("rules.yaml", text)], Format::Native)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The rule whose numbers a decision tells, with limit and remaining.
pub(crate) fn told(decision: &Decision) -> (Option<&str>, u64, u64) {
    let report = decision.governing().expect("some rule decided");
    let numbers = report.limit().expect("by a limit");
    (decision.rule_of(report).map(Rule::name), numbers.quota, numbers.outcome.remaining)
}

/// Memory answers at once: a runtime would have nothing to do.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("somebody had to wait"),
    }
}

/// What an observer heard, in order.
#[derive(Default)]
pub(crate) struct Heard(pub(crate) Mutex<Vec<(String, RuleResult, Source)>>);

impl Heard {
    pub(crate) fn take(&self) -> Vec<(String, RuleResult, Source)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

struct Ears(Arc<Heard>);

struct RuleEars(String, Arc<Heard>);

impl Observer for Ears {
    fn watch_rule(&self, rule: &Rule) -> Arc<dyn RuleWatcher> {
        Arc::new(RuleEars(rule.name().to_owned(), self.0.clone()))
    }
}

impl RuleWatcher for RuleEars {
    fn decided(&self, result: RuleResult, source: Source) {
        self.1.0.lock().unwrap().push((self.0.clone(), result, source));
    }
}
