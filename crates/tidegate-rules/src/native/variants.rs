//! Parses limits that differ by caller: tiers, and limits of single keys.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use tidegate_core::Timestamp;

use crate::choice::{Experiment, KeyChoice, KeyOverrides, LimitSet, TierSets, UsualLimits, When};
use crate::diagnostics::Report;
use crate::fields::{self, Fields, did_you_mean};
use crate::limits::LimitReader;
use crate::matching::Attributes;
use crate::split::Split;
use crate::yaml::{Node, Value};

pub(crate) const KEY_OVERRIDE_FIELDS: [&str; 4] = ["when", "limits", "keep_others", "until"];

pub(crate) const EXPERIMENT_FIELDS: [&str; 2] = ["split", "limits"];

/// The most tiers of a rule, and the most attributes in a `when`.
const MOST_TIERS: usize = 1_000;
const MOST_IN_WHEN: usize = 32;
/// The most sets of limits that the key overrides of a rule may have: each has one for every tier, since callers keep the
/// tier's other limits.
const MOST_OVERRIDDEN_SETS: usize = 1_000_000;

const WHEN_HINT: &str = "name attributes and their exact values: when: { api_key: acme }";

impl LimitReader<'_> {
    /// `tiers: { on: plan, default: free, free: […], pro: […] }`.
    pub(super) fn tiers(
        &mut self,
        node: &Node,
        attributes: &mut Attributes,
        report: &mut Report<'_>,
    ) -> Option<TierSets> {
        let fields = Fields::read_any(node, "tiers", report)?;
        // YAML 1.1 tools parse `on` as a boolean, and write it as `true`.
        let on_field = if fields.get("on").is_some() { "on" } else { "true" };
        let on = fields
            .get(on_field)
            .or_else(|| {
                fields.require("on", "tiers", "the attribute that names a caller's tier: `on: plan`", report)
            })
            .and_then(|node| fields::name(node, "the attribute of `on`", report));
        let mut sets: Vec<LimitSet> = Vec::new();
        let mut names: HashMap<Box<[u8]>, usize, RandomState> = HashMap::default();
        let mut all_read = true;
        let tiers = || fields.entries.iter().filter(|(key, _)| ![on_field, "default"].contains(&&*key.text));
        let count = tiers().count();
        if count > MOST_TIERS {
            let hint = "give single callers other limits with `key_overrides`";
            report.error(node.span, format!("{count} tiers, more than {MOST_TIERS}"), hint);
            return None;
        }
        for (key, limits) in tiers() {
            if report.is_full() {
                return None;
            }
            match self.limit_set(limits, &format!("the tier `{}`", key.text), report) {
                Some(set) => {
                    names.insert(key.text.as_bytes().into(), sets.len());
                    sets.push(set);
                }
                None => all_read = false,
            }
        }
        let default_hint = "the tier of callers without one, or with an unknown one: `default: free`";
        let node = fields.require("default", "tiers", default_hint, report)?;
        if let Value::List(_) = node.value {
            let hint = "name a tier: give these limits to `free:`, and write `default: free`";
            report.error(node.span, "`default` names a tier and cannot be one", hint);
            return None;
        }
        let default = fields::text(node, "default", report)?;
        if !tiers().any(|(key, _)| key.text == default) {
            let hint = did_you_mean(&default, tiers().map(|(key, _)| &*key.text)).unwrap_or_else(|| {
                let known: Vec<&str> = tiers().map(|(key, _)| &*key.text).collect();
                format!("tiers here: {}", if known.is_empty() { "none".into() } else { known.join(", ") })
            });
            report.error(node.span, format!("there is no tier `{default}`"), hint);
            return None;
        }
        if !all_read {
            return None;
        }
        let default = names[default.as_bytes()];
        Some(TierSets { on: attributes.number(&on?), sets: sets.into(), names, default })
    }

    /// `key_overrides: [{ when: { api_key: acme }, limits: […], until: … }]`.
    pub(super) fn key_overrides(
        &mut self,
        node: &Node,
        usual: Option<&UsualLimits>,
        attributes: &mut Attributes,
        report: &mut Report<'_>,
    ) -> Option<KeyOverrides> {
        let items = fields::list(node, "key_overrides", "list them: - { when: …, limits: … }", report)?;
        let before = report.errors();
        let sets = items.len().saturating_mul(usual.map_or(1, UsualLimits::len));
        if sets > MOST_OVERRIDDEN_SETS {
            let message = format!(
                "these overrides, one per tier, are {sets} sets of limits, more than {MOST_OVERRIDDEN_SETS}"
            );
            report.error(node.span, message, "use fewer tiers, or a rule of its own for these callers");
            return None;
        }
        let mut overrides = KeyOverrides::default();
        for item in items {
            if report.is_full() {
                return None;
            }
            if let Some(one) = self.key_override(item, usual, attributes, report) {
                overrides.push(one);
            }
        }
        (report.errors() == before).then_some(overrides)
    }

    fn key_override(
        &mut self,
        node: &Node,
        usual: Option<&UsualLimits>,
        attributes: &mut Attributes,
        report: &mut Report<'_>,
    ) -> Option<KeyChoice> {
        let before = report.errors();
        let what = "an override";
        let fields = Fields::read(node, what, &KEY_OVERRIDE_FIELDS, report)?;
        let when =
            fields.require("when", what, WHEN_HINT, report).and_then(|node| when(node, attributes, report));
        let limits = fields
            .require("limits", what, "what these callers get: [5000/minute], or `unlimited`", report)
            .and_then(|node| self.limit_set(node, "`limits`", report));
        let until = match fields.get("until") {
            Some(node) => Some(self.moment(node, report)?),
            None => None,
        };
        let keep_others =
            fields.get("keep_others").and_then(|node| fields::flag(node, "keep_others", report));
        let (when, limits) = (when?, limits?);
        // If the usual limits have a mistake, which is reported, there is nothing to keep.
        let one = match usual.filter(|_| keep_others != Some(false)) {
            Some(usual) => KeyChoice::keeping(when, until, &limits, usual),
            None => KeyChoice::alone(when, until, limits),
        };
        (report.errors() == before).then_some(one)
    }

    /// `experiment: { split: 20%, limits: [200/minute] }`.
    pub(super) fn experiment(
        &mut self,
        node: &Node,
        rule: &Fields<'_>,
        report: &mut Report<'_>,
    ) -> Option<Experiment> {
        if rule.get("tiers").is_some() {
            let hint = "put the tier on trial into a rule of its own, with `limits`";
            report.error(rule.key_span("experiment"), "an experiment is beside `limits`, not `tiers`", hint);
        }
        let what = "an experiment";
        let fields = Fields::read(node, what, &EXPERIMENT_FIELDS, report)?;
        let share = fields
            .require("split", what, "the share of keys that get its limits: `split: 20%`", report)
            .and_then(|node| fields::share(node, "split", report));
        let limits = fields
            .require("limits", what, "what these callers get: [200/minute], or `unlimited`", report)
            .and_then(|node| self.limit_set(node, "`limits`", report));
        let split = Split::new(share?, [self.domain, self.rule, "experiment"]);
        Some(Experiment { split, limits: limits? })
    }

    fn moment(&self, node: &Node, report: &mut Report<'_>) -> Option<Timestamp> {
        let moment = moment(node, report)?;
        if self.now.is_some_and(|now| moment <= now) {
            report.warning(node.span, "this override has ended", "remove it, or give it a later `until`");
        }
        Some(moment)
    }
}

