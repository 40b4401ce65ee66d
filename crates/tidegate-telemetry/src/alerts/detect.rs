//! Finds problems in the signals of all nodes.
//!
//! States (a store that is down) are checked at every look. Traffic is judged once a minute ([`Traffic`]), against each
//! rule's baseline. What a look cannot judge is neither found nor over: [`Found`] says which. Nothing here waits, sends or
//! reads a clock.

use std::collections::{BTreeMap, BTreeSet};

use super::found::{Found, OthersHeard, Unjudged};
use super::kinds::{Finding, Kind, RuleName};
use super::minutes::Minute;
use super::shares::{NodeId, Shares};
use super::signals::Signals;
use super::traffic::{Traffic, TrafficStats};

/// When something is worth an alert.
#[derive(Clone, Debug, PartialEq)]
pub struct Thresholds {
    /// The fraction of a node's requests, decided without the store, above which that is a problem.
    pub without_store: f64,
    /// The store's p99 above which it is slow.
    pub store_p99_us: f64,
    /// The fraction of its memory above which the store is nearly full.
    pub store_memory: f64,
    /// How many days before its expiry a certificate is reported.
    pub certificate_days: u64,
    /// The fraction of its requests that enforcing a shadow rule would refuse.
    pub shadow_refusals: f64,
    /// The number of spreads from usual that is unusual.
    pub score: f64,
    /// Requests per minute below which a rule is too quiet to judge.
    pub quiet: f64,
    /// The fraction of a rule's requests above which one caller takes most of it.
    pub caller_share: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Thresholds {
            without_store: 0.001,
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

/// Checks the signals of nodes, and remembers baselines.
#[derive(Debug, Default)]
pub struct Detector {
    thresholds: Thresholds,
    last: BTreeMap<NodeId, Signals>,
    shares: Shares,
    traffic: Traffic,
    /// Findings of the last whole minute, valid until the next one.
    by_minute: Vec<Finding>,
    /// What of the last minute could not be judged.
    unjudged: Unjudged,
}

fn id(signals: &Signals) -> NodeId {
    (signals.node.clone(), signals.started_us)
}

impl Detector {
    /// A detector without any baselines.
    #[must_use]
    pub fn new(thresholds: Thresholds) -> Self {
        Detector { thresholds, ..Detector::default() }
    }

    /// The problems in the nodes' signals at `now_s`. The first of `nodes` is this one.
    pub fn look(&mut self, now_s: u64, nodes: &[Signals], others: OthersHeard) -> Found {
        let (known, nodes) = (nodes, nodes.iter().filter(|one| !one.lost).cloned().collect::<Vec<_>>());
        let nodes = &nodes[..];
        let mut found = self.states(now_s, nodes);
        found.extend(skew(known));
        found.extend(self.increases(nodes));
        found.extend(self.shares.look(now_s, nodes, self.thresholds.without_store));
        found.extend(self.by_minute.iter().cloned());
        self.last = nodes.iter().map(|one| (id(one), one.clone())).collect();
        found.sort_by(|one, other| (one.kind, &one.subject).cmp(&(other.kind, &other.subject)));
        found.dedup_by(|one, other| (one.kind, &one.subject) == (other.kind, &other.subject));
        Found::new(found, nodes, others, self.unjudged)
    }

    /// Judges a whole minute, with the nodes' last signals. Its findings are valid until the next minute.
    pub fn judge(&mut self, minute: &Minute) {
        let nodes: Vec<&Signals> = self.last.values().collect();
        // A node that cannot reach a part of the store counts only the keys of the rest.
        let keys = nodes.iter().filter(|one| one.stores_down.is_empty()).map(|one| one.store_keys).max();
        self.unjudged = if keys.is_none() { Unjudged::Keys } else { Unjudged::Nothing };
        self.by_minute = self.traffic.judge(minute, &nodes, keys, &self.thresholds);
    }

    /// Records that nothing is known of a minute: earlier findings may continue, or be over.
    pub fn missed_a_minute(&mut self) {
        self.by_minute.clear();
        self.unjudged = Unjudged::Everything;
    }

    /// Forgets rules that are no longer in use: their end is not a drop of traffic.
    pub fn keep_only(&mut self, in_use: &BTreeSet<RuleName>) {
        self.traffic.keep_only(in_use);
    }

    /// The rules of this minute without a baseline, which may be stored: see [`Detector::restore`].
    #[must_use]
    pub fn unknown(&self, minute: &Minute) -> Vec<RuleName> {
        self.traffic.unknown(minute)
    }

    /// Restores a stored baseline, written by this process before a restart or by another node.
    pub fn restore(&mut self, what: &RuleName, kept: &[u8], minute: u64) {
        self.traffic.restore(what, kept, minute);
    }

    /// The baselines to store after this minute: everything once an hour, a part of it each minute.
    #[must_use]
    pub fn to_keep(&self, minute: u64) -> Vec<(RuleName, Vec<u8>)> {
        self.traffic.to_keep(minute)
    }

    /// The size of the baselines.
    #[must_use]
    pub fn stats(&self) -> TrafficStats {
        self.traffic.stats()
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
            let failures = nodes.iter().flat_map(|one| &one.store_failures);
            let why = failures.filter(|(of, _)| *of == store).find_map(|(_, reason)| what_it_answers(reason));
            let summary = match why {
                Some(why) => format!("the store {store} decides nothing for {}: {why}", seen_by.join(", ")),
                None => format!("the store {store} does not answer {}", seen_by.join(", ")),
            };
            found.push(Finding::new(Kind::StoreDown, store, summary));
        }
        for (store, seen_by) in by(|one| &one.breakers_open) {
            let summary = format!("the breaker before {store} is open on {}", seen_by.join(", "));
            found.push(Finding::new(Kind::BreakerOpen, store, summary));
        }
        for one in nodes {
            if let Some(p99) = one.store_p99_us.filter(|p99| *p99 > limits.store_p99_us) {
                let (store, node) = (one.the_store(), &one.node);
                let summary = format!("99 of 100 calls to {store} take up to {:.1} ms on {node}", p99 / 1e3);
                found.push(Finding::new(Kind::StoreSlow, one.node.clone(), summary));
            }
            if one.store_most_bytes > 0
                && one.store_bytes as f64 > limits.store_memory * one.store_most_bytes as f64
            {
                let part = 100 * one.store_bytes / one.store_most_bytes;
                let summary = format!("{} uses {part} % of the memory that it may use", one.the_store());
                found.push(Finding::new(Kind::StoreMemory, "store", summary));
            }
            if one.reload_failed {
                let summary = format!("{} refuses the newest rules, and the old ones keep running", one.node);
                found.push(Finding::new(Kind::ReloadFailed, one.node.clone(), summary));
            }
            // A store that does not answer is its own alert.
            if one.publish_failed && one.stores_down.is_empty() {
                let summary =
                    format!("the newest rules and bans of {} do not reach the other nodes", one.node);
                found.push(Finding::new(Kind::PublishFailed, one.node.clone(), summary));
            }
            for (listener, end) in &one.certificates {
                let days = end.saturating_sub(now_s) / 86_400;
                if days < limits.certificate_days {
                    let when = match *end > now_s {
                        true => format!("ends in {days} days"),
                        false => "has ended".to_owned(),
                    };
                    let summary = format!("the certificate of {listener} on {} {when}", one.node);
                    found.push(Finding::new(
                        Kind::CertificateEnds,
                        format!("{}/{listener}", one.node),
                        summary,
                    ));
                }
            }
        }
        found
    }

    /// Counters that should not move, but did since the last look.
    fn increases(&self, nodes: &[Signals]) -> Vec<Finding> {
        type Counter = fn(&Signals) -> u64;
        let mut found = Vec::new();
        let checks: [(Kind, Counter, &str); 2] = [
            (
                Kind::SpentEvicted,
                |one| one.evicted_spent,
                "forgets callers at their limit because its memory is full",
            ),
            (
                Kind::StoreEvicts,
                |one| one.store_evicted,
                "sees the store drop counters because its memory is full",
            ),
        ];
        for one in nodes {
            let Some(before) = self.last.get(&id(one)) else { continue };
            for (kind, count, what) in checks {
                if count(one) > count(before) {
                    let subject = if kind == Kind::StoreEvicts { "store" } else { &one.node };
                    found.push(Finding::new(kind, subject, format!("{} {what}", one.node)));
                }
            }
        }
        found
    }
}

/// What is wrong with a store that answers and refuses; none if it does not answer.
fn what_it_answers(reason: &str) -> Option<&'static str> {
    match reason {
        "no_replicas" => Some("it has fewer replicas than `min-replicas-to-write` asks for (NOREPLICAS)"),
        "read_only" => Some("it is a replica, and takes no writes"),
        "out_of_memory" => Some("it has no memory, or no disk, left"),
        "loading" => Some("it is still starting"),
        "cluster" => Some("its cluster does not serve all slots (CLUSTERDOWN)"),
        "not_allowed" => Some("it rejects the login, or denies what a node needs"),
        _ => None,
    }
}

