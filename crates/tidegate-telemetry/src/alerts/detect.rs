//! What is the matter, from what all nodes say.
//!
//! States (a store that is down) are found at every look. Traffic is judged once a minute, against what is usual for each
//! rule. Nothing here waits, sends or reads a clock.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::baseline::{Baseline, Deviation, Unusual};
use super::signals::Signals;

/// Rules with baselines, about 12 kB each; those beyond have none.
const MOST_RULES: usize = 1_000;

/// What can be the matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is explained in its finding")]
pub enum Kind {
    StoreDown,
    BreakerOpen,
    Fallback,
    Overload,
    StoreSlow,
    StoreMemory,
    StoreEvicts,
    KeyCardinality,
    SpentEvicted,
    ReloadFailed,
    VersionSkew,
    CertificateEnds,
    TrafficSpike,
    TrafficDrop,
    RefusalSpike,
    NewTopCaller,
    SpreadCaller,
    ShadowWouldRefuse,
}

impl Kind {
    /// All there are.
    pub const ALL: [Kind; 18] = [
        Kind::StoreDown,
        Kind::BreakerOpen,
        Kind::Fallback,
        Kind::Overload,
        Kind::StoreSlow,
        Kind::StoreMemory,
        Kind::StoreEvicts,
        Kind::KeyCardinality,
        Kind::SpentEvicted,
        Kind::ReloadFailed,
        Kind::VersionSkew,
        Kind::CertificateEnds,
        Kind::TrafficSpike,
        Kind::TrafficDrop,
        Kind::RefusalSpike,
        Kind::NewTopCaller,
        Kind::SpreadCaller,
        Kind::ShadowWouldRefuse,
    ];

    /// Its name in payloads and in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::StoreDown => "store_down",
            Kind::BreakerOpen => "breaker_open",
            Kind::Fallback => "fallback",
            Kind::Overload => "overload",
            Kind::StoreSlow => "store_slow",
            Kind::StoreMemory => "store_memory",
            Kind::StoreEvicts => "store_evicts",
            Kind::KeyCardinality => "key_cardinality",
            Kind::SpentEvicted => "spent_evicted",
            Kind::ReloadFailed => "reload_failed",
            Kind::VersionSkew => "version_skew",
            Kind::CertificateEnds => "certificate_ends",
            Kind::TrafficSpike => "traffic_spike",
            Kind::TrafficDrop => "traffic_drop",
            Kind::RefusalSpike => "refusal_spike",
            Kind::NewTopCaller => "new_top_caller",
            Kind::SpreadCaller => "spread_caller",
            Kind::ShadowWouldRefuse => "shadow_would_refuse",
        }
    }

    /// How bad it is.
    #[must_use]
    pub fn severity(self) -> Severity {
        match self {
            Kind::StoreDown | Kind::BreakerOpen | Kind::StoreEvicts => Severity::Critical,
            Kind::ShadowWouldRefuse | Kind::VersionSkew => Severity::Info,
            _ => Severity::Warning,
        }
    }

    /// How long it must last before anybody is told, in seconds.
    #[must_use]
    pub fn hold_s(self) -> u64 {
        match self {
            // What an outage brings at once is told at once, in one body.
            Kind::StoreDown | Kind::BreakerOpen | Kind::Fallback => 2,
            Kind::StoreEvicts | Kind::CertificateEnds => 2,
            Kind::ReloadFailed => 5,
            Kind::Overload | Kind::StoreSlow | Kind::StoreMemory | Kind::SpentEvicted => 30,
            // Another release, or another version, is usual while a fleet is rolled.
            Kind::VersionSkew => 300,
            // Judged by the minute already.
            _ => 0,
        }
    }

    /// Whether each node tells it of itself: the others cannot see it. The rest is told once for all.
    #[must_use]
    pub fn is_of_one_node(self) -> bool {
        matches!(
            self,
            Kind::Fallback
                | Kind::Overload
                | Kind::StoreSlow
                | Kind::SpentEvicted
                | Kind::ReloadFailed
                | Kind::CertificateEnds
        )
    }

    /// Where to look next, and the page of the dashboard that shows it.
    fn next(self) -> (&'static str, &'static str) {
        match self {
            Kind::StoreDown | Kind::BreakerOpen => (
                "is Redis up, and reachable from these nodes? rules decide by on_store_failure meanwhile",
                "stores",
            ),
            Kind::Fallback => {
                ("which stores do not answer, and what their rules' on_store_failure admits", "stores")
            }
            Kind::Overload | Kind::StoreSlow => {
                ("Redis's core, the network, and coalesced_batch_size; add a shard", "stores")
            }
            Kind::StoreMemory | Kind::StoreEvicts => {
                ("raise maxmemory, and set maxmemory-policy noeviction", "stores")
            }
            Kind::KeyCardinality => {
                ("which rule's key takes what callers choose; `tidegate plan` counts memory", "top")
            }
            Kind::SpentEvicted => ("raise limits.max_cells or limits.max_log_bytes", "nodes"),
            Kind::ReloadFailed => {
                ("the log names file, line and a way out; so does `tidegate validate`", "rules")
            }
            Kind::VersionSkew => ("which node lags, and why it refuses what others took", "nodes"),
            Kind::CertificateEnds => {
                ("put a new certificate in its file; it is read again automatically", "nodes")
            }
            Kind::TrafficSpike | Kind::RefusalSpike => {
                ("one caller or many? and what changed in the rules", "top")
            }
            Kind::TrafficDrop => ("do callers still reach the service that asks?", "rules"),
            Kind::NewTopCaller => ("who it is, and whether an override should bound it", "top"),
            Kind::SpreadCaller => {
                ("a rule keyed by a wider attribute (network, account) that the caller cannot rotate", "top")
            }
            Kind::ShadowWouldRefuse => ("whom it would refuse, before it is enforced", "rules"),
        }
    }
}

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Severity {
    Info,
    Warning,
    Critical,
}

