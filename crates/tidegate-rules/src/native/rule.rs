//! Parses one rule.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use tidegate_core::{Hits, Limit, RefusedHits, SlidingLog};

use super::autopilot::autopilot;
use super::options::Options;
use super::scopes;
use super::{DomainReader, Overriding};
use crate::choice::{KeyOverrides, LimitChoice, UsualLimits};
use crate::diagnostics::{Report, Span};
use crate::fields::{self, Fields};
use crate::flags;
use crate::limits::{LimitReader, named_limit};
use crate::matching::Attributes;
use crate::matching::native::Selector;
use crate::policy::Policy;
use crate::rule::{About, Mode, Replacing, Rule, RuleLimit};
use crate::ruleset::Compiling;
use crate::secret::is_secret_name;
use crate::split::Split;
use crate::yaml::{Node, Value};

pub(crate) const RULE_FIELDS: [&str; 29] = [
    "name",
    "description",
    "owner",
    "enabled",
    "when",
    "match",
    "key",
    "on_missing_key",
    "limits",
    "tiers",
    "key_overrides",
    "experiment",
    "rollout",
    "penalty",
    "overdraft",
    "over",
    "autopilot",
    "on_store_failure",
    "coordination",
    "sync_every",
    "scope",
    "consistency",
    "lease_to_clients",
    "colocate",
    "hash",
    "shadow",
    "overrides",
    "priority",
    "visible",
];

/// The most attributes of a key: all of them are part of every cell's name, and looked up for every request.
const MOST_IN_KEY: usize = 32;

/// The name of the limit that enforces a penalty.
const PENALTY: &str = "(penalty)";

impl DomainReader {
    /// Parses a rule and adds it to the set; a rule with a mistake is added only if enough of it is valid.
    pub(super) fn rule(
        &mut self,
        node: &Node,
        defaults: &Options,
        compiling: &mut Compiling,
        report: &mut Report<'_>,
    ) {
        let Some(fields) = Fields::read(node, "a rule", &RULE_FIELDS, report) else { return };
        let number = u32::try_from(self.overrides.len()).expect("fewer rules than bytes in a file");
        let name = self.name(&fields, number, report);
        let overrides = names(&fields, "overrides", "list the names of rules, such as [per-ip]", report);
        self.overrides.push(Overriding { names: overrides, place: None });
        let description =
            fields.get("description").and_then(|node| fields::text(node, "description", report));
        let key = DomainReader::key(&fields, report);
        let colocate = fields.get("colocate").and_then(|node| fields::name(node, "colocate", report));
        let hashed = hashed(&fields, &key, colocate.as_ref(), report);
        let conditions =
            fields.get("match").and_then(|node| self.conditions(node, report)).unwrap_or_default();
        let options = Options::read(&fields, defaults, report);
        let lends = scopes::lends(&fields, &options, report);
        let mut limits = LimitReader {
            domain: &self.domain,
            rule: name.as_deref().unwrap_or("unnamed"),
            lends,
            calendars: &mut compiling.calendars,
            now: compiling.now,
        };
        let usual = usual_limits(&fields, &mut self.attributes, &mut limits, report);
        let overrides = match fields.get("key_overrides") {
            Some(node) => limits.key_overrides(node, usual.as_ref(), &mut self.attributes, report),
            None => Some(KeyOverrides::default()),
        };
        let experiment = fields.get("experiment").map(|node| limits.experiment(node, &fields, report));
        let autopilot =
            fields.get("autopilot").and_then(|node| autopilot(node, &fields, usual.as_ref(), report));
        let when = fields.get("when").and_then(|node| flags::followed(node, report));
        splits_need_a_key(&fields, &key, &options, report);
        // Without these nothing can be matched, and their mistakes are already reported.
        let (Some(name), Some(usual), Some(overrides)) = (name, usual, overrides) else { return };
        let chosen = LimitChoice { usual, overrides, experiment: experiment.flatten() };
        scopes::check(&fields, &options, &chosen, report);
        let index = compiling.rules.len();
        self.selectors.push(Selector {
            rule: index,
            conditions: conditions.into(),
            key: key.iter().map(|attribute| self.attributes.number(attribute)).collect(),
            colocate: colocate.map(|attribute| self.attributes.number(&attribute)),
            hashed: hashed.iter().map(|attribute| self.attributes.number(attribute)).collect(),
            on_missing_key: options.on_missing_key.unwrap_or_default(),
        });
        self.overrides[number as usize].place = Some(index);
        let share = options.rollout.filter(|share| !share.is_whole());
        let mut limits = chosen;
        let policies = limits.name_policies(&name);
        compiling.rules.push(Rule {
            index,
            domain: Arc::clone(&self.domain),
            mode: if options.shadow == Some(true) { Mode::Shadow } else { Mode::Enforce },
            on_store_failure: options.on_store_failure.unwrap_or_default(),
            coordination: options.coordination.unwrap_or_default(),
            priority: options.priority,
            key: key.iter().map(|attribute| attribute.to_string()).collect(),
            limits,
            label: None,
            replacing: Replacing { called: Some(number), replaces: Box::default() },
            about: About {
                description: description.map(|text| text.to_string()),
                owner: options.owner.as_ref().map(|owner| owner.to_string()),
            },
            enabled: options.enabled.unwrap_or(true),
            when: when.map(Box::new),
            rollout: share.map(|share| Split::new(share, [&self.domain, &name, "rollout"])),
            penalty: options.penalty.and_then(|penalty| self.penalty(&name, penalty)),
            overdraft: Hits::new(options.overdraft.unwrap_or(0)),
            over: options.over.unwrap_or_default(),
            autopilot,
            lends,
            visible: options.visible.unwrap_or(true),
            policies,
            name: name.to_string(),
        });
    }

