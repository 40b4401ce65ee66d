//! Parses the options that a rule may inherit from its document's `defaults`.

use std::rc::Rc;

use tidegate_core::{Micros, Over};

use crate::diagnostics::Report;
use crate::fields::{self, Fields};
use crate::limits::OVER;
use crate::rule::{Coordination, OnMissingKey, OnStoreFailure, Priority};
use crate::split::Share;

/// The fields that `defaults` may have.
pub(crate) const DEFAULT_FIELDS: [&str; 15] = [
    "owner",
    "enabled",
    "on_missing_key",
    "rollout",
    "penalty",
    "overdraft",
    "over",
    "on_store_failure",
    "coordination",
    "sync_every",
    "scope",
    "consistency",
    "shadow",
    "priority",
    "visible",
];

pub(crate) const ON_MISSING_KEY: [(&str, OnMissingKey); 2] =
    [("skip", OnMissingKey::Skip), ("refuse", OnMissingKey::Refuse)];

pub(crate) const ON_STORE_FAILURE: [(&str, OnStoreFailure); 3] =
    [("open", OnStoreFailure::Open), ("closed", OnStoreFailure::Closed), ("local", OnStoreFailure::Local)];

/// Approximate coordination without `sync_every`.
const APPROXIMATE: Coordination = Coordination::Approximate { sync_every: Micros::from_secs(1) };

pub(crate) const COORDINATION: [(&str, Coordination); 3] =
    [("exact", Coordination::Exact), ("approximate", APPROXIMATE), ("local", Coordination::Local)];

/// Whether each region counts for itself, or all of them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Region,
    Global,
}

pub(crate) const SCOPE: [(&str, Reach); 2] = [("region", Reach::Region), ("global", Reach::Global)];

/// Eventual consistency without `sync_every`.
const EVENTUAL: Coordination = Coordination::Eventual { sync_every: Micros::from_secs(1) };

pub(crate) const CONSISTENCY: [(&str, Coordination); 2] =
    [("escrow", Coordination::Escrow), ("eventual", EVENTUAL)];

pub(crate) const PRIORITY: [(&str, Priority); 4] =
    [("P0", Priority::P0), ("P1", Priority::P1), ("P2", Priority::P2), ("P3", Priority::P3)];

/// Shorter intervals than this keep the store busy for nothing, longer ones coordinate nothing.
const SYNC_EVERY: [Micros; 2] = [Micros::from_millis(1), Micros::from_secs(3_600)];

/// A shorter penalty is over before all nodes know it; a longer one is a ban.
const PENALTY: [Micros; 2] = [Micros::from_secs(1), Micros::from_secs(30 * 86_400)];

/// The options of a rule, or of its document for all rules.
#[derive(Clone, Debug, Default)]
pub(super) struct Options {
    pub(super) owner: Option<Rc<str>>,
    pub(super) enabled: Option<bool>,
    pub(super) on_missing_key: Option<OnMissingKey>,
    pub(super) rollout: Option<Share>,
    pub(super) penalty: Option<Micros>,
    pub(super) overdraft: Option<u64>,
    pub(super) over: Option<Over>,
    pub(super) on_store_failure: Option<OnStoreFailure>,
    pub(super) coordination: Option<Coordination>,
    pub(super) shadow: Option<bool>,
    pub(super) priority: Option<Priority>,
    pub(super) visible: Option<bool>,
}

impl Options {
    /// The options in `fields`, with gaps filled from `defaults`.
    pub(super) fn read(fields: &Fields<'_>, defaults: &Options, report: &mut Report<'_>) -> Self {
        let option = |name| fields.get(name);
        Options {
            owner: option("owner")
                .and_then(|node| fields::name(node, "owner", report))
                .or_else(|| defaults.owner.clone()),
            enabled: option("enabled")
                .and_then(|node| fields::flag(node, "enabled", report))
                .or(defaults.enabled),
            on_missing_key: option("on_missing_key")
                .and_then(|node| fields::choice(node, "on_missing_key", &ON_MISSING_KEY, report))
                .or(defaults.on_missing_key),
            rollout: option("rollout")
                .and_then(|node| fields::share(node, "rollout", report))
                .or(defaults.rollout),
            penalty: fields::span_within(fields, "penalty", PENALTY, report).or(defaults.penalty),
            overdraft: option("overdraft")
                .and_then(|node| fields::count(node, "overdraft", report))
                .or(defaults.overdraft),
            over: option("over")
                .and_then(|node| fields::choice(node, "over", &OVER, report))
                .or(defaults.over),
            on_store_failure: option("on_store_failure")
                .and_then(|node| fields::choice(node, "on_store_failure", &ON_STORE_FAILURE, report))
                .or(defaults.on_store_failure),
            coordination: coordination(fields, defaults.coordination, report),
            shadow: option("shadow")
                .and_then(|node| fields::flag(node, "shadow", report))
                .or(defaults.shadow),
            priority: option("priority")
                .and_then(|node| fields::choice(node, "priority", &PRIORITY, report))
                .or(defaults.priority),
            visible: option("visible")
                .and_then(|node| fields::flag(node, "visible", report))
                .or(defaults.visible),
        }
    }
}

/// Where the counters live: `coordination` says it within a region, `scope: global` with `consistency` beyond.
fn coordination(
    fields: &Fields<'_>,
    default: Option<Coordination>,
    report: &mut Report<'_>,
) -> Option<Coordination> {
    let reach = match fields.get("scope") {
        Some(node) => Some(fields::choice(node, "scope", &SCOPE, report)?),
        None => None,
    };
    let is_global =
        reach.map_or(default.is_some_and(Coordination::is_global), |reach| reach == Reach::Global);
    let default = default.filter(|default| default.is_global() == is_global);
    let (field, other, options) = match is_global {
        true => ("consistency", "coordination", &CONSISTENCY[..]),
        false => ("coordination", "consistency", &COORDINATION[..]),
    };
    if fields.get(other).is_some() {
        let (message, hint) = match is_global {
            true => (
                "`coordination` is for rules that each region counts for itself",
                "use `consistency: escrow` or `eventual`, or remove `scope: global`",
            ),
            false => (
                "`consistency` is for rules that all regions count together",
                "add `scope: global`, or remove it",
            ),
        };
        report.error(fields.key_span(other), message, hint);
        return None;
    }
    let chosen = match fields.get(field) {
        Some(node) => Some(fields::choice(node, field, options, report)?),
        None => default.or(is_global.then_some(Coordination::Escrow)),
    };
    if fields.get("sync_every").is_none() {
        return chosen;
    }
    if chosen.and_then(Coordination::sync_every).is_none() {
        let (message, hint) = match is_global {
            true => ("`sync_every` is for eventual consistency", "add `consistency: eventual`, or remove it"),
            false => (
                "`sync_every` is for approximate coordination",
                "add `coordination: approximate`, or remove it",
            ),
        };
        report.error(fields.key_span("sync_every"), message, hint);
        return None;
    }
    let sync_every = fields::span_within(fields, "sync_every", SYNC_EVERY, report)?;
    Some(if is_global {
        Coordination::Eventual { sync_every }
    } else {
        Coordination::Approximate { sync_every }
    })
}
