//! One node's input for alerts, small enough to travel with its heartbeat.

use serde::{Deserialize, Serialize};
use tidegate_metrics::Families;

use super::kinds::RuleName;
use super::minutes::RuleCounts;
use crate::is_without_the_store;

/// The most entries of each list: an announcement has a bounded size.
const MOST_LISTED: usize = 16;
/// The longest name.
const LONGEST_NAME: usize = 200;

/// The signals of one node. Counts are since its process started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Signals {
    /// The node's name.
    pub node: String,
    /// When its process started, in microseconds since 1970: distinguishes it from others of that name, and from itself
    /// before a restart.
    pub started_us: u64,
    /// The release that it runs.
    pub release: String,
    /// Requests; 0 from releases that did not say.
    pub requests: u64,
    /// Decisions without a store that failed.
    pub fallbacks: u64,
    /// Requests that could not wait for a store that answers others, and those of them that found its queue full.
    pub overloads: u64,
    /// See `overloads`.
    pub queue_full: u64,
    /// Requests whose answer came in time, to a node too busy to take it. Older releases count them as `overloads`.
    pub own_lags: u64,
    /// The name of the store, if it is one server.
    pub store: String,
    /// Nodes of the store that do not answer, and those of them whose breaker is open.
    pub stores_down: Vec<String>,
    /// Why the last call to each of `stores_down` failed, where that is known: its name, and the reason as metrics name it.
    pub store_failures: Vec<(String, String)>,
    /// Breakers that are open.
    pub breakers_open: Vec<String>,
    /// The p99 of calls to the store that each of the last spans had at least: see [`CallSpans`](super::CallSpans).
    pub store_p99_us: Option<f64>,
    /// Memory used by the store.
    pub store_bytes: u64,
    /// The most memory that the store may use; 0 if unbounded.
    pub store_most_bytes: u64,
    /// Keys that the store evicted for lack of memory.
    pub store_evicted: u64,
    /// Keys of the store.
    pub store_keys: u64,
    /// Cells of callers over their limit that were evicted for lack of room.
    pub evicted_spent: u64,
    /// Whether the newest rules were refused.
    pub reload_failed: bool,
    /// Whether its newest rules and overrides could not be published to the other nodes.
    pub publish_failed: bool,
    /// A digest of its rules; empty from releases without one.
    pub rules: String,
    /// The version of its rules, if they come from a database; otherwise 0.
    pub version: u64,
    /// Listeners with certificates, and when those expire, in seconds since 1970.
    pub certificates: Vec<(String, u64)>,
    /// The top callers of rules, if known.
    pub callers: Vec<RuleCallers>,
    /// The most severe alert in this node's own book.
    pub alert: Option<String>,
    /// Whether it is no longer heard, and did not shut down cleanly: only what it last ran is known.
    #[serde(skip)]
    pub lost: bool,
    /// Fingerprints of alerts whose beginning this node has reported, and whose end it will report.
    pub told: Vec<String>,
}

/// The recent top callers of a rule on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleCallers {
    /// The rule.
    pub rule: RuleName,
    /// The requests of all callers.
    pub asked: u64,
    /// The top callers and their requests. Masked: never a key in clear.
    pub most: Vec<(String, u64)>,
}

impl Signals {
    /// Reads `families`.
    #[must_use]
    pub fn read(node: &str, families: &Families, store_p99_us: Option<f64>) -> Signals {
        let count = |name: &str, labels: &[(&str, &str)]| families.sum(name, labels) as u64;
        let overloads = |reason| count("tidegate_overloads", &[("reason", reason)]);
        let nodes_where = |name: &str, is: fn(f64) -> bool| -> Vec<String> {
            let found = families.series(name).iter().filter(|one| is(one.number()));
            found.filter_map(|one| one.label("node")).take(MOST_LISTED).map(short).collect()
        };
        let stores_down = nodes_where("tidegate_store_up", |up| up == 0.0);
        let failures = families.series("tidegate_store_last_failure").iter();
        let failures =
            failures.filter_map(|one| Some((short(one.label("node")?), short(one.label("reason")?))));
        let store_failures = failures.filter(|(store, _)| stores_down.contains(store)).collect();
        let build = families.series("tidegate_build").first();
        let config = families.series("tidegate_config").first();
        let ends = families.series("tidegate_certificate_not_after_seconds").iter().take(MOST_LISTED);
        Signals {
            lost: false,
            node: node.to_owned(),
            started_us: 0,
            release: build.and_then(|build| build.label("version")).unwrap_or_default().to_owned(),
            requests: count("tidegate_requests", &[]),
            fallbacks: count("tidegate_fallbacks", &[]),
            overloads: overloads("deadline") + overloads("queue_full"),
            queue_full: overloads("queue_full"),
            own_lags: overloads("own_lag"),
            store: match families.series("tidegate_store_up") {
                [only] => only.label("node").map(short).unwrap_or_default(),
                _ => String::new(),
            },
            stores_down,
            store_failures,
            breakers_open: nodes_where("tidegate_breaker_state", |state| state == 2.0),
            store_p99_us,
            store_bytes: count("tidegate_store_memory_bytes", &[]),
            store_most_bytes: count("tidegate_store_memory_max_bytes", &[]),
            store_evicted: count("tidegate_store_evicted_keys", &[]),
            store_keys: count("tidegate_store_keys", &[]),
            evicted_spent: count("tidegate_cell_evictions", &[("reason", "spent")]),
            reload_failed: families.get("tidegate_config_last_reload_success") == Some(0.0),
            publish_failed: false,
            rules: config.and_then(|config| config.label("digest")).unwrap_or_default().to_owned(),
            version: 0,
            certificates: ends
                .filter_map(|end| Some((end.label("listener")?.to_owned(), end.number() as u64)))
                .collect(),
            callers: Vec::new(),
            alert: None,
            told: Vec::new(),
        }
    }

    /// What to call its store in a sentence.
    pub(super) fn the_store(&self) -> String {
        format!("the store {}", self.store).trim_end().to_owned()
    }
}

fn short(name: &str) -> String {
    name[..name.floor_char_boundary(LONGEST_NAME)].to_owned()
}

/// Each rule's decisions since the process started.
#[must_use]
pub fn rule_counts(families: &Families) -> Vec<RuleCounts> {
    let mut rules: Vec<RuleCounts> = Vec::new();
    for series in families.series("tidegate_decisions") {
        let label = |name| series.label(name).unwrap_or_default();
        let (domain, rule) = (label("domain"), label("rule"));
        // The series of one rule are adjacent.
        if rules.last().is_none_or(|last| last.rule.domain != domain || last.rule.rule != rule) {
            rules.push(RuleCounts { rule: RuleName::new(domain, rule), ..RuleCounts::default() });
        }
        let Some(counts) = rules.last_mut() else { continue };
        let value = series.number() as u64;
        counts.total += value;
        match label("result") {
            // A store that fails or is too busy has its own alert, and says nothing about the rule.
            "refused" | "shadow_refused" if is_without_the_store(label("source")) => {}
            "refused" | "key_missing_refused" => counts.refused += value,
            "shadow_refused" => counts.shadow_refused += value,
            _ => {}
        }
    }
    rules
}
