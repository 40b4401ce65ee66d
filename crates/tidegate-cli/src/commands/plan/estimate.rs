//! From rules and numbers of users to bytes, calls and nodes.

use std::collections::{HashMap, HashSet};

use tidegate_admin::StoreCost;
use tidegate_core::Limit;
use tidegate_rules::{Coordination, Rule, RuleSet};
use tidegate_store::memory_bytes;
use tidegate_store_redis::{Topology, costs};

use super::Home;
use crate::args::PlanArgs;

/// The default interval between requests of a user.
const SECONDS_PER_REQUEST: f64 = 10.0;

/// The assumptions.
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) users: u64,
    pub(super) rate_per_s: f64,
    pub(super) keys: HashMap<String, u64>,
    pub(super) node_memory: u64,
    pub(super) memory_use: u8,
    pub(super) cpu_use: u8,
    /// Whether one script reaches all cells of a request.
    pub(super) within_reach: bool,
}

impl Inputs {
    pub(super) fn new(args: &PlanArgs, home: Option<&Home>) -> Self {
        let users = args.users.get();
        let is_spread = matches!(home, Some(Home::Redis(topology, _)) if is_spread(topology));
        Inputs {
            users,
            rate_per_s: args.rate.unwrap_or(users as f64 / SECONDS_PER_REQUEST),
            keys: args.keys.iter().map(|keys| (keys.rule.clone(), keys.keys)).collect(),
            node_memory: args.node_memory.0,
            memory_use: args.memory_use,
            cpu_use: args.cpu_use,
            within_reach: !is_spread,
        }
    }
}

/// One limit of one rule.
#[derive(Debug)]
pub(super) struct Counter {
    pub(super) rule: String,
    pub(super) name: String,
    pub(super) algorithm: &'static str,
    /// The number of such counters.
    pub(super) keys: u64,
    pub(super) memory_bytes: u64,
    /// `None` if it never leaves its node.
    pub(super) redis_bytes: Option<u64>,
    decision_us: f64,
}

/// The result.
#[derive(Debug)]
pub(super) struct Estimate {
    pub(super) counters: Vec<Counter>,
    pub(super) memory_bytes: u64,
    pub(super) redis_bytes: u64,
    /// Calls to Redis per request.
    pub(super) calls_per_request: u64,
    pub(super) calls_per_s: f64,
    /// The number of Redis cores that are fully busy.
    pub(super) cores: f64,
    pub(super) nodes_for_memory: u64,
    pub(super) nodes_for_cpu: u64,
}

impl Estimate {
    pub(super) fn new(rules: &RuleSet, inputs: &Inputs) -> Self {
        let counters: Vec<Counter> =
            in_use(rules).flat_map(|rule| counters_of(rule, inputs).into_iter()).collect();
        let total = |bytes: fn(&Counter) -> u64| {
            counters
                .iter()
                .fold(0_u64, |sum, counter| sum.saturating_add(bytes(counter).saturating_mul(counter.keys)))
        };
        let memory_bytes = total(|counter| counter.memory_bytes);
        let redis_bytes = total(|counter| counter.redis_bytes.unwrap_or(0));
        let (calls_per_request, request_us) = worst_request(rules, inputs.within_reach);
        let (reports_per_s, report_cores) = reports(rules, inputs);
        let cores = inputs.rate_per_s * request_us / 1e6 + report_cores;
        Estimate {
            memory_bytes,
            redis_bytes,
            calls_per_request,
            calls_per_s: inputs.rate_per_s * calls_per_request as f64 + reports_per_s,
            cores,
            nodes_for_memory: redis_bytes.div_ceil(inputs.usable_memory()).max(1),
            nodes_for_cpu: nodes_for(cores, inputs.cpu_use),
            counters,
        }
    }

    /// Redis nodes that decide, without replicas.
    pub(super) fn nodes(&self) -> u64 {
        self.nodes_for_memory.max(self.nodes_for_cpu)
    }
}

impl Inputs {
    fn usable_memory(&self) -> u64 {
        (u128::from(self.node_memory) * u128::from(self.memory_use) / 100)
            .max(1)
            .try_into()
            .unwrap_or(u64::MAX)
    }

