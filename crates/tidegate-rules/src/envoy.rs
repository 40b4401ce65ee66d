//! Compiles envoyproxy/ratelimit's format: a domain, and descriptors nested as deep as requests describe themselves.
//!
//! What that service refuses is refused, what it accepts is accepted. Where it accepts what cannot have been meant (a
//! field in the wrong place, a limit without a number) it is accepted with a warning. Its settings for metrics are read
//! and have no effect: values of callers never become labels here.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use tidegate_core::{FixedWindow, Limit, Micros};

use crate::calendar::Calendars;
use crate::choice::{LimitChoice, LimitSet};
use crate::diagnostics::{Report, Span};
use crate::fields::{self, Fields, did_you_mean};
use crate::limits::LimitReader;
use crate::matching::envoy::{BranchBuilder, Counters, EnvoyDomain, LevelBuilder, Step};
use crate::quantity::parse_count;
use crate::rule::{Coordination, Mode, OnStoreFailure, Replacing, Rule};
use crate::ruleset::{Compiling, Domain};
use crate::yaml::{Node, Scalar, Value};

const ROOT_FIELDS: &[&str] = &["domain", "descriptors"];
const DESCRIPTOR_FIELDS: &[&str] = &[
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
const LIMIT_FIELDS: &[&str] = &["unit", "requests_per_unit", "unlimited", "name", "replaces"];
const REPLACES_FIELDS: &[&str] = &["name"];

/// Spans of its units: there a month has thirty days and a year 365.
const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3_600),
    ("day", 86_400),
    ("week", 7 * 86_400),
    ("month", 30 * 86_400),
    ("year", 365 * 86_400),
];

/// Adds the file's domain to the set, or reports why not.
pub(crate) fn compile(document: &Node, compiling: &mut Compiling, report: &mut Report<'_>) {
    let before = report.errors();
    let Some(fields) = read(document, "the file", ROOT_FIELDS, report) else { return };
    let hint = "begin with `domain: api`, or another name";
    let name = match text_of(&fields, "domain", report) {
        Some(name) if !name.is_empty() => name,
        _ => {
            report.error(fields.key_span("domain"), "the domain is empty", hint);
            "unnamed".into()
        }
    };
    let span = fields.get("domain").map_or(fields.span, |node| node.span);
    compiling.claim(&name, span, report);
    let mut file = File {
        domain: (&*name).into(),
        compiling,
        labels: HashMap::new(),
        rule_names: HashMap::new(),
        paths: Vec::new(),
    };
    let level = file.level(&fields, &mut Vec::new(), report);
    let paths = std::mem::take(&mut file.paths);
    if report.errors() == before {
        compiling.add_domain(&name, Domain::Envoy(EnvoyDomain::new(level, paths)));
    }
}

struct File<'c> {
    domain: Arc<str>,
    compiling: &'c mut Compiling,
    /// Names of limits, as numbers.
    labels: HashMap<Rc<str>, u32>,
    /// How often each path's text occurred: `a.b` may be one key, or two levels.
    rule_names: HashMap<String, u32>,
    /// For each limit, how a descriptor gets there.
    paths: Vec<(usize, Box<[Step]>)>,
}