/// The attributes of a single key and their values; at least one.
fn when(node: &Node, attributes: &mut Attributes, report: &mut Report<'_>) -> Option<When> {
    let fields = Fields::read_any(node, "when", report)?;
    if fields.entries.is_empty() {
        report.error(node.span, "`when` is empty, so this would be for everybody", WHEN_HINT);
        return None;
    }
    if fields.entries.len() > MOST_IN_WHEN {
        let message = format!("`when` names {} attributes, more than {MOST_IN_WHEN}", fields.entries.len());
        report.error(node.span, message, WHEN_HINT);
        return None;
    }
    let mut values = Vec::new();
    for (key, value) in fields.entries {
        let span = value.span;
        let value = fields::text(value, &format!("the value of `{}`", key.text), report)?;
        if value.contains('*') {
            let hint =
                "values are compared exactly here: name each key, or make a rule of its own with `match`";
            report.warning(span, "`*` means itself in `when`", hint);
        }
        values.push((attributes.number(&key.text), value.as_bytes().into()));
    }
    Some(values.into())
}

fn moment(node: &Node, report: &mut Report<'_>) -> Option<Timestamp> {
    let text = fields::text(node, "until", report)?;
    let hint = "write date, time and zone, such as 2027-01-01T00:00:00Z";
    let Ok(moment) = text.parse::<jiff::Timestamp>() else {
        report.error(node.span, format!("until: {} is not a moment", node.describe()), hint);
        return None;
    };
    // An expiry before 1970 has passed.
    Some(Timestamp::from_micros(u64::try_from(moment.as_microsecond()).unwrap_or(0)))
}