    fn keys_of(&self, rule: &Rule) -> u64 {
        // A limit of an envoyproxy/ratelimit file is keyed by its descriptor, and lists no attributes.
        let everybody = if rule.key().is_empty() && rule.label().is_none() { 1 } else { self.users };
        self.keys.get(rule.name()).copied().unwrap_or(everybody)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is not negative")]
fn nodes_for(cores: f64, cpu_use: u8) -> u64 {
    ((cores * 100.0 / f64::from(cpu_use)).ceil() as u64).max(1)
}

/// The rules that count. A disabled one has no counters.
fn in_use(rules: &RuleSet) -> impl Iterator<Item = &Rule> {
    rules.rules().filter(|rule| rule.is_enabled())
}

/// The counters of one key. Limits of several tiers that differ only in their number share one.
fn counters_of(rule: &Rule, inputs: &Inputs) -> Vec<Counter> {
    let is_shared = is_shared(rule);
    let mut places: HashMap<&[u8], usize> = HashMap::new();
    let mut counters: Vec<Counter> = Vec::new();
    for limit in rule.limits() {
        let counter = Counter {
            rule: rule.name().to_owned(),
            name: limit.name.clone(),
            algorithm: limit.limit.algorithm().name(),
            keys: inputs.keys_of(rule),
            memory_bytes: memory_bytes(&limit.limit),
            redis_bytes: is_shared.then(|| costs::redis_bytes(&limit.limit)),
            decision_us: costs::decision_us(&limit.limit),
        };
        match places.get(limit.scope.as_bytes()) {
            None => {
                places.insert(limit.scope.as_bytes(), counters.len());
                counters.push(counter);
            }
            Some(place) if counters[*place].memory_bytes < counter.memory_bytes => counters[*place] = counter,
            Some(_) => {}
        }
    }
    counters
}

/// What `rules` cost a Redis of this topology: a key at its largest, a request at its dearest.
pub(crate) fn store_cost(rules: &RuleSet, topology: &Topology) -> StoreCost {
    let shared = in_use(rules).filter(|rule| is_shared(rule)).flat_map(Rule::limits);
    let bytes_per_key = shared.map(|limit| costs::redis_bytes(&limit.limit)).max().unwrap_or_default();
    let (calls_per_request, us_per_request) = worst_request(rules, !is_spread(topology));
    StoreCost { bytes_per_key, calls_per_request, us_per_request }
}

/// Whether the cells of a request may be on several servers.
fn is_spread(topology: &Topology) -> bool {
    matches!(topology, Topology::Cluster | Topology::Sharded)
}

/// Whether its counters are in the store.
fn is_shared(rule: &Rule) -> bool {
    matches!(rule.coordination(), Coordination::Exact | Coordination::Approximate { .. })
}

/// The calls of a request that matches every rule of a domain, and their cost for Redis: for the worst domain.
fn worst_request(rules: &RuleSet, within_reach: bool) -> (u64, f64) {
    let mut by_domain: HashMap<&str, Vec<&Rule>> = HashMap::new();
    for rule in in_use(rules).filter(|rule| rule.coordination() == Coordination::Exact) {
        by_domain.entry(rule.domain()).or_default().push(rule);
    }
    let of_domain = |exact: &Vec<&Rule>| {
        let mut places: HashSet<&[String]> = HashSet::new();
        let mut decisions_us = 0.0;
        for rule in exact {
            let mut scopes: HashMap<&[u8], &Limit> = HashMap::new();
            scopes.extend(rule.limits().map(|limit| (limit.scope.as_bytes(), &limit.limit)));
            decisions_us += scopes.values().map(|limit| costs::decision_us(limit)).sum::<f64>();
            if !scopes.is_empty() {
                places.insert(rule.key());
            }
        }
        let places = if within_reach { places.len().min(1) } else { places.len() } as u64;
        (places, costs::request_us(places, decisions_us))
    };
    let domains = by_domain.values().map(of_domain);
    domains.max_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or((0, 0.0))
}

/// The calls per second with which approximate rules reconcile their counters, and the Redis cores that these keep busy. A
/// node reports a key once per interval, and never more often than it is requested.
fn reports(rules: &RuleSet, inputs: &Inputs) -> (f64, f64) {
    let (mut per_s, mut cores) = (0.0, 0.0);
    for rule in in_use(rules) {
        let Coordination::Approximate { sync_every } = rule.coordination() else { continue };
        let often = inputs.keys_of(rule) as f64 * 1e6 / sync_every.get().max(1) as f64;
        for counter in counters_of(rule, inputs) {
            let reports = often.min(inputs.rate_per_s);
            per_s += reports;
            cores += reports * costs::request_us(1, counter.decision_us) / 1e6;
        }
    }
    (per_s, cores)
}
