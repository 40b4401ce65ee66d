//! The positions of a rule document's parts, for edits of one rule that leave the rest as it is.
//!
//! It parses only what it needs: which rules a document lists, their names, and where. The compiler checks whether they are
//! valid.

use std::ops::Range;

use crate::diagnostics::{Diagnostics, Report};
use crate::load::Source;
use crate::yaml::{self, Node, Value};

/// The content of one document of a rule file, with positions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outline {
    /// Its domain, if it has one.
    pub domain: Option<String>,
    /// Its list of rules, as a byte range, if it has one.
    pub list: Option<Range<usize>>,
    /// Its rules, in order.
    pub rules: Vec<RulePlace>,
}

/// A rule of a document: its name, and the position of its mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RulePlace {
    /// Empty if it has none.
    pub name: String,
    /// The byte range of its mapping: without the dash before it, and without white space after it.
    pub span: Range<usize>,
}

/// The outline of each document in `text`.
///
/// # Errors
/// It is not YAML, or empty.
pub fn outline(text: &str) -> Result<Vec<Outline>, Diagnostics> {
    let source = Source::new("document", text);
    let sources = [&source];
    let mut report = Report::new(&sources);
    let documents = yaml::parse(0, text, &mut report);
    report.finish()?;
    Ok(documents.iter().map(|document| outline_of(document, text)).collect())
}

fn outline_of(document: &Node, text: &str) -> Outline {
    let domain = field(document, "domain").and_then(scalar);
    let list = field(document, "rules");
    let rules = match list.map(|list| &list.value) {
        Some(Value::List(rules)) => rules.iter().map(|rule| place(rule, text)).collect(),
        _ => Vec::new(),
    };
    Outline { domain, list: list.map(|list| trimmed(list, text)), rules }
}

fn place(rule: &Node, text: &str) -> RulePlace {
    let name = field(rule, "name").and_then(scalar).unwrap_or_default();
    RulePlace { name, span: trimmed(rule, text) }
}

/// A block scalar ends only with the line break after it.
fn trimmed(node: &Node, text: &str) -> Range<usize> {
    let (start, end) = (node.span.start.min(text.len()), node.span.end.min(text.len()));
    start..start + text[start..end].trim_end().len()
}

pub(crate) fn field<'n>(node: &'n Node, name: &str) -> Option<&'n Node> {
    let Value::Map(fields) = &node.value else { return None };
    fields.iter().find(|(key, _)| &*key.text == name).map(|(_, value)| value)
}

pub(crate) fn scalar(node: &Node) -> Option<String> {
    match &node.value {
        Value::Scalar(scalar) => Some(scalar.text.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn rules_of(text: &str) -> Vec<(String, &str)> {
        let outlines = outline(text).unwrap();
        let places = outlines.into_iter().flat_map(|one| one.rules);
        places.map(|place| (place.name, &text[place.span])).collect()
    }

    #[test]
    fn a_rule_stands_where_its_mapping_does() {
        let text =
            "domain: api\nrules:\n  # first\n  - name: a\n    limits: [1/s]  # few\n\n  - { name: b }\n";
        let expected = [("a".to_owned(), "name: a\n    limits: [1/s]"), ("b".to_owned(), "{ name: b }")];
        assert_eq!(rules_of(text), expected);
    }

    #[test]
    fn a_text_over_several_lines_ends_with_its_last_word() {
        let text =
            "domain: api\nrules:\n  - name: a\n    description: |\n      Two\n      lines.\n\n  - name: b\n";
        assert_eq!(rules_of(text)[0].1, "name: a\n    description: |\n      Two\n      lines.");
    }

    #[test]
    fn each_document_of_a_file_has_its_own() {
        let outlines = outline("domain: a\nrules: []\n---\ndomain: b\nrules: [{ name: x }]\n").unwrap();
        let found: Vec<_> = outlines.iter().map(|one| (one.domain.as_deref(), one.rules.len())).collect();
        assert_eq!(found, [(Some("a"), 0), (Some("b"), 1)]);
    }

    #[test]
    fn what_is_no_yaml_is_refused() {
        assert!(outline("a: [").is_err());
    }
}
