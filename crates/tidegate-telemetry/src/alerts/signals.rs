//! What one node knows that is worth an alert, small enough to travel with its heartbeat.

use serde::{Deserialize, Serialize};

use super::kinds::RuleName;
use super::minutes::RuleCounts;
use crate::scrape::{Sample, Scrape};

/// Calls to the store that say how slow it is.
const LEAST_CALLS: f64 = 20.0;
/// The most of each list that travels: a note has a bounded size.
const MOST_LISTED: usize = 16;
/// The longest name that travels.
const LONGEST_NAME: usize = 200;

/// What one node says. Counts are since its process began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Signals {
    /// What the node is called.
    pub node: String,
    /// When its process began, in microseconds since 1970: tells it from others of that name, and from itself before.
    pub started_us: u64,
    /// The release that it runs.
    pub release: String,
    /// Decisions without a store that failed.
    pub fallbacks: u64,
    /// Requests that could not wait for a store that answers others.
    pub overloads: u64,
    /// Nodes of the store that do not answer, and those of them whose breaker is open.
    pub stores_down: Vec<String>,
    /// Breakers that are open.
    pub breakers_open: Vec<String>,
    /// 99 of 100 calls to the store took no longer, lately.
    pub store_p99_us: Option<f64>,
    /// Memory of the store.
    pub store_bytes: u64,
    /// The most memory that the store may have; 0 where it has no bound.
    pub store_most_bytes: u64,
    /// Keys that the store dropped for want of memory.
    pub store_evicted: u64,
    /// Keys of the store.
    pub store_keys: u64,
    /// Cells of callers over their limit that were dropped for want of room.
    pub evicted_spent: u64,
    /// Whether the rules on offer are refused.
    pub reload_failed: bool,
    /// What its rules decide, as a digest; empty from a release before there was one.
    pub rules: String,
    /// The version of its rules, where a database numbers them; else 0.
    pub version: u64,
    /// Listeners whose certificates end, and when, in seconds since 1970.
    pub certificates: Vec<(String, u64)>,
    /// The callers that take most of a rule, where that is known.
    pub callers: Vec<RuleCallers>,
    /// The worst of what is the matter, by this node's own book.
    pub alert: Option<String>,
    /// Whether it is not heard any more, and did not take leave: what it ran last is all that is known of it.
    #[serde(skip)]
    pub lost: bool,
    /// Fingerprints of alerts whose beginning this node has told, and whose end it will tell.
    pub told: Vec<String>,
}

/// Who asked most of a rule on one node, lately.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleCallers {
    /// The rule.
    pub rule: RuleName,
    /// What all callers asked.
    pub asked: u64,
    /// The callers that asked most, and how much. Masked: never a key in clear.
    pub most: Vec<(String, u64)>,
}

impl Signals {
    /// What `scrape` says; times are taken from what came since `before`.
    #[must_use]
    pub fn read(node: &str, scrape: &Scrape, before: Option<&Scrape>) -> Signals {
        let count = |name: &str, labels: &[(&str, &str)]| scrape.sum(name, labels) as u64;
        let nodes_where = |name: &str, is: fn(f64) -> bool| -> Vec<String> {
            let found = scrape.samples(name).iter().filter(|one| is(one.value));
            found.filter_map(|one| one.label("node")).take(MOST_LISTED).map(short).collect()
        };
        let build = scrape.samples("tidegate_build").first();
        let config = scrape.samples("tidegate_config").first();
        let ends = scrape.samples("tidegate_certificate_not_after_seconds").iter().take(MOST_LISTED);
        Signals {
            lost: false,
            node: node.to_owned(),
            started_us: 0,
            release: build.and_then(|build| build.label("version")).unwrap_or_default().to_owned(),
            fallbacks: count("tidegate_fallbacks", &[]),
            overloads: count("tidegate_overloads", &[]),
            stores_down: nodes_where("tidegate_store_up", |up| up == 0.0),
            breakers_open: nodes_where("tidegate_breaker_state", |state| state == 2.0),
            store_p99_us: p99_us(scrape, before),
            store_bytes: count("tidegate_store_memory_bytes", &[]),
            store_most_bytes: count("tidegate_store_memory_max_bytes", &[]),
            store_evicted: count("tidegate_store_evicted_keys", &[]),
            store_keys: count("tidegate_store_keys", &[]),
            evicted_spent: count("tidegate_cell_evictions", &[("reason", "spent")]),
            reload_failed: scrape.get("tidegate_config_last_reload_success") == Some(0.0),
            rules: config.and_then(|config| config.label("digest")).unwrap_or_default().to_owned(),
            version: 0,
            certificates: ends
                .filter_map(|end| Some((end.label("listener")?.to_owned(), end.value as u64)))
                .collect(),
            callers: Vec::new(),
            alert: None,
            told: Vec::new(),
        }
    }
}

fn short(name: &str) -> String {
    name[..name.floor_char_boundary(LONGEST_NAME)].to_owned()
}

/// What each rule has said since the process began.
#[must_use]
pub fn rule_counts(scrape: &Scrape) -> Vec<RuleCounts> {
    let mut rules: Vec<RuleCounts> = Vec::new();
    for sample in scrape.samples("tidegate_decisions") {
        let label = |name| sample.label(name).unwrap_or_default();
        let (domain, rule) = (label("domain"), label("rule"));
        // Series of one rule stand together.
        if rules.last().is_none_or(|last| last.rule.domain != domain || last.rule.rule != rule) {
            rules.push(RuleCounts { rule: RuleName::new(domain, rule), ..RuleCounts::default() });
        }
        let Some(counts) = rules.last_mut() else { continue };
        let value = sample.value as u64;
        counts.total += value;
        match label("result") {
            "refused" | "key_missing_refused" => counts.refused += value,
            "shadow_refused" => counts.shadow_refused += value,
            _ => {}
        }
    }
    rules
}

/// The upper end of the bucket that holds the 99th of 100 decisions of the store since `before`.
fn p99_us(scrape: &Scrape, before: Option<&Scrape>) -> Option<f64> {
    let buckets = |scrape: &Scrape| -> Vec<(f64, f64)> {
        let own = |one: &&Sample| one.suffix == "_bucket" && one.label("op") == Some("decide");
        let bound =
            |one: &Sample| one.label("le").and_then(|bound| bound.parse().ok()).unwrap_or(f64::INFINITY);
        let samples = scrape.samples("tidegate_store_duration_seconds").iter().filter(own);
        samples.map(|one| (bound(one), one.value)).collect()
    };
    let (now, then) = (buckets(scrape), before.map(buckets).unwrap_or_default());
    let since = |place: usize| now[place].1 - then.get(place).map_or(0.0, |(_, count)| *count);
    let all = now.len().checked_sub(1).map(since).filter(|all| *all >= LEAST_CALLS)?;
    let place = (0..now.len()).find(|place| since(*place) >= all * 0.99)?;
    let bound = now[place].0;
    Some(if bound.is_finite() { bound * 1e6 } else { now[place.saturating_sub(1)].0 * 1e6 })
}
