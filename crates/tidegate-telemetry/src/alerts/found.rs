//! The findings of a look, and what it could not judge: a missing finding means "over" only if it could have been found.

use std::collections::BTreeSet;

use super::kinds::{Finding, Kind, SeenBy};
use super::signals::Signals;

/// Whether the announcements of other nodes could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OthersHeard {
    /// All of them, or there can be no others.
    Yes,
    /// The store that holds them does not answer.
    No,
}

/// What of the last minute could not be judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Unjudged {
    #[default]
    Nothing,
    Keys,
    Everything,
}

/// The findings, and what is unknown.
#[derive(Clone, Debug)]
pub struct Found {
    /// Confirmed problems.
    pub findings: Vec<Finding>,
    /// This node's name, if it heard from no other.
    alone: Option<String>,
    /// Nodes that cannot reach a part of the store.
    without_store: BTreeSet<String>,
    /// Whether no node knows the size of the whole store.
    holdings_unknown: bool,
    unjudged: Unjudged,
}

impl Found {
    /// The first of `nodes` is this one.
    pub(super) fn new(
        findings: Vec<Finding>,
        nodes: &[Signals],
        others: OthersHeard,
        unjudged: Unjudged,
    ) -> Self {
        let own = nodes.first().map(|own| own.node.clone()).unwrap_or_default();
        let without_store = nodes.iter().filter(|one| !one.stores_down.is_empty());
        let without_store: BTreeSet<String> = without_store.map(|one| one.node.clone()).collect();
        Found {
            findings,
            alone: (others == OthersHeard::No).then_some(own),
            holdings_unknown: !nodes.is_empty() && without_store.len() == nodes.len(),
            without_store,
            unjudged,
        }
    }

    /// Whether this problem may exist although it was not found.
    pub(super) fn is_unknown(&self, kind: Kind, subject: &str) -> bool {
        let of_another = || self.alone.as_deref().is_some_and(|own| kind.node_of(subject) != own);
        match kind.seen_by() {
            SeenBy::AnyNode => self.alone.is_some(),
            SeenBy::NodesWithStore => self.holdings_unknown,
            SeenBy::ItsNodeWithStore => of_another() || self.without_store.contains(subject),
            SeenBy::ItsNode => of_another(),
            SeenBy::MinuteWithKeys => self.unjudged != Unjudged::Nothing,
            SeenBy::Minute => self.unjudged == Unjudged::Everything,
        }
    }
}

/// Complete findings: what is not among them is over.
impl From<Vec<Finding>> for Found {
    fn from(findings: Vec<Finding>) -> Self {
        Found::new(findings, &[], OthersHeard::Yes, Unjudged::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, down: &[&str]) -> Signals {
        let stores_down = down.iter().map(|store| (*store).to_owned()).collect();
        Signals { node: name.to_owned(), stores_down, ..Signals::default() }
    }

    /// What a look of node `a` that found nothing cannot judge.
    fn unknown(nodes: &[Signals], others: OthersHeard, unjudged: Unjudged) -> Vec<String> {
        let found = Found::new(Vec::new(), nodes, others, unjudged);
        let subjects = |kind| match kind {
            Kind::CertificateEnds => ["a/http", "b/http"],
            _ => ["a", "b"],
        };
        let all = Kind::ALL.into_iter().flat_map(|kind| subjects(kind).map(|subject| (kind, subject)));
        let unknown = all.filter(|(kind, subject)| found.is_unknown(*kind, subject));
        unknown.map(|(kind, subject)| format!("{} {subject}", kind.name())).collect()
    }

    #[test]
    fn nothing_is_unknown_to_a_node_that_hears_all_others_and_reaches_the_store() {
        let nodes = [node("a", &[]), node("b", &[])];
        assert_eq!(unknown(&nodes, OthersHeard::Yes, Unjudged::Nothing), Vec::<String>::new());
    }

    #[test]
    fn what_only_another_node_can_say_is_unknown_while_none_is_heard() {
        let expected = [
            "store_down a",
            "store_down b",
            "breaker_open a",
            "breaker_open b",
            "fallback b",
            "overload b",
            "node_overload b",
            "store_slow b",
            "spent_evicted b",
            "reload_failed b",
            "publish_failed b",
            "version_skew a",
            "version_skew b",
            "certificate_ends b/http",
        ];
        assert_eq!(unknown(&[node("a", &[])], OthersHeard::No, Unjudged::Nothing), expected);
    }

    #[test]
    fn what_the_store_holds_is_unknown_where_every_node_misses_a_part_of_it() {
        let expected =
            ["fallback a", "fallback b", "store_slow a", "store_slow b", "store_memory a", "store_memory b"];
        let expected = [&expected[..], &["store_evicts a", "store_evicts b"]].concat();
        let nodes = [node("a", &["r1"]), node("b", &["r2"])];
        assert_eq!(unknown(&nodes, OthersHeard::Yes, Unjudged::Nothing), expected);
        let one_knows = [node("a", &["r1"]), node("b", &[])];
        assert_eq!(unknown(&one_knows, OthersHeard::Yes, Unjudged::Nothing), ["fallback a", "store_slow a"]);
    }

    #[test]
    fn what_is_judged_by_the_minute_is_unknown_after_a_minute_that_was_not() {
        let nodes = [node("a", &[])];
        let by_minute = |unjudged| {
            let mut kinds = unknown(&nodes, OthersHeard::Yes, unjudged);
            kinds.retain(|one| one.ends_with(" a"));
            kinds
        };
        assert_eq!(by_minute(Unjudged::Keys), ["key_cardinality a", "spread_caller a"]);
        let all = ["key_cardinality a", "traffic_spike a", "traffic_drop a", "refusal_spike a"];
        let all = [&all[..], &["new_top_caller a", "spread_caller a", "shadow_would_refuse a"]].concat();
        assert_eq!(by_minute(Unjudged::Everything), all);
    }
}