/// Something that is the matter now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// With what: a store node, a rule, a listener.
    pub subject: String,
    /// In a sentence.
    pub summary: String,
    /// What to look at next.
    pub next: String,
    /// The page of the dashboard that shows it, as the part of its address after the `#`.
    pub page: String,
}

impl Finding {
    fn new(kind: Kind, subject: impl Into<String>, summary: String) -> Self {
        let (subject, (next, page)) = (subject.into(), kind.next());
        let page = match kind {
            _ if page == "top" || (page == "rules" && subject.contains('/')) => {
                format!("/{page}?rule={subject}")
            }
            _ => format!("/{page}"),
        };
        Finding { kind, subject, summary, next: next.to_owned(), page }
    }
}

/// When something is worth an alert.
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds {
    /// p99 of the store above which it is slow.
    pub store_p99_us: f64,
    /// The part of its memory above which the store is nearly full.
    pub store_memory: f64,
    /// How long before its end a certificate is told of.
    pub certificate_days: u64,
    /// The part of its requests that enforcing a shadow rule would refuse.
    pub shadow_refusals: f64,
    /// How many spreads from usual are unusual.
    pub score: f64,
    /// Requests a minute below which a rule is too quiet to judge.
    pub quiet: f64,
    /// The part of a rule above which one caller takes most of it.
    pub caller_share: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds {
            store_p99_us: 5_000.0,
            store_memory: 0.85,
            certificate_days: 14,
            shadow_refusals: 0.05,
            score: 6.0,
            quiet: 60.0,
            caller_share: 0.5,
        }
    }
}

/// Looks at what nodes say, and remembers what is usual.
#[derive(Debug, Default)]
pub struct Detector {
    thresholds: Thresholds,
    last: BTreeMap<String, Signals>,
    rules: BTreeMap<String, RuleWatch>,
    keys: Baseline,
    minute: Minute,
    /// Found in the last whole minute, and true until the next one.
    by_minute: Vec<Finding>,
    top: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Debug, Default)]
struct Minute {
    number: Option<u64>,
    rules: BTreeMap<String, Counts>,
    keys: u64,
    /// Whether every node was heard in all of it.
    seconds: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    total: f64,
    refused: f64,
    shadow: f64,
}

#[derive(Debug, Default)]
struct RuleWatch {
    traffic: Baseline,
    refusals: Baseline,
    /// Unusual minutes in a row, above and below.
    high: u32,
    low: u32,
    refusing: u32,
}

/// Minutes in a row that must be unusual.
const IN_A_ROW: u32 = 2;
/// Top callers that are remembered for a rule.
const MOST_TOP: usize = 32;

impl Detector {
    /// One that knows nothing yet.
    #[must_use]
    pub fn new(thresholds: Thresholds) -> Self {
        Detector { thresholds, ..Detector::default() }
    }