impl File<'_> {
    /// The descriptors listed in `fields`, and all below them.
    fn level(&mut self, fields: &Fields<'_>, path: &mut Vec<Step>, report: &mut Report<'_>) -> LevelBuilder {
        let mut level = LevelBuilder::new();
        let mut seen: HashMap<String, Span> = HashMap::new();
        for node in items(fields, "descriptors", report) {
            if report.is_full() {
                break;
            }
            let Some(fields) = read(node, "a descriptor", DESCRIPTOR_FIELDS, report) else { continue };
            let Some(step) = step(&fields, report) else { continue };
            if let Some(first) = seen.insert(step.joined(), fields.key_span("key")) {
                let message = format!("two descriptors here are `{}`", step.joined());
                report.error(fields.key_span("key"), message, "remove one").related(first, "the first one");
                continue;
            }
            let share = flag(&fields, "share_threshold", report);
            if share && !step.joined().contains('*') {
                let hint = "add a `*` to the value, or remove share_threshold";
                let message = "share_threshold is for values with a wildcard";
                report.error(fields.key_span("share_threshold"), message, hint);
            }
            check_metadata(&fields, report);
            path.push(step.clone());
            let rule = self.rate_limit(&fields, path, report);
            let below = self.level(&fields, path, report);
            path.pop();
            let counters = if share { Counters::Shared } else { Counters::OnePerValue };
            level.push(BranchBuilder { step, rule, counters, below });
        }
        level
    }

    fn rate_limit(&mut self, fields: &Fields<'_>, path: &[Step], report: &mut Report<'_>) -> Option<usize> {
        // Read whether or not there is a limit, for the mistakes in them.
        let shadow = flag(fields, "shadow_mode", report);
        let quota = flag(fields, "quota_mode", report);
        flag(fields, "detailed_metric", report);
        flag(fields, "value_to_metric", report);
        let node = fields.get("rate_limit").filter(|node| !matches!(node.value, Value::Null))?;
        let limit = read(node, "a rate limit", LIMIT_FIELDS, report)?;
        let unlimited = flag(&limit, "unlimited", report);
        let label = text_of(&limit, "name", report).filter(|name| !name.is_empty());
        let replaces = self.replaces(&limit, label.as_deref(), report);
        let name = self.rule_name(path);
        let limits = if unlimited { unlimited_set(&limit, report)? } else { self.limit_set(&limit, report)? };
        let called = label.clone().map(|label| self.label(label));
        let index = self.compiling.rules.len();
        self.paths.push((index, path.into()));
        self.compiling.rules.push(Rule {
            index,
            name,
            domain: Arc::clone(&self.domain),
            mode: match (shadow, quota) {
                (true, _) => Mode::Shadow,
                (false, true) => Mode::Quota,
                (false, false) => Mode::Enforce,
            },
            on_store_failure: OnStoreFailure::default(),
            coordination: Coordination::default(),
            priority: None,
            key: Box::default(),
            limits: LimitChoice::same(limits),
            label: label.as_deref().map(str::to_owned),
            replacing: Replacing { called, replaces },
        });
        Some(index)
    }

    fn limit_set(&mut self, fields: &Fields<'_>, report: &mut Report<'_>) -> Option<LimitSet> {
        let count = requests_per_unit(fields, report);
        let window = unit(fields, report)?;
        // There a counter goes by domain and descriptor alone, so that it survives a file that is put in another order.
        let mut calendars = Calendars::default();
        let reader = LimitReader { domain: &self.domain, rule: "", calendars: &mut calendars };
        let limit = FixedWindow::new(count?, window).map_err(|error| {
            report.error(fields.span, error.problem, error.hint);
        });
        Some(LimitSet::Enforce([reader.rule_limit(Limit::FixedWindow(limit.ok()?), None)].into()))
    }

    fn replaces(&mut self, fields: &Fields<'_>, own: Option<&str>, report: &mut Report<'_>) -> Box<[u32]> {
        let mut replaced = Vec::new();
        for node in items(fields, "replaces", report) {
            let Some(fields) = read(node, "an entry of replaces", REPLACES_FIELDS, report) else { continue };
            match text_of(&fields, "name", report) {
                Some(name) if Some(&*name) == own => {
                    let hint = "name another limit, or remove this entry";
                    report.error(fields.span, format!("the limit `{name}` replaces itself"), hint);
                }
                Some(name) if !name.is_empty() => replaced.push(self.label(name)),
                _ => {
                    let hint = "name the limit that is replaced: `- name: other`";
                    report.error(fields.span, "this entry of replaces names nothing", hint);
                }
            }
        }
        replaced.into()
    }

    fn label(&mut self, name: Rc<str>) -> u32 {
        let next = u32::try_from(self.labels.len()).expect("fewer names than bytes in a file");
        *self.labels.entry(name).or_insert(next)
    }

    /// The path as that service's metrics write it; where two limits would get the same, numbered.
    fn rule_name(&mut self, path: &[Step]) -> String {
        let steps: Vec<String> = path.iter().map(Step::joined).collect();
        let name = steps.join(".");
        let times = self.rule_names.entry(name.clone()).or_default();
        *times += 1;
        if *times == 1 { name } else { format!("{name}#{times}") }
    }
}

