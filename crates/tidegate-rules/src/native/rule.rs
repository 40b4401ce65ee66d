//! Reads one rule.

use std::rc::Rc;
use std::sync::Arc;

use tidegate_core::Micros;

use super::File;
use crate::choice::{KeyOverrides, LimitChoice, UsualLimits};
use crate::diagnostics::{Report, Span};
use crate::fields::{self, Fields};
use crate::limits::LimitReader;
use crate::matching::Attributes;
use crate::matching::native::Selector;
use crate::rule::{Coordination, Mode, OnMissingKey, OnStoreFailure, Priority, Replacing, Rule};
use crate::ruleset::Compiling;
use crate::yaml::Node;

pub(crate) const RULE_FIELDS: [&str; 14] = [
    "name",
    "match",
    "key",
    "on_missing_key",
    "limits",
    "tiers",
    "key_overrides",
    "on_store_failure",
    "coordination",
    "sync_every",
    "colocate",
    "shadow",
    "overrides",
    "priority",
];

pub(crate) const ON_MISSING_KEY: [(&str, OnMissingKey); 2] =
    [("skip", OnMissingKey::Skip), ("refuse", OnMissingKey::Refuse)];

pub(crate) const ON_STORE_FAILURE: [(&str, OnStoreFailure); 3] =
    [("open", OnStoreFailure::Open), ("closed", OnStoreFailure::Closed), ("local", OnStoreFailure::Local)];

/// Approximate coordination as it is without `sync_every`.
const APPROXIMATE: Coordination = Coordination::Approximate { sync_every: Micros::from_secs(1) };

pub(crate) const COORDINATION: [(&str, Coordination); 3] =
    [("exact", Coordination::Exact), ("approximate", APPROXIMATE), ("local", Coordination::Local)];

pub(crate) const PRIORITY: [(&str, Priority); 4] =
    [("P0", Priority::P0), ("P1", Priority::P1), ("P2", Priority::P2), ("P3", Priority::P3)];

/// Reads shorter than this keep the store busy for nothing, longer ones coordinate nothing.
const SYNC_EVERY: [Micros; 2] = [Micros::from_millis(1), Micros::from_secs(3_600)];

impl File {
    /// Reads a rule and adds it to the set; a rule with a mistake is added only if the mistake left something to add.
    pub(super) fn rule(&mut self, node: &Node, compiling: &mut Compiling, report: &mut Report<'_>) {
        let Some(fields) = Fields::read(node, "a rule", &RULE_FIELDS, report) else { return };
        let number = u32::try_from(self.overrides.len()).expect("fewer rules than bytes in a file");
        let name = self.name(&fields, number, report);
        self.overrides.push(names(&fields, "overrides", "list the names of rules, such as [per-ip]", report));
        let key = File::key(&fields, report);
        let colocate = fields.get("colocate").and_then(|node| fields::name(node, "colocate", report));
        let conditions =
            fields.get("match").and_then(|node| self.conditions(node, report)).unwrap_or_default();
        let mut limits = LimitReader {
            domain: &self.domain,
            rule: name.as_deref().unwrap_or("unnamed"),
            calendars: &mut compiling.calendars,
        };
        let usual = usual_limits(&fields, &mut self.attributes, &mut limits, report);
        let overrides = match fields.get("key_overrides") {
            Some(node) => limits.key_overrides(node, &mut self.attributes, report),
            None => Some(KeyOverrides::default()),
        };
        let option = |name| fields.get(name);
        let on_missing_key = option("on_missing_key")
            .and_then(|node| fields::choice(node, "on_missing_key", &ON_MISSING_KEY, report));
        let on_store_failure = option("on_store_failure")
            .and_then(|node| fields::choice(node, "on_store_failure", &ON_STORE_FAILURE, report));
        let priority =
            option("priority").and_then(|node| fields::choice(node, "priority", &PRIORITY, report));
        let shadow = option("shadow").and_then(|node| fields::flag(node, "shadow", report));
        let coordination = coordination(&fields, report);
        // Without these nothing can be matched, and what is wrong with them is already reported.
        let (Some(name), Some(usual), Some(overrides)) = (name, usual, overrides) else { return };
        let index = compiling.rules.len();
        self.selectors.push(Selector {
            rule: index,
            conditions: conditions.into(),
            key: key.iter().map(|attribute| self.attributes.number(attribute)).collect(),
            colocate: colocate.map(|attribute| self.attributes.number(&attribute)),
            on_missing_key: on_missing_key.unwrap_or_default(),
        });
        compiling.rules.push(Rule {
            index,
            name: name.to_string(),
            domain: Arc::clone(&self.domain),
            mode: if shadow == Some(true) { Mode::Shadow } else { Mode::Enforce },
            on_store_failure: on_store_failure.unwrap_or_default(),
            coordination: coordination.unwrap_or_default(),
            priority,
            key: key.iter().map(|attribute| attribute.to_string()).collect(),
            limits: LimitChoice { usual, overrides },
            label: None,
            replacing: Replacing { called: Some(number), replaces: Box::default() },
        });
    }