    /// The limit that refuses a caller for `span` once it was refused.
    fn penalty(&self, rule: &str, span: tidegate_core::Micros) -> Option<Box<RuleLimit>> {
        // An invalid span is already reported at its place.
        let log = SlidingLog::new(1, span, tidegate_core::Micros::ZERO, RefusedHits::Forget).ok()?;
        let limit = named_limit(&self.domain, rule, Limit::SlidingLog(log), PENALTY);
        Some(Box::new(RuleLimit { policy: Policy::PENALTY, ..limit }))
    }

    fn name(&mut self, fields: &Fields<'_>, number: u32, report: &mut Report<'_>) -> Option<Rc<str>> {
        let node = fields.require(
            "name",
            "a rule",
            "counters, metrics and answers go by it: `- name: per-user`",
            report,
        )?;
        let name = fields::given_name(node, "the rule's name", report)?;
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

    /// The attributes of the key, without duplicates.
    fn key(fields: &Fields<'_>, report: &mut Report<'_>) -> Vec<Rc<str>> {
        let listed =
            names(fields, "key", "list attributes, such as [user]; [] is one counter for everybody", report);
        if listed.len() > MOST_IN_KEY {
            let message = format!("the key names {} attributes, more than {MOST_IN_KEY}", listed.len());
            let hint = "name those that tell callers apart; or send them joined, as one attribute";
            report.error(fields.key_span("key"), message, hint);
            return Vec::new();
        }
        let mut seen = HashSet::new();
        for (name, span) in &listed {
            if !seen.insert(name) {
                report.error(*span, format!("the key names `{name}` twice"), "remove one");
            }
        }
        listed.iter().map(|(name, _)| name.clone()).collect()
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
            // Both are parsed anyway, for the mistakes in them.
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

/// The attributes of the key that are hashed: those that `hash` lists, otherwise those whose names say that they are secret.
fn hashed(
    fields: &Fields<'_>,
    key: &[Rc<str>],
    colocate: Option<&Rc<str>>,
    report: &mut Report<'_>,
) -> Vec<Rc<str>> {
    let in_key = || key.iter().chain(colocate);
    if fields.get("hash").is_none() {
        return in_key().filter(|name| is_secret_name(name)).cloned().collect();
    }
    let hint = "list attributes of the key, such as [api_key]; [] hashes none";
    let listed = names(fields, "hash", hint, report);
    for (name, span) in &listed {
        if !in_key().any(|attribute| attribute == name) {
            let message = format!("`hash` lists `{name}`, which is not in the key");
            report.warning(*span, message, "only keys leave the process: leave it out, or add it to `key`");
        }
    }
    listed.into_iter().map(|(name, _)| name).collect()
}

/// Pointing at a whole rule would underline too much.
fn rule_name_span(fields: &Fields<'_>) -> Span {
    fields.get("name").map_or(fields.span, |node| node.span)
}

/// A split is by key: without one it would be everybody or nobody.
fn splits_need_a_key(fields: &Fields<'_>, key: &[Rc<str>], options: &Options, report: &mut Report<'_>) {
    if !key.is_empty() {
        return;
    }
    let rollout = options.rollout.is_some_and(|share| !share.is_whole()).then_some("rollout");
    for field in rollout.into_iter().chain(fields.get("experiment").map(|_| "experiment")) {
        let message = format!("`{field}` splits callers by their key, and this rule has none");
        report.error(fields.key_span(field), message, "add a key, such as `key: [user]`");
    }
}

/// A list of names; empty if absent.
fn names(fields: &Fields<'_>, field: &str, hint: &str, report: &mut Report<'_>) -> Vec<(Rc<str>, Span)> {
    let items =
        fields.get(field).and_then(|node| fields::list(node, field, hint, report)).unwrap_or_default();
    let read = |item: &Node| {
        if report.is_full() {
            return None;
        }
        if let (Value::Map(entries), "overrides") = (&item.value, field)
            && entries.iter().any(|(key, _)| &*key.text == "when")
        {
            let message = "`overrides` lists names of rules, not limits of single keys";
            report.error(item.span, message, "did you mean `key_overrides`?");
            return None;
        }
        Some((fields::name(item, &format!("a name in `{field}`"), report)?, item.span))
    };
    items.iter().filter_map(read).collect()
}