/// A mapping's fields. A field that is known elsewhere in the format is accepted, as it is there, but has no effect.
fn read<'n>(node: &'n Node, what: &str, known: &[&str], report: &mut Report<'_>) -> Option<Fields<'n>> {
    let fields = Fields::read_any(node, what, report)?;
    let everywhere = || [ROOT_FIELDS, DESCRIPTOR_FIELDS, LIMIT_FIELDS].concat();
    for (key, _) in fields.entries.iter().filter(|(key, _)| !known.contains(&&*key.text)) {
        let hint = did_you_mean(&key.text, known.iter().copied())
            .unwrap_or_else(|| format!("its fields are {}", known.join(", ")));
        if everywhere().contains(&&*key.text) {
            report.warning(key.span, format!("`{}` has no effect in {what}", key.text), hint);
        } else {
            report.error(key.span, format!("unknown field `{}` in {what}", key.text), hint);
        }
    }
    Some(fields)
}

fn step(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Step> {
    let key = text_of(fields, "key", report).filter(|key| !key.is_empty());
    let Some(key) = key else {
        report.error(fields.span, "a descriptor has an empty key", "begin it with `key:`");
        return None;
    };
    let value = text_of(fields, "value", report).filter(|value| !value.is_empty());
    Some(Step { key: (&*key).into(), value: value.map(|value| (&*value).into()) })
}

fn unlimited_set(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<LimitSet> {
    let unit = text_of(fields, "unit", report).unwrap_or_default();
    if span_of(&unit).is_some() {
        report.error(
            fields.key_span("unit"),
            "an unlimited limit has no unit",
            "remove `unit` or `unlimited`",
        );
        return None;
    }
    Some(LimitSet::Unlimited)
}

fn requests_per_unit(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<u64> {
    let what = "requests_per_unit";
    let Some(node) = fields.get(what).filter(|node| !matches!(node.value, Value::Null)) else {
        let message = "requests_per_unit is missing, which counts as zero: everything is refused";
        report.warning(fields.span, message, "write `requests_per_unit: 0` if that is meant");
        return Some(0);
    };
    let Value::Scalar(Scalar { text, quoted: false }) = &node.value else {
        let message = format!("{what} must be a whole number, not {}", node.describe());
        report.error(node.span, message, "write digits alone, such as 100");
        return None;
    };
    let count = fields::quantity(parse_count(text), node, what, report)?;
    if u32::try_from(count).is_err() {
        let hint = format!("use at most {}", u32::MAX);
        report.error(node.span, format!("{what}: {count} is more than the format can hold"), hint);
        return None;
    }
    Some(count)
}

fn unit(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Micros> {
    let hint = || UNITS.map(|(name, _)| name).join(", ");
    let Some(node) = fields.get("unit") else {
        report.error(fields.span, "`unit` is missing in a rate limit", format!("it is one of {}", hint()));
        return None;
    };
    let text = text_of(fields, "unit", report)?;
    let span = span_of(&text);
    if span.is_none() {
        let hint = did_you_mean(&text, UNITS.map(|(name, _)| name))
            .unwrap_or_else(|| format!("it is one of {}", hint()));
        report.error(node.span, format!("unknown unit {}", node.describe()), hint);
    }
    span
}

fn span_of(unit: &str) -> Option<Micros> {
    let known = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    known.map(|(_, seconds)| Micros::from_secs(*seconds))
}

fn check_metadata(fields: &Fields<'_>, report: &mut Report<'_>) {
    if let Some(node) = fields.get("metadata")
        && !matches!(node.value, Value::Null)
    {
        Fields::read_any(node, "metadata", report);
    }
}

/// A scalar's text; nothing where it is absent or null, which mean the same there.
fn text_of(fields: &Fields<'_>, name: &str, report: &mut Report<'_>) -> Option<Rc<str>> {
    let node = fields.get(name).filter(|node| !matches!(node.value, Value::Null))?;
    fields::text(node, name, report)
}

/// A flag in any of the words that YAML 1.1 knows; false where it is absent.
fn flag(fields: &Fields<'_>, name: &str, report: &mut Report<'_>) -> bool {
    let Some(node) = fields.get(name).filter(|node| !matches!(node.value, Value::Null)) else { return false };
    if let Value::Scalar(Scalar { text, quoted: false }) = &node.value {
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "y" => return true,
            "false" | "no" | "off" | "n" => return false,
            _ => {}
        }
    }
    let message = format!("{name} must be true or false, not {}", node.describe());
    report.error(node.span, message, "write true or false");
    false
}

/// A list's items; none where it is absent or null.
fn items<'n>(fields: &Fields<'n>, name: &str, report: &mut Report<'_>) -> &'n [Node] {
    match fields.get(name) {
        Some(Node { value: Value::Null, .. }) | None => &[],
        Some(node) => fields::list(node, name, "begin each entry with `-`", report).unwrap_or_default(),
    }
}
