//! From rules and numbers of users to bytes, calls and nodes.

use std::collections::{HashMap, HashSet};

use tidegate_admin::StoreCost;
use tidegate_core::Limit;
use tidegate_rules::{Coordination, Rule, RuleSet};
use tidegate_store::memory_bytes;

use super::model::{Model, RequestCost};
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
    /// The store that all nodes share.
    pub(super) model: Model,
}

impl Inputs {
    pub(super) fn new(args: &PlanArgs, model: Model) -> Self {
        let users = args.users.get();
        Inputs {
            users,
            rate_per_s: args.rate.unwrap_or(users as f64 / SECONDS_PER_REQUEST),
            keys: args.keys.iter().map(|keys| (keys.rule.clone(), keys.keys)).collect(),
            node_memory: args.node_memory.0,
            memory_use: args.memory_use,
            cpu_use: args.cpu_use,
            model,
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
    /// In the store that nodes share; `None` if it never leaves its node.
    pub(super) store_bytes: Option<u64>,
    report: RequestCost,
}

/// The result.
#[derive(Debug)]
pub(super) struct Estimate {
    pub(super) counters: Vec<Counter>,
    pub(super) memory_bytes: u64,
    pub(super) store_bytes: u64,
    /// Calls to the store per request.
    pub(super) calls_per_request: u64,
    pub(super) calls_per_s: f64,
    /// The number of its cores that are fully busy.
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
        let store_bytes = total(|counter| counter.store_bytes.unwrap_or(0));
        let request = worst_request(rules, inputs.model);
        let (reports_per_s, report_cores) = reports(rules, inputs);
        let cores = inputs.rate_per_s * request.us / 1e6 + report_cores;
        Estimate {
            memory_bytes,
            store_bytes,
            calls_per_request: request.calls,
            calls_per_s: inputs.rate_per_s * request.calls as f64 + reports_per_s,
            cores,
            nodes_for_memory: store_bytes.div_ceil(inputs.usable_memory()).max(1),
            nodes_for_cpu: nodes_for(cores, inputs.cpu_use),
            counters,
        }
    }

    /// Its nodes that decide, without replicas.
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
            store_bytes: is_shared.then(|| inputs.model.bytes(&limit.limit)),
            report: inputs.model.request(1, [&limit.limit].into_iter()),
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

/// What `rules` cost the store: a key at its largest, a request at its dearest.
pub(crate) fn store_cost(rules: &RuleSet, model: Model) -> StoreCost {
    let shared = in_use(rules).filter(|rule| is_shared(rule)).flat_map(Rule::limits);
    let bytes_per_key = shared.map(|limit| model.bytes(&limit.limit)).max().unwrap_or_default();
    let request = worst_request(rules, model);
    StoreCost {
        bytes_per_key,
        calls_per_request: request.calls,
        us_per_request: model.us_of_one_core(request),
    }
}

/// Whether its counters are in the store.
fn is_shared(rule: &Rule) -> bool {
    matches!(rule.coordination(), Coordination::Exact | Coordination::Approximate { .. })
}

/// The calls of a request that matches every rule of a domain, and their cost for Redis: for the worst domain.
fn worst_request(rules: &RuleSet, model: Model) -> RequestCost {
    let mut by_domain: HashMap<&str, Vec<&Rule>> = HashMap::new();
    for rule in in_use(rules).filter(|rule| rule.coordination() == Coordination::Exact) {
        by_domain.entry(rule.domain()).or_default().push(rule);
    }
    let of_domain = |exact: &Vec<&Rule>| {
        let (mut keys, mut limits): (HashSet<&[String]>, Vec<&Limit>) = Default::default();
        for rule in exact {
            let mut scopes: HashMap<&[u8], &Limit> = HashMap::new();
            scopes.extend(rule.limits().map(|limit| (limit.scope.as_bytes(), &limit.limit)));
            limits.extend(scopes.values());
            if !scopes.is_empty() {
                keys.insert(rule.key());
            }
        }
        model.request(keys.len(), limits.into_iter())
    };
    let dearer = |one: &RequestCost, other: &RequestCost| {
        one.us.total_cmp(&other.us).then(one.calls.cmp(&other.calls))
    };
    by_domain.values().map(of_domain).max_by(dearer).unwrap_or_default()
}

/// The calls per second with which approximate rules reconcile their counters, and the cores of the store that these keep busy. A
/// node reports a key once per interval, and never more often than it is requested.
fn reports(rules: &RuleSet, inputs: &Inputs) -> (f64, f64) {
    let (mut per_s, mut cores) = (0.0, 0.0);
    for rule in in_use(rules) {
        let Coordination::Approximate { sync_every } = rule.coordination() else { continue };
        let often = inputs.keys_of(rule) as f64 * 1e6 / sync_every.get().max(1) as f64;
        for counter in counters_of(rule, inputs) {
            let reports = often.min(inputs.rate_per_s);
            per_s += reports * counter.report.calls as f64;
            cores += reports * counter.report.us / 1e6;
        }
    }
    (per_s, cores)
}
