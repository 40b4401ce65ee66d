//! The kinds of alerts, their severity, and what to check next.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::http_client::url_part;

/// A kind of alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is explained in its finding")]
pub enum Kind {
    StoreDown,
    BreakerOpen,
    Fallback,
    Overload,
    NodeOverload,
    StoreSlow,
    StoreMemory,
    StoreEvicts,
    KeyCardinality,
    SpentEvicted,
    ReloadFailed,
    PublishFailed,
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
    /// All kinds.
    pub const ALL: [Kind; 20] = [
        Kind::StoreDown,
        Kind::BreakerOpen,
        Kind::Fallback,
        Kind::Overload,
        Kind::NodeOverload,
        Kind::StoreSlow,
        Kind::StoreMemory,
        Kind::StoreEvicts,
        Kind::KeyCardinality,
        Kind::SpentEvicted,
        Kind::ReloadFailed,
        Kind::PublishFailed,
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
            Kind::NodeOverload => "node_overload",
            Kind::StoreSlow => "store_slow",
            Kind::StoreMemory => "store_memory",
            Kind::StoreEvicts => "store_evicts",
            Kind::KeyCardinality => "key_cardinality",
            Kind::SpentEvicted => "spent_evicted",
            Kind::ReloadFailed => "reload_failed",
            Kind::PublishFailed => "publish_failed",
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

    /// What broke, where alerts of several kinds and subjects follow from it; of others, each subject is an incident of its own.
    fn cause(self) -> Option<&'static str> {
        match self {
            Kind::StoreDown | Kind::BreakerOpen | Kind::Fallback | Kind::Overload | Kind::StoreSlow => {
                Some("store")
            }
            Kind::StoreMemory | Kind::StoreEvicts | Kind::KeyCardinality | Kind::SpentEvicted => {
                Some("memory")
            }
            Kind::ReloadFailed | Kind::PublishFailed | Kind::VersionSkew => Some("rules"),
            Kind::NodeOverload => Some("load"),
            _ => None,
        }
    }

    /// The incident that an alert about `subject` belongs to: people act on causes, not on the list of their symptoms.
    #[must_use]
    pub fn incident(self, subject: &str) -> String {
        match (self, self.cause()) {
            (_, Some(cause)) => cause.to_owned(),
            (
                Kind::TrafficSpike
                | Kind::TrafficDrop
                | Kind::RefusalSpike
                | Kind::NewTopCaller
                | Kind::SpreadCaller,
                None,
            ) => format!("traffic {subject}"),
            (kind, None) => format!("{} {subject}", kind.name()),
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

    /// How long it must last before it is reported, in seconds.
    #[must_use]
    pub fn hold_s(self) -> u64 {
        match self {
            // The consequences of an outage are reported at once, in one body.
            Kind::StoreDown | Kind::BreakerOpen | Kind::Fallback => 2,
            Kind::StoreEvicts | Kind::CertificateEnds => 2,
            Kind::ReloadFailed | Kind::PublishFailed => 5,
            // Found only after it has lasted for half a minute: see `Shares` and `CallSpans`.
            Kind::Overload | Kind::NodeOverload | Kind::StoreSlow => 2,
            Kind::StoreMemory | Kind::SpentEvicted => 30,
            // Nodes differ during a rolling update.
            Kind::VersionSkew => 300,
            // Already judged by the minute.
            _ => 0,
        }
    }

    /// Who could say that it is over.
    pub(super) fn seen_by(self) -> SeenBy {
        match self {
            Kind::StoreDown | Kind::BreakerOpen | Kind::VersionSkew => SeenBy::AnyNode,
            Kind::StoreMemory | Kind::StoreEvicts => SeenBy::NodesWithStore,
            Kind::Fallback | Kind::StoreSlow => SeenBy::ItsNodeWithStore,
            Kind::Overload
            | Kind::NodeOverload
            | Kind::SpentEvicted
            | Kind::ReloadFailed
            | Kind::PublishFailed
            | Kind::CertificateEnds => SeenBy::ItsNode,
            Kind::KeyCardinality | Kind::SpreadCaller => SeenBy::MinuteWithKeys,
            Kind::TrafficSpike
            | Kind::TrafficDrop
            | Kind::RefusalSpike
            | Kind::NewTopCaller
            | Kind::ShadowWouldRefuse => SeenBy::Minute,
        }
    }

    /// The node of a subject, where it is of one.
    pub(super) fn node_of(self, subject: &str) -> &str {
        match self {
            Kind::CertificateEnds => subject.rsplit_once('/').map_or(subject, |(node, _)| node),
            _ => subject,
        }
    }

    /// What to check next, and the page of the dashboard. An alert about a rule links to the rule's page.
    pub(super) fn next(self) -> (&'static str, &'static str) {
        match self {
            Kind::StoreDown | Kind::BreakerOpen => (
                "check that the store runs, that these nodes reach it, and that it takes writes; until it answers, each rule decides by its on_store_failure",
                "/cluster",
            ),
            Kind::Fallback => {
                ("see which store does not answer, and what each rule's on_store_failure admits", "/cluster")
            }
            Kind::Overload | Kind::StoreSlow => (
                "see whether a core of the store or the network is full; give the store more capacity (shards, cores), or raise store.timeout",
                "/cluster",
            ),
            Kind::NodeOverload => {
                ("add nodes, or cores; the page of the cluster says how busy each node is", "/cluster")
            }
            Kind::StoreMemory | Kind::StoreEvicts => (
                "give the store more memory, or fewer keys; `tidegate plan` counts them, and Redis should have the policy noeviction",
                "/cluster",
            ),
            Kind::KeyCardinality => {
                ("find the rule whose key takes what callers choose; `tidegate plan` counts memory", "/rules")
            }
            Kind::SpentEvicted => ("raise limits.max_cells or limits.max_log_bytes", "/cluster"),
            Kind::ReloadFailed => (
                "read the node's log, which names file, line and a way out, as `tidegate validate` does",
                "/rules",
            ),
            Kind::PublishFailed => (
                "read in the node's log what the store refuses: its memory, its rights, its sizes",
                "/cluster",
            ),
            Kind::VersionSkew => ("see which node lags, and why it refuses what others took", "/cluster"),
            Kind::CertificateEnds => {
                ("put a new certificate in its file; it is read again automatically", "/cluster")
            }
            Kind::TrafficSpike | Kind::RefusalSpike => {
                ("see whether it is one caller or many, and what changed in the rules", "/rules")
            }
            Kind::TrafficDrop => ("check that callers still reach the service that asks", "/rules"),
            Kind::NewTopCaller => ("see who it is, and whether an override should bound it", "/rules"),
            Kind::SpreadCaller => {
                ("add a rule with a wider key (network, account) that the caller cannot rotate", "/rules")
            }
            Kind::ShadowWouldRefuse => ("see whom it would refuse, before it is enforced", "/rules"),
        }
    }
}

/// Who could say that a problem is over: while nobody can, its alert goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeenBy {
    /// Every node: another one may see what this one does not.
    AnyNode,
    /// The node that it is of.
    ItsNode,
    /// The same, if that reaches the whole store: without a request, or an answer, nothing shows it.
    ItsNodeWithStore,
    /// Any node that reaches the whole store.
    NodesWithStore,
    /// Whoever judges the last minute.
    Minute,
    /// The same, if the keys of the store were counted.
    MinuteWithKeys,
}

/// The severity of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Severity {
    Info,
    Warning,
    Critical,
}