/// Whether nodes run different rules, including lost nodes: a frozen one may resume with what it ran.
fn skew(nodes: &[Signals]) -> Option<Finding> {
    let versions: BTreeSet<(u64, &str)> =
        nodes.iter().map(|one| (one.version, one.release.as_str())).collect();
    // A node without alerts announces no digest.
    let rules: BTreeSet<&str> =
        nodes.iter().map(|one| one.rules.as_str()).filter(|rules| !rules.is_empty()).collect();
    let different = versions.len().max(rules.len());
    let lost: Vec<&str> = nodes.iter().filter(|one| one.lost).map(|one| one.node.as_str()).collect();
    let lost = match lost.is_empty() {
        true => String::new(),
        false => format!(", not heard any more: {}", lost.join(", ")),
    };
    let summary = format!("{} nodes run {different} different sets of rules or releases{lost}", nodes.len());
    (different > 1).then(|| Finding::new(Kind::VersionSkew, "fleet", summary))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, change: impl FnOnce(&mut Signals)) -> Signals {
        let mut signals = Signals { node: name.to_owned(), release: "1".to_owned(), ..Signals::default() };
        change(&mut signals);
        signals
    }

    fn look(detector: &mut Detector, now_s: u64, nodes: &[Signals]) -> Vec<Finding> {
        detector.look(now_s, nodes, OthersHeard::Yes).findings
    }

    fn kinds(found: &[Finding]) -> Vec<Kind> {
        found.iter().map(|one| one.kind).collect()
    }

    #[test]
    fn one_store_that_two_nodes_miss_is_one_finding() {
        let nodes = ["a", "b"].map(|name| node(name, |one| one.stores_down = vec!["redis:1".to_owned()]));
        let found = look(&mut Detector::default(), 0, &nodes);
        assert_eq!(kinds(&found), [Kind::StoreDown]);
        assert_eq!(found[0].summary, "the store redis:1 does not answer a, b");
    }

    #[test]
    fn a_store_that_refuses_is_told_from_one_that_does_not_answer() {
        let summary = |reason: &str| {
            let down = node("a", |one| {
                one.stores_down = vec!["redis:1".to_owned()];
                one.store_failures = vec![("redis:1".to_owned(), reason.to_owned())];
            });
            look(&mut Detector::default(), 0, &[down])[0].summary.clone()
        };
        assert_eq!(
            summary("no_replicas"),
            "the store redis:1 decides nothing for a: it has fewer replicas than `min-replicas-to-write` asks for (NOREPLICAS)"
        );
        assert_eq!(summary("timeout"), "the store redis:1 does not answer a");
    }

    #[test]
    fn a_node_that_is_not_heard_any_more_still_runs_what_it_ran() {
        let lost = node("b", |one| (one.version, one.lost) = (2, true));
        let found = look(&mut Detector::default(), 0, &[node("a", |_| ()), lost.clone()]);
        assert_eq!(kinds(&found), [Kind::VersionSkew]);
        assert_eq!(
            found[0].summary,
            "2 nodes run 2 different sets of rules or releases, not heard any more: b"
        );
        let silent = Signals { version: 0, stores_down: vec!["redis:1".to_owned()], ..lost };
        assert_eq!(look(&mut Detector::default(), 0, &[node("a", |_| ()), silent]), []);
    }

    #[test]
    fn a_counter_that_stands_still_is_no_finding() {
        let mut detector = Detector::default();
        let at = |count| [node("a", |one| one.evicted_spent = count)];
        assert_eq!(kinds(&look(&mut detector, 0, &at(5))), []);
        assert_eq!(kinds(&look(&mut detector, 1, &at(5))), []);
        assert_eq!(kinds(&look(&mut detector, 2, &at(6))), [Kind::SpentEvicted]);
        assert_eq!(kinds(&look(&mut detector, 3, &at(0))), [], "a node that restarted counts from nothing");
        let other = node("a", |one| (one.evicted_spent, one.started_us) = (9, 1));
        assert_eq!(kinds(&look(&mut detector, 4, &[other])), [], "another process of that name is another");
    }

    #[test]
    fn a_node_that_tells_no_digest_is_compared_by_version_and_release_alone() {
        let told = node("a", |one| one.rules = "0123456789abcdef".to_owned());
        let found = |other: Signals| kinds(&look(&mut Detector::default(), 0, &[told.clone(), other]));
        assert_eq!(found(node("b", |_| ())), []);
        assert_eq!(found(node("b", |one| one.version = 2)), [Kind::VersionSkew]);
        assert_eq!(found(node("b", |one| one.release = "2".to_owned())), [Kind::VersionSkew]);
    }

    #[test]
    fn states_of_every_kind_are_found() {
        let bad = node("a", |one| {
            one.breakers_open = vec!["r".to_owned()];
            one.store_p99_us = Some(9_000.0);
            (one.store_bytes, one.store_most_bytes) = (90, 100);
            one.reload_failed = true;
            one.certificates = vec![("http".to_owned(), 100 + 3 * 86_400), ("grpc".to_owned(), 99 * 86_400)];
            one.rules = "0123456789abcdef".to_owned();
        });
        let good = node("b", |one| one.rules = "0123456789abcdee".to_owned());
        let found = look(&mut Detector::default(), 100, &[bad, good]);
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
        assert_eq!(found[5].summary, "the certificate of http on a ends in 3 days");
        let over = node("a", |one| one.certificates = vec![("http".to_owned(), 99)]);
        let found = look(&mut Detector::default(), 100, &[over]);
        assert_eq!(found[0].summary, "the certificate of http on a has ended");
    }

    #[test]
    fn keys_are_not_judged_while_every_node_misses_a_part_of_the_store() {
        let mut detector = Detector::default();
        let mut unknown = |down: &[&str]| {
            let down = down.iter().map(|store| (*store).to_owned()).collect();
            let nodes = [node("a", |one| one.stores_down = down)];
            look(&mut detector, 0, &nodes);
            detector.judge(&Minute::default());
            detector.look(0, &nodes, OthersHeard::Yes).is_unknown(Kind::KeyCardinality, "store")
        };
        assert_eq!([unknown(&["r"]), unknown(&[])], [true, false]);
    }

    #[test]
    fn what_was_found_by_the_minute_is_unknown_after_one_was_missed() {
        let mut detector = Detector::default();
        detector.missed_a_minute();
        let found = detector.look(0, &[node("a", |_| ())], OthersHeard::Yes);
        assert!(found.is_unknown(Kind::TrafficSpike, "api/per-user"));
    }
}
