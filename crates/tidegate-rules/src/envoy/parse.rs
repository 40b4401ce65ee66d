//! Parses envoyproxy/ratelimit's format and reports mistakes; compiles nothing.

use std::collections::HashMap;
use std::rc::Rc;

use tidegate_core::Micros;

use crate::diagnostics::{Report, Span};
use crate::fields::{self, Fields, did_you_mean};
use crate::matching::envoy::Step;
use crate::quantity::parse_count;
use crate::yaml::{Node, Scalar, Value};

/// A parsed file.
pub(crate) struct EnvoyFile {
    pub(crate) domain: Rc<str>,
    pub(crate) span: Span,
    pub(crate) descriptors: Vec<EnvoyDescriptor>,
}

/// A descriptor, and those below it.
pub(crate) struct EnvoyDescriptor {
    pub(crate) step: Step,
    pub(crate) span: Span,
    pub(crate) limit: Option<EnvoyLimit>,
    pub(crate) shadow: bool,
    pub(crate) quota: bool,
    /// Whether the values of a wildcard are counted together.
    pub(crate) shared: bool,
    /// Fields about metrics or answers, not about decisions.
    pub(crate) unused: Vec<&'static str>,
    pub(crate) below: Vec<EnvoyDescriptor>,
}

/// A limit.
pub(crate) struct EnvoyLimit {
    pub(crate) amount: Amount,
    pub(crate) name: Option<Rc<str>>,
    pub(crate) replaces: Vec<Rc<str>>,
}

/// How much a limit admits.
#[derive(Clone, Copy)]
pub(crate) enum Amount {
    Unlimited,
    Requests { count: u32, unit: Micros },
}

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

/// The lengths of its units: there a month has thirty days and a year 365.
const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3_600),
    ("day", 86_400),
    ("week", 7 * 86_400),
    ("month", 30 * 86_400),
    ("year", 365 * 86_400),
];

/// The parsed document; `None` if its shape is too wrong to continue.
pub(crate) fn parse(document: &Node, report: &mut Report<'_>) -> Option<EnvoyFile> {
    let fields = read(document, "the file", ROOT_FIELDS, report)?;
    let domain = text_of(&fields, "domain", report).unwrap_or_default();
    if domain.is_empty() {
        let hint = "begin with `domain: api`, or another name";
        report.error(fields.key_span("domain"), "the domain is empty", hint);
    }
    let span = fields.get("domain").map_or(fields.span, |node| node.span);
    Some(EnvoyFile { domain, span, descriptors: level(&fields, report) })
}

fn level(fields: &Fields<'_>, report: &mut Report<'_>) -> Vec<EnvoyDescriptor> {
    let mut level: Vec<EnvoyDescriptor> = Vec::new();
    let mut seen: HashMap<String, Span> = HashMap::new();
    for node in items(fields, "descriptors", report) {
        if report.is_full() {
            break;
        }
        let Some(descriptor) = descriptor(node, report) else { continue };
        let joined = descriptor.step.joined();
        if let Some(first) = seen.get(&joined) {
            let message = format!("two descriptors here are `{joined}`");
            report.error(descriptor.span, message, "remove one").related(*first, "the first one");
        }
        seen.insert(joined, descriptor.span);
        level.push(descriptor);
    }
    level
}

fn descriptor(node: &Node, report: &mut Report<'_>) -> Option<EnvoyDescriptor> {
    let fields = read(node, "a descriptor", DESCRIPTOR_FIELDS, report)?;
    let step = step(&fields, report)?;
    let shared = flag(&fields, "share_threshold", report);
    if shared && !step.joined().contains('*') {
        let hint = "add a `*` to the value, or remove share_threshold";
        report.error(
            fields.key_span("share_threshold"),
            "share_threshold is for values with a wildcard",
            hint,
        );
    }
    check_metadata(&fields, report);
    for name in ["detailed_metric", "value_to_metric"] {
        flag(&fields, name, report);
    }
    let unused = ["detailed_metric", "value_to_metric", "metadata"];
    Some(EnvoyDescriptor {
        step,
        span: fields.key_span("key"),
        limit: rate_limit(&fields, report),
        shadow: flag(&fields, "shadow_mode", report),
        quota: flag(&fields, "quota_mode", report),
        shared,
        unused: unused.into_iter().filter(|name| fields.get(name).is_some()).collect(),
        below: level(&fields, report),
    })
}

