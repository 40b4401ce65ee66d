//! Parses `match`: patterns on attributes.

use std::rc::Rc;

use super::{DomainReader, regex};
use crate::diagnostics::Report;
use crate::fields::{self, Fields};
use crate::glob::Pattern;
use crate::matching::condition::Condition;
use crate::yaml::{Key, Node, Value};

pub(crate) const CONDITION_FIELDS: [&str; 2] = ["is", "not"];

/// The most attributes of a `match`: rules that override each other are compared condition by condition.
const MOST_CONDITIONS: usize = 64;

const HINT: &str = "write a pattern, a list of patterns, or { is: …, not: … }";

impl DomainReader {
    /// All conditions of the rule.
    pub(super) fn conditions(&mut self, node: &Node, report: &mut Report<'_>) -> Option<Vec<Condition>> {
        let fields = Fields::read_any(node, "match", report)?;
        if fields.entries.len() > MOST_CONDITIONS {
            let message =
                format!("match names {} attributes, more than {MOST_CONDITIONS}", fields.entries.len());
            report.error(node.span, message, "name those that tell these requests apart");
            return None;
        }
        let mut conditions = Vec::new();
        for (key, value) in fields.entries {
            if key.text.is_empty() {
                report.error(key.span, "an attribute's name is empty", "name it, such as `path`");
            }
            conditions.extend(self.condition(value, &key.text, report));
        }
        Some(conditions)
    }

    fn condition(&mut self, node: &Node, attribute: &str, report: &mut Report<'_>) -> Option<Condition> {
        let (is, not) = match &node.value {
            Value::Map(entries) => {
                if let Some((key, glob)) = entries.iter().find_map(as_glob) {
                    let message = format!("a condition has no `{}`: its patterns are globs", key.text);
                    report.error(key.span, message, format!("write `{attribute}: {glob}`"));
                    return None;
                }
                let fields = Fields::read(node, "a condition", &CONDITION_FIELDS, report)?;
                if fields.entries.is_empty() {
                    report.error(node.span, format!("the condition on `{attribute}` is empty"), HINT);
                }
                (fields.get("is"), fields.get("not"))
            }
            _ => (Some(node), None),
        };
        let is = is.map(|node| patterns(node, attribute, report));
        let not = not.map(|node| patterns(node, attribute, report));
        let (is, not) =
            (is.map_or(Some(None), |is| is.map(Some))?, not.map_or(Some(None), |not| not.map(Some))?);
        let written = match (&is, &not) {
            (Some((_, is)), None) => is.clone(),
            (None, Some((_, not))) if not == "`*`" => "absent".into(),
            (None, Some((_, not))) => format!("anything but {not}"),
            (Some((_, is)), Some((_, not))) => format!("{is}, but not {not}"),
            // Reported above, as empty or for its unknown fields.
            (None, None) => return None,
        };
        Some(Condition {
            attribute: self.attributes.number(attribute),
            is: is.map(|(patterns, _)| patterns),
            not: not.map(|(patterns, _)| patterns).unwrap_or_default(),
            written: written.into(),
        })
    }
}

fn patterns(node: &Node, attribute: &str, report: &mut Report<'_>) -> Option<(Box<[Pattern]>, String)> {
    let items = match &node.value {
        Value::List(items) => items,
        _ => std::slice::from_ref(node),
    };
    if items.is_empty() {
        report.error(node.span, format!("the list of patterns for `{attribute}` is empty"), HINT);
        return None;
    }
    items.iter().for_each(|item| super::warnings::warn_of_pattern(item, attribute, report));
    let texts: Vec<Rc<str>> = items.iter().filter_map(|item| pattern(item, attribute, report)).collect();
    let written: Vec<String> = texts.iter().map(|text| format!("`{text}`")).collect();
    let patterns = texts.iter().map(|text| Pattern::parse(text)).collect();
    (texts.len() == items.len()).then(|| (patterns, written.join(" or ")))
}

/// The glob that is equivalent to another limiter's field.
fn as_glob((key, value): &(Key, Node)) -> Option<(&Key, String)> {
    let text = match &value.value {
        Value::Scalar(scalar) => &*scalar.text,
        _ => "…",
    };
    let glob = match &*key.text {
        "prefix" | "starts_with" => format!("\"{text}*\""),
        "suffix" | "ends_with" => format!("\"*{text}\""),
        "contains" => format!("\"*{text}*\""),
        "exact" | "equals" => format!("\"{text}\""),
        "regex" | "regexp" => format!("\"{}\"", regex::to_glob(text)),
        _ => return None,
    };
    Some((key, glob))
}

fn pattern(node: &Node, attribute: &str, report: &mut Report<'_>) -> Option<Rc<str>> {
    match &node.value {
        Value::Map(_) | Value::List(_) => {
            let message = format!("a pattern for `{attribute}` cannot be {}", node.describe());
            report.error(node.span, message, HINT);
            None
        }
        Value::Null => {
            let hint = "write \"\" for the empty value, or { not: \"*\" } for an absent attribute";
            report.error(node.span, format!("there is no pattern for `{attribute}`"), hint);
            None
        }
        Value::Scalar(_) => fields::text(node, "a pattern", report),
    }
}