    fn name(&mut self, fields: &Fields<'_>, number: u32, report: &mut Report<'_>) -> Option<Rc<str>> {
        let node = fields.require(
            "name",
            "a rule",
            "counters, metrics and answers go by it: `- name: per-user`",
            report,
        )?;
        let name = fields::name(node, "the rule's name", report)?;
        if let Some((_, first)) = self.names.get(&name) {
            report
                .error(
                    node.span,
                    format!("two rules are called `{name}`"),
                    "they would share counters: give one another name",
                )
                .related(*first, "the first one");
            return None;
        }
        self.names.insert(name.clone(), (number, node.span));
        Some(name)
    }

    /// The attributes of the key, none twice.
    fn key(fields: &Fields<'_>, report: &mut Report<'_>) -> Vec<Rc<str>> {
        let listed =
            names(fields, "key", "list attributes, such as [user]; [] is one counter for everybody", report);
        let key: Vec<Rc<str>> = listed.iter().map(|(name, _)| name.clone()).collect();
        for (at, (name, span)) in listed.iter().enumerate() {
            if key[..at].contains(name) {
                report.error(*span, format!("the key names `{name}` twice"), "remove one");
            }
        }
        key
    }
}

fn usual_limits(
    fields: &Fields<'_>,
    attributes: &mut Attributes,
    reader: &mut LimitReader<'_>,
    report: &mut Report<'_>,
) -> Option<UsualLimits> {
    match (fields.get("limits"), fields.get("tiers")) {
        (Some(limits), None) => reader.limit_set(limits, "`limits`", report).map(UsualLimits::Same),
        (None, Some(tiers)) => reader.tiers(tiers, attributes, report).map(UsualLimits::ByTier),
        (None, None) => {
            let hint = "add `limits: [100/minute]`, `limits: unlimited`, or `tiers`";
            report.error(rule_name_span(fields), "a rule needs `limits` or `tiers`", hint);
            None
        }
        (Some(limits), Some(tiers)) => {
            // Both are read all the same, for the mistakes in them.
            reader.limit_set(limits, "`limits`", report);
            reader.tiers(tiers, attributes, report);
            report
                .error(
                    fields.key_span("tiers"),
                    "a rule has `limits` or `tiers`, not both",
                    "put limits for everybody into a rule of their own",
                )
                .related(fields.key_span("limits"), "limits given here");
            None
        }
    }
}

/// Pointing at a whole rule would underline too much.
fn rule_name_span(fields: &Fields<'_>) -> Span {
    fields.get("name").map_or(fields.span, |node| node.span)
}

fn coordination(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Coordination> {
    let chosen = match fields.get("coordination") {
        Some(node) => fields::choice(node, "coordination", &COORDINATION, report)?,
        None => Coordination::Exact,
    };
    let Some(node) = fields.get("sync_every") else { return Some(chosen) };
    let Coordination::Approximate { .. } = chosen else {
        let hint = "add `coordination: approximate`, or remove it";
        report.error(fields.key_span("sync_every"), "`sync_every` is for approximate coordination", hint);
        return None;
    };
    let sync_every = fields::duration(node, "sync_every", report)?;
    let [shortest, longest] = SYNC_EVERY;
    if sync_every < shortest || sync_every > longest {
        let hint = format!("use {shortest} to {longest}");
        report.error(node.span, format!("sync_every: {sync_every} is too short or too long"), hint);
        return None;
    }
    Some(Coordination::Approximate { sync_every })
}

/// A list of names; empty where it is absent.
fn names(fields: &Fields<'_>, field: &str, hint: &str, report: &mut Report<'_>) -> Vec<(Rc<str>, Span)> {
    let items =
        fields.get(field).and_then(|node| fields::list(node, field, hint, report)).unwrap_or_default();
    items
        .iter()
        .filter_map(|item| Some((fields::name(item, &format!("a name in `{field}`"), report)?, item.span)))
        .collect()
}
