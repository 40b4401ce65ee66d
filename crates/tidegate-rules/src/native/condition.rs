//! Reads `match`: patterns on attributes.

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
                report.error(key.span, "an attribute's name is empty").hint("name it, such as `path`");
            }
            if let Some(test) = test(value, &key.text, report) {
                conditions.push(Condition { attribute: self.attributes.number(&key.text), test });
            }
        }
        Some(conditions)
    }
}

fn test(node: &Node, attribute: &str, report: &mut Report<'_>) -> Option<Test> {
    let Value::Map(_) = node.value else {
        return patterns(node, attribute, report).map(Test::AnyOf);
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
        (Some(patterns), None) => Some(Test::NoneOf(patterns)),
        (Some(patterns), Some(true)) => Some(Test::PresentButNot(patterns)),
        (None, Some(true)) => Some(Test::AnyOf([Pattern::parse("*")].into())),
        (None, Some(false)) => Some(Test::Absent),
        (Some(_), Some(false)) => {
            let hint = "an absent attribute is never that: remove one of the two";
            report.error(fields.key_span("not"), "`not` says nothing of an absent attribute").hint(hint);
            None
        }
        (None, None) => {
            report.error(node.span, format!("the condition on `{attribute}` is empty")).hint(HINT);
            None
        }
    }
}

fn patterns(node: &Node, attribute: &str, report: &mut Report<'_>) -> Option<Box<[Pattern]>> {
    let items = match &node.value {
        Value::List(items) => items,
        _ => std::slice::from_ref(node),
    };
    if items.is_empty() {
        report.error(node.span, format!("the list of patterns for `{attribute}` is empty")).hint(HINT);
        return None;
    }
    let patterns: Vec<Pattern> = items.iter().filter_map(|item| pattern(item, attribute, report)).collect();
    (patterns.len() == items.len()).then(|| patterns.into())
}

fn pattern(node: &Node, attribute: &str, report: &mut Report<'_>) -> Option<Pattern> {
    if let Value::Map(_) | Value::List(_) = node.value {
        report
            .error(node.span, format!("a pattern for `{attribute}` cannot be {}", node.describe()))
            .hint(HINT);
        return None;
    }
    if let Value::Null = node.value {
        let hint = "write \"\" for the empty value, or { present: false } for an absent attribute";
        report.error(node.span, format!("there is no pattern for `{attribute}`")).hint(hint);
        return None;
    }
    fields::text(node, "a pattern", report).map(|text| Pattern::parse(&text))
}
