//! Reads `match`: patterns on attributes.

use std::rc::Rc;

use super::File;
use crate::diagnostics::Report;
use crate::fields::{self, Fields};
use crate::glob::Pattern;
use crate::matching::condition::Condition;
use crate::yaml::{Node, Value};

pub(crate) const CONDITION_FIELDS: [&str; 2] = ["is", "not"];

const HINT: &str = "write a pattern, a list of patterns, or { is: …, not: … }";

impl File {
    /// All conditions that hold where the rule matches.
    pub(super) fn conditions(&mut self, node: &Node, report: &mut Report<'_>) -> Option<Vec<Condition>> {
        let fields = Fields::read_any(node, "match", report)?;
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
            Value::Map(_) => {
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
            let hint = "write \"\" for the empty value, or { not: \"*\" } for an absent attribute";
            report.error(node.span, format!("there is no pattern for `{attribute}`"), hint);
            None
        }
        Value::Scalar(_) => fields::text(node, "a pattern", report),
    }
}