    /// What is the matter, by what the nodes say at `now_s`.
    pub fn look(&mut self, now_s: u64, nodes: &[Signals]) -> Vec<Finding> {
        let mut found = self.states(now_s, nodes);
        found.extend(self.increases(nodes));
        found.extend(self.callers(nodes));
        self.count(now_s, nodes);
        found.extend(self.by_minute.iter().cloned());
        self.last = nodes.iter().map(|one| (one.node.clone(), one.clone())).collect();
        found.sort_by(|one, other| (one.kind, &one.subject).cmp(&(other.kind, &other.subject)));
        found.dedup_by(|one, other| (one.kind, &one.subject) == (other.kind, &other.subject));
        found
    }

    fn states(&self, now_s: u64, nodes: &[Signals]) -> Vec<Finding> {
        let mut found = Vec::new();
        let limits = &self.thresholds;
        let by = |list: fn(&Signals) -> &Vec<String>| {
            let mut by: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            for one in nodes {
                list(one).iter().for_each(|store| by.entry(store.clone()).or_default().push(&one.node));
            }
            by
        };
        for (store, seen_by) in by(|one| &one.stores_down) {
            let summary = format!("the store {store} does not answer {}", seen_by.join(", "));
            found.push(Finding::new(Kind::StoreDown, store, summary));
        }
        for (store, seen_by) in by(|one| &one.breakers_open) {
            let summary = format!("the breaker before {store} is open on {}", seen_by.join(", "));
            found.push(Finding::new(Kind::BreakerOpen, store, summary));
        }
        for one in nodes {
            if let Some(p99) = one.store_p99_us.filter(|p99| *p99 > limits.store_p99_us) {
                let summary =
                    format!("99 of 100 calls to the store take up to {:.1} ms on {}", p99 / 1e3, one.node);
                found.push(Finding::new(Kind::StoreSlow, one.node.clone(), summary));
            }
            if one.store_most_bytes > 0
                && one.store_bytes as f64 > limits.store_memory * one.store_most_bytes as f64
            {
                let part = 100 * one.store_bytes / one.store_most_bytes;
                let summary = format!("the store has {part} % of the memory that it may have");
                found.push(Finding::new(Kind::StoreMemory, "store", summary));
            }
            if one.reload_failed {
                let summary = format!("{} refuses the rules on offer, and the old ones go on", one.node);
                found.push(Finding::new(Kind::ReloadFailed, one.node.clone(), summary));
            }
            for (listener, end) in &one.certificates {
                let days = end.saturating_sub(now_s) / 86_400;
                if days < limits.certificate_days {
                    let summary =
                        format!("the certificate of {listener} on {} ends in {days} days", one.node);
                    found.push(Finding::new(
                        Kind::CertificateEnds,
                        format!("{}/{listener}", one.node),
                        summary,
                    ));
                }
            }
        }
        let kinds: BTreeSet<(u64, u64, &str)> =
            nodes.iter().map(|one| (one.version, one.rules_in_use, one.release.as_str())).collect();
        if kinds.len() > 1 {
            let summary =
                format!("{} nodes run {} different sets of rules or releases", nodes.len(), kinds.len());
            found.push(Finding::new(Kind::VersionSkew, "fleet", summary));
        }
        found
    }

    /// Counters that should stand still, and did not since the last look.
    fn increases(&self, nodes: &[Signals]) -> Vec<Finding> {
        type Counter = fn(&Signals) -> u64;
        let mut found = Vec::new();
        let checks: [(Kind, Counter, &str); 4] = [
            (Kind::Fallback, |one| one.fallbacks, "decides without the shared counters"),
            (Kind::Overload, |one| one.overloads, "asks more of the store than it answers in time"),
            (Kind::SpentEvicted, |one| one.evicted_spent, "forgets callers at their limit for want of room"),
            (Kind::StoreEvicts, |one| one.store_evicted, "sees Redis drop counters for want of memory"),
        ];
        for one in nodes {
            let Some(before) = self.last.get(&one.node) else { continue };
            for (kind, count, what) in checks {
                if count(one) > count(before) {
                    let subject = if kind == Kind::StoreEvicts { "store" } else { &one.node };
                    found.push(Finding::new(kind, subject, format!("{} {what}", one.node)));
                }
            }
        }
        found
    }

    /// A caller that takes most of a rule and was never among its greatest before.
    fn callers(&mut self, nodes: &[Signals]) -> Vec<Finding> {
        let mut found = Vec::new();
        for one in nodes.iter().flat_map(|node| &node.callers) {
            let rule = format!("{}/{}", one.domain, one.rule);
            let warm =
                self.rules.get(&rule).is_some_and(|watch| watch.traffic.deviation(0, 0.0, |_| 1.0).is_some());
            let known = self.top.entry(rule.clone()).or_default();
            if one.share > self.thresholds.caller_share && warm && !known.contains(&one.caller) {
                let part = (one.share * 100.0).round();
                let summary = format!("{} is new, and takes {part} % of {rule}", one.caller);
                found.push(Finding::new(Kind::NewTopCaller, rule, summary));
            } else if known.len() < MOST_TOP {
                known.insert(one.caller.clone());
            }
        }
        found
    }