fn rate_limit(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<EnvoyLimit> {
    let node = fields.get("rate_limit").filter(|node| !matches!(node.value, Value::Null))?;
    let fields = read(node, "a rate limit", LIMIT_FIELDS, report)?;
    let name = text_of(&fields, "name", report).filter(|name| !name.is_empty());
    let replaces = replaces(&fields, name.as_deref(), report);
    let amount = if flag(&fields, "unlimited", report) {
        check_unlimited(&fields, report);
        Amount::Unlimited
    } else {
        let count = requests_per_unit(&fields, report);
        let unit = unit(&fields, report);
        Amount::Requests { count: count?, unit: unit? }
    };
    Some(EnvoyLimit { amount, name, replaces })
}

fn replaces(fields: &Fields<'_>, own: Option<&str>, report: &mut Report<'_>) -> Vec<Rc<str>> {
    let mut replaced = Vec::new();
    for node in items(fields, "replaces", report) {
        let Some(fields) = read(node, "an entry of replaces", REPLACES_FIELDS, report) else { continue };
        match text_of(&fields, "name", report) {
            Some(name) if Some(&*name) == own => {
                let hint = "name another limit, or remove this entry";
                report.error(fields.span, format!("the limit `{name}` replaces itself"), hint);
            }
            Some(name) if !name.is_empty() => replaced.push(name),
            _ => {
                let hint = "name the limit that is replaced: `- name: other`";
                report.error(fields.span, "an entry of `replaces` is empty", hint);
            }
        }
    }
    replaced
}

/// A mapping's fields. A field that is known elsewhere in the format is accepted, as it is there, but has no effect.
fn read<'n>(node: &'n Node, what: &str, known: &[&str], report: &mut Report<'_>) -> Option<Fields<'n>> {
    let fields = Fields::read_any(node, what, report)?;
    let everywhere = || [ROOT_FIELDS, DESCRIPTOR_FIELDS, LIMIT_FIELDS].concat();
    for (key, _) in fields.entries.iter().filter(|(key, _)| !known.contains(&&*key.text)) {
        if report.is_full() {
            break;
        }
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

fn check_unlimited(fields: &Fields<'_>, report: &mut Report<'_>) {
    let unit = text_of(fields, "unit", report).unwrap_or_default();
    if span_of(&unit).is_some() {
        let hint = "remove `unit` or `unlimited`";
        report.error(fields.key_span("unit"), "an unlimited limit has no unit", hint);
    }
}

fn requests_per_unit(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<u32> {
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
    let fitting = u32::try_from(count).ok();
    if fitting.is_none() {
        let hint = format!("use at most {}", u32::MAX);
        report.error(node.span, format!("{what}: {count} is more than the format can hold"), hint);
    }
    fitting
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

/// A scalar's text; `None` if it is absent or null, which mean the same there.
fn text_of(fields: &Fields<'_>, name: &str, report: &mut Report<'_>) -> Option<Rc<str>> {
    let node = fields.get(name).filter(|node| !matches!(node.value, Value::Null))?;
    fields::text(node, name, report)
}

/// A flag in any of YAML 1.1's words; false if absent.
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

/// A list's items; none if it is absent or null.
fn items<'n>(fields: &Fields<'n>, name: &str, report: &mut Report<'_>) -> &'n [Node] {
    match fields.get(name) {
        Some(Node { value: Value::Null, .. }) | None => &[],
        Some(node) => fields::list(node, name, "begin each entry with `-`", report).unwrap_or_default(),
    }
}