/// A current problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its kind.
    pub kind: Kind,
    /// With what: a store node, a rule, a listener.
    pub subject: String,
    /// A sentence that describes it.
    pub summary: String,
    /// What to check next.
    pub next: String,
    /// The page of the dashboard, as the part of its address after the `#`.
    pub page: String,
}

impl Finding {
    pub(super) fn new(kind: Kind, subject: impl Into<String>, summary: String) -> Self {
        let (next, page) = kind.next();
        let (subject, next, page) = (subject.into(), next.to_owned(), page.to_owned());
        Finding { kind, subject, summary, next, page }
    }

    pub(super) fn of_rule(kind: Kind, rule: &RuleName, summary: String) -> Self {
        let mut finding = Finding::new(kind, rule.to_string(), summary);
        finding.page = format!("/rules/{}/{}", url_part(&rule.domain), url_part(&rule.rule));
        finding
    }

    /// The page is the caller's, if `caller` says whose that is; one whose values were cut is first among the callers of its rule.
    pub(super) fn of_caller(kind: Kind, rule: &RuleName, caller: &str, summary: String) -> Self {
        let mut finding = Finding::of_rule(kind, rule, summary);
        match caller.is_empty() || caller.contains('…') {
            true => finding.page.push_str("?by=used"),
            false => {
                finding.page = format!("/keys?domain={}&key={}", url_part(&rule.domain), url_part(caller))
            }
        }
        finding
    }
}

/// The name of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RuleName {
    /// Its domain.
    pub domain: String,
    /// Its name.
    pub rule: String,
}

impl RuleName {
    /// The rule called `rule` of `domain`.
    #[must_use]
    pub fn new(domain: &str, rule: &str) -> Self {
        RuleName { domain: domain.to_owned(), rule: rule.to_owned() }
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.rule)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_all_different_and_listed_in_their_order() {
        let names: BTreeSet<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), Kind::ALL.len());
        assert!(Kind::ALL.is_sorted());
    }

    #[test]
    fn links_lead_to_pages_that_the_dashboard_has() {
        let app = std::fs::read_to_string("../../dashboard/src/App.svelte").unwrap();
        for kind in Kind::ALL {
            let (next, page) = kind.next();
            let named = format!("path: '{}'", page.trim_start_matches('/'));
            assert!(app.contains(&named), "{} leads to {page}", kind.name());
            assert!(!next.is_empty());
        }
        assert!(app.contains("page === 'rules' && rule}"), "a rule has a page at rules/DOMAIN/RULE");
    }

    #[test]
    fn a_caller_is_linked_to_where_its_name_is_known() {
        let rule = RuleName::new("api", "per-user");
        let page = |caller| Finding::of_caller(Kind::NewTopCaller, &rule, caller, String::new()).page;
        assert_eq!(page("user=#0123456789abcdef"), "/keys?domain=api&key=user%3D%230123456789abcdef");
        assert_eq!(page("user=al…"), "/rules/api/per-user?by=used");
        assert_eq!(page(""), "/rules/api/per-user?by=used");
    }

    #[test]
    fn busy_nodes_are_one_incident_and_what_to_do_names_no_metric() {
        assert_eq!(Kind::NodeOverload.incident("one"), Kind::NodeOverload.incident("two"));
        for kind in Kind::ALL {
            let next = kind.next().0;
            let is_metric =
                |word: &str| word.ends_with("_total") || word.ends_with("_ratio") || word.ends_with("_size");
            assert!(!next.split(|one: char| !one.is_alphanumeric() && one != '_').any(is_metric), "{next}");
        }
    }

    #[test]
    fn a_rules_name_cannot_break_out_of_its_link() {
        let rule = RuleName::new("api", "path_/a b?c#d.é");
        let finding = Finding::of_rule(Kind::TrafficSpike, &rule, String::new());
        assert_eq!(finding.page, "/rules/api/path_%2Fa%20b%3Fc%23d.%C3%A9");
        assert_eq!(finding.subject, "api/path_/a b?c#d.é");
    }
}
