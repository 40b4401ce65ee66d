//! Reads `match`: patterns on attributes.

use std::rc::Rc;

use super::File;
use crate::diagnostics::Report;
use crate::fields::{self, Fields};
use crate::glob::Pattern;
use crate::matching::condition::{Condition, Test};
use crate::yaml::{Node, Value};

pub(crate) const CONDITION_FIELDS: [&str; 2] = ["not", "present"];

const HINT: &str = "write a pattern, a list of patterns, or { not: … }";

impl File {
    /// All conditions that hold where the rule matches.
    pub(super) fn conditions(&mut self, node: &Node, report: &mut Report<'_>) -> Option<Vec<Condition>> {
        let fields = Fields::read_any(node, "match", report)?;
        let mut conditions = Vec::new();
        for (key, value) in fields.entries {
            if key.text.is_empty() {
                report.error(key.span, "an attribute's name is empty", "name it, such as `path`");
            }
            if let Some((test, written)) = test(value, &key.text, report) {
                let attribute = self.attributes.number(&key.text);
                conditions.push(Condition { attribute, test, written: written.into() });
            }
        }
        Some(conditions)
    }
}

/// What an attribute must be, and the same in words.
fn test(node: &Node, attribute: &str, report: &mut Report<'_>) -> Option<(Test, String)> {
    let Value::Map(_) = node.value else {
        let (patterns, written) = patterns(node, attribute, report)?;
        return Some((Test::AnyOf(patterns), written));
    };
    let fields = Fields::read(node, "a condition", &CONDITION_FIELDS, report)?;
    let present = match fields.get("present") {
        Some(node) => Some(fields::flag(node, "present", report)?),
        None => None,
    };
    let not = match fields.get("not") {
        Some(node) => Some(patterns(node, attribute, report)?),
        None => None,
    };
    match (not, present) {
        (Some((patterns, written)), None) => {
            Some((Test::NoneOf(patterns), format!("anything but {written}")))
        }
        (Some((patterns, written)), Some(true)) => {
            Some((Test::PresentButNot(patterns), format!("present, and anything but {written}")))
        }
        (None, Some(true)) => Some((Test::AnyOf([Pattern::parse("*")].into()), "present".into())),
        (None, Some(false)) => Some((Test::Absent, "absent".into())),
        (Some(_), Some(false)) => {
            let hint = "an absent attribute is never that: remove one of the two";
            report.error(fields.key_span("not"), "`not` says nothing of an absent attribute", hint);
            None
        }
        (None, None) => {
            report.error(node.span, format!("the condition on `{attribute}` is empty"), HINT);
            None
        }
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
    let texts: Vec<Rc<str>> = items.iter().filter_map(|item| pattern(item, attribute, report)).collect();
    let written: Vec<String> = texts.iter().map(|text| format!("`{text}`")).collect();
    let patterns = texts.iter().map(|text| Pattern::parse(text)).collect();
    (texts.len() == items.len()).then(|| (patterns, written.join(" or ")))
}

fn pattern(node: &Node, attribute: &str, report: &mut Report<'_>) -> Option<Rc<str>> {
    match &node.value {
        Value::Map(_) | Value::List(_) => {
            let message = format!("a pattern for `{attribute}` cannot be {}", node.describe());
            report.error(node.span, message, HINT);
            None
        }
        Value::Null => {
            let hint = "write \"\" for the empty value, or { present: false } for an absent attribute";
            report.error(node.span, format!("there is no pattern for `{attribute}`"), hint);
            None
        }
        Value::Scalar(_) => fields::text(node, "a pattern", report),
    }
}