    /// Adds up what was counted since the last look; at the end of a minute judges it.
    fn count(&mut self, now_s: u64, nodes: &[Signals]) {
        let number = now_s / 60;
        if self.minute.number.is_some_and(|last| last != number) {
            let minute = std::mem::take(&mut self.minute);
            // Half a minute says little; a minute in which nobody looked says nothing.
            self.by_minute = if minute.seconds >= 40 { self.judge(&minute) } else { Vec::new() };
        }
        let minute = &mut self.minute;
        minute.number = Some(number);
        let mut longest = 0;
        for one in nodes {
            let Some(before) = self.last.get(&one.node) else { continue };
            longest = longest.max(one.at_s.saturating_sub(before.at_s));
            for counts in &one.rules {
                let same =
                    |other: &&super::RuleCounts| other.rule == counts.rule && other.domain == counts.domain;
                let then = before.rules.iter().find(same).cloned().unwrap_or_default();
                let sum = minute.rules.entry(format!("{}/{}", counts.domain, counts.rule)).or_default();
                sum.total += counts.total.saturating_sub(then.total) as f64;
                sum.refused += counts.refused.saturating_sub(then.refused) as f64;
                sum.shadow += counts.shadow_refused.saturating_sub(then.shadow_refused) as f64;
            }
        }
        minute.seconds += longest;
        minute.keys = nodes.iter().map(|one| one.store_keys).max().unwrap_or_default();
    }

    fn judge(&mut self, minute: &Minute) -> Vec<Finding> {
        let mut found = Vec::new();
        let number = minute.number.unwrap_or_default();
        let limits = &self.thresholds;
        let keys = minute.keys as f64;
        let many = self.keys.deviation(number, keys, |mean| mean.sqrt().max(100.0));
        let many = many.filter(|off| off.score > limits.score && keys > 1.5 * off.expected + 1_000.0);
        self.keys.learn(number, keys, unusual(many.is_some()));
        let mut spread = false;
        let silent: Vec<String> =
            self.rules.keys().filter(|rule| !minute.rules.contains_key(*rule)).cloned().collect();
        let silent = silent.into_iter().map(|rule| (rule, Counts::default()));
        for (rule, counts) in minute.rules.clone().into_iter().chain(silent) {
            if !self.rules.contains_key(&rule) && self.rules.len() >= MOST_RULES {
                continue;
            }
            let watch = self.rules.entry(rule.clone()).or_default();
            let judged = watch.judge(number, counts, limits);
            if let Some(off) = judged.high {
                let summary = format!(
                    "{rule} has {:.0} requests a minute, where {:.0} are usual",
                    counts.total, off.expected
                );
                // Many more keys, each with few requests, and no more refusals: one caller that changes its key.
                if many.is_some() && judged.refusing.is_none() {
                    spread = true;
                    let more = format!(
                        "{summary}, from {:.1} times as many keys",
                        keys / many.map_or(1.0, |off| off.expected.max(1.0))
                    );
                    found.push(Finding::new(Kind::SpreadCaller, rule.clone(), more));
                }
                found.push(Finding::new(Kind::TrafficSpike, rule.clone(), summary));
            }
            if let Some(off) = judged.low {
                let summary = format!(
                    "{rule} has {:.0} requests a minute, where {:.0} are usual",
                    counts.total, off.expected
                );
                found.push(Finding::new(Kind::TrafficDrop, rule.clone(), summary));
            }
            if let Some(off) = judged.refusing {
                let (part, usual) = (100.0 * counts.refused / counts.total, 100.0 * off.expected);
                let summary =
                    format!("{rule} refuses {part:.0} % of its requests, where {usual:.0} % are usual");
                found.push(Finding::new(Kind::RefusalSpike, rule.clone(), summary));
            }
            if counts.total >= limits.quiet && counts.shadow > limits.shadow_refusals * counts.total {
                let part = 100.0 * counts.shadow / counts.total;
                let summary = format!("enforcing {rule} would refuse {part:.0} % of its requests");
                found.push(Finding::new(Kind::ShadowWouldRefuse, rule.clone(), summary));
            }
        }
        if let (Some(off), false) = (many, spread) {
            let summary = format!("the store holds {keys:.0} keys, where {:.0} are usual", off.expected);
            found.push(Finding::new(Kind::KeyCardinality, "store", summary));
        }
        found
    }
}

