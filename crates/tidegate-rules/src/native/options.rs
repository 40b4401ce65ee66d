//! Parses the options that a rule may inherit from its document's `defaults`.

use std::rc::Rc;

use tidegate_core::{Micros, Over};

use crate::diagnostics::Report;
use crate::fields::{self, Fields};
use crate::limits::OVER;
use crate::rule::{Coordination, OnMissingKey, OnStoreFailure, Priority};
use crate::split::Share;

/// The fields that `defaults` may have.
pub(crate) const DEFAULT_FIELDS: [&str; 13] = [
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

fn coordination(
    fields: &Fields<'_>,
    default: Option<Coordination>,
    report: &mut Report<'_>,
) -> Option<Coordination> {
    let chosen = match fields.get("coordination") {
        Some(node) => Some(fields::choice(node, "coordination", &COORDINATION, report)?),
        None => default,
    };
    if fields.get("sync_every").is_none() {
        return chosen;
    }
    let Some(Coordination::Approximate { .. }) = chosen else {
        let hint = "add `coordination: approximate`, or remove it";
        report.error(fields.key_span("sync_every"), "`sync_every` is for approximate coordination", hint);
        return None;
    };
    let sync_every = fields::span_within(fields, "sync_every", SYNC_EVERY, report)?;
    Some(Coordination::Approximate { sync_every })
}
