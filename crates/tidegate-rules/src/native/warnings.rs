//! Warnings about rules that compile, but may not be what was intended.

use std::collections::HashMap;

use super::{DomainReader, regex};
use crate::diagnostics::Report;
use crate::matching::condition::Condition;
use crate::rule::{Mode, OnMissingKey, Rule};
use crate::ruleset::Compiling;
use crate::yaml::{Node, Value};

/// Warns of a pattern that no request can match, given how our surfaces normalise values.
pub(super) fn warn_of_pattern(node: &Node, attribute: &str, report: &mut Report<'_>) {
    let Value::Scalar(scalar) = &node.value else { return };
    let text = &*scalar.text;
    if let Some(glob) = regex::as_glob(text) {
        let message = format!("`{text}` looks like a regular expression, and patterns here are globs");
        let hint = format!("write `{glob}`: `*` stands for any text; a list is for alternatives");
        // A path begins with a slash, so this one would never match.
        if attribute == "path" && text.starts_with('^') {
            report.error(node.span, message, hint);
        } else {
            report.warning(node.span, message, hint);
        }
        return;
    }
    match attribute {
        "method" if text.contains(|c: char| c.is_ascii_lowercase()) => {
            let hint = format!("write {}", text.to_ascii_uppercase());
            report.warning(node.span, "methods are upper case, and compared exactly", hint);
        }
        "path" if !text.is_empty() && !text.starts_with(['/', '*']) => {
            report.warning(node.span, "a path begins with a slash", format!("write `/{text}`"));
        }
        "path" if text.contains(|c: char| c.is_ascii_uppercase()) => {
            let hint = format!("write `{}`", text.to_ascii_lowercase());
            report.warning(node.span, "paths are lowercased before they are matched", hint);
        }
        _ => {}
    }
}

impl DomainReader {
    /// Warns of rules that another one overrides wherever they match.
    pub(super) fn warn_of_overridden(&self, compiling: &Compiling, report: &mut Report<'_>) {
        let rule_of = |selector: usize| &compiling.rules[self.selectors[selector].rule];
        let called: HashMap<Option<u32>, usize> =
            (0..self.selectors.len()).map(|at| (rule_of(at).replacing.called, at)).collect();
        for by in 0..self.selectors.len() {
            for target in &rule_of(by).replacing.replaces {
                let Some(&one) = called.get(&Some(*target)) else { continue };
                if self.always_replaces(by, one, rule_of(by), rule_of(one)) {
                    let (name, overriding) = (rule_of(one).name(), rule_of(by).name());
                    let span = self.names.get(name).map_or(self.names[overriding].1, |(_, span)| *span);
                    let message =
                        format!("this rule never counts: `{overriding}` overrides it wherever it matches");
                    let warning =
                        report.warning(span, message, "remove it, or narrow the other one's `match`");
                    warning.related(self.names[overriding].1, "the overriding rule");
                }
            }
        }
    }

    /// Whether rule `by` counts wherever rule `one` matches.
    fn always_replaces(&self, by: usize, one: usize, by_rule: &Rule, one_rule: &Rule) -> bool {
        let (by, one) = (&self.selectors[by], &self.selectors[one]);
        let same = |a: &Condition, b: &Condition| a.attribute == b.attribute && a.written == b.written;
        let is_wider =
            by.conditions.iter().all(|wide| one.conditions.iter().any(|narrow| same(wide, narrow)));
        let has_key =
            by.on_missing_key == OnMissingKey::Refuse || by.key.iter().all(|part| one.key.contains(part));
        let is_on =
            by_rule.enabled && one_rule.enabled && by_rule.rollout.is_none() && by_rule.flag().is_none();
        is_wider && has_key && is_on && (by_rule.mode != Mode::Shadow || one_rule.mode == Mode::Shadow)
    }
}