#[derive(Default)]
struct Judged {
    high: Option<Deviation>,
    low: Option<Deviation>,
    refusing: Option<Deviation>,
}

impl RuleWatch {
    fn judge(&mut self, minute: u64, counts: Counts, limits: &Thresholds) -> Judged {
        let Counts { total, refused, .. } = counts;
        let off = self.traffic.deviation(minute, total, |mean| mean.max(1.0).sqrt());
        let high =
            off.filter(|off| off.score > limits.score && total > 2.0 * off.expected && total >= limits.quiet);
        // Nothing is far below a small number: what counts is that chance does not go as far.
        let low = self.traffic.lowest(minute).filter(|usual| {
            *usual >= limits.quiet && total < 0.3 * usual && usual - total > limits.score * usual.sqrt()
        });
        let low = low.map(|expected| Deviation { expected, spread: expected.sqrt(), score: -limits.score });
        self.traffic.learn(minute, total, unusual(high.is_some() || low.is_some()));
        let mut refusing = None;
        if total >= limits.quiet {
            let part = refused / total;
            // What chance does to a part of so many.
            let noise = |mean: f64| (mean.clamp(0.01, 0.99) * (1.0 - mean.clamp(0.01, 0.99)) / total).sqrt();
            let off = self.refusals.deviation(minute, part, noise);
            refusing = off.filter(|off| {
                off.score > limits.score && part > off.expected + 0.05 && part > 1.5 * off.expected
            });
            self.refusals.learn(minute, part, unusual(refusing.is_some()));
        }
        let row = |count: &mut u32, off: Option<Deviation>| {
            *count = if off.is_some() { *count + 1 } else { 0 };
            off.filter(|_| *count >= IN_A_ROW)
        };
        Judged {
            high: row(&mut self.high, high),
            low: row(&mut self.low, low),
            refusing: row(&mut self.refusing, refusing),
        }
    }
}

fn unusual(is: bool) -> Unusual {
    if is { Unusual::Yes } else { Unusual::No }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, change: impl FnOnce(&mut Signals)) -> Signals {
        let mut signals = Signals { node: name.to_owned(), release: "1".to_owned(), ..Signals::default() };
        change(&mut signals);
        signals
    }

    fn kinds(found: &[Finding]) -> Vec<Kind> {
        found.iter().map(|one| one.kind).collect()
    }

    #[test]
    fn names_are_all_different_and_listed_in_their_order() {
        let names: BTreeSet<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), Kind::ALL.len());
        assert!(Kind::ALL.is_sorted());
    }

    #[test]
    fn one_store_that_two_nodes_miss_is_one_finding() {
        let nodes = ["a", "b"].map(|name| node(name, |one| one.stores_down = vec!["redis:1".to_owned()]));
        let found = Detector::default().look(0, &nodes);
        assert_eq!(kinds(&found), [Kind::StoreDown]);
        assert_eq!(found[0].summary, "the store redis:1 does not answer a, b");
    }

    #[test]
    fn a_counter_that_stands_still_is_no_finding() {
        let mut detector = Detector::default();
        let at = |count| [node("a", |one| one.fallbacks = count)];
        assert_eq!(kinds(&detector.look(0, &at(5))), []);
        assert_eq!(kinds(&detector.look(1, &at(5))), []);
        assert_eq!(kinds(&detector.look(2, &at(6))), [Kind::Fallback]);
        assert_eq!(kinds(&detector.look(3, &at(0))), [], "a node that restarted counts from nothing");
    }

    #[test]
    fn states_of_every_kind_are_found() {
        let bad = node("a", |one| {
            one.breakers_open = vec!["r".to_owned()];
            one.store_p99_us = Some(9_000.0);
            (one.store_bytes, one.store_most_bytes) = (90, 100);
            one.reload_failed = true;
            one.certificates = vec![("http".to_owned(), 100 + 3 * 86_400), ("grpc".to_owned(), 99 * 86_400)];
            one.rules_in_use = 3;
        });
        let good = node("b", |_| ());
        let found = Detector::default().look(100, &[bad, good]);
        let expected = [
            Kind::BreakerOpen,
            Kind::StoreSlow,
            Kind::StoreMemory,
            Kind::ReloadFailed,
            Kind::VersionSkew,
            Kind::CertificateEnds,
        ];
        assert_eq!(kinds(&found), expected);
        assert_eq!(found[5].subject, "a/http");
    }
}
