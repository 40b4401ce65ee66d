//! Mistakes of rules that compile, but cannot be counted where they would run: each is shown in the place of a rule's field.

use crate::diagnostics::{Diagnostics, Report, Span};
use crate::load::Source;
use crate::outline::{field, scalar};
use crate::rule::Rule;
use crate::yaml::{self, Node, Value};

/// What is wrong with a rule, and how to go on.
pub(crate) type Mistake<'r> = (&'r Rule, String, &'static str);

/// Reports `mistakes` of rules that were compiled from `sources`, each in the place of `name`, a field of its rule. They are read
/// only if there are any.
pub(crate) fn report(
    mistakes: Vec<Mistake<'_>>,
    name: &str,
    sources: impl FnOnce() -> Vec<Source>,
) -> Result<(), Diagnostics> {
    if mistakes.is_empty() {
        return Ok(());
    }
    let mut sources = sources();
    if sources.is_empty() {
        // Rules that are code.
        sources.push(Source::new("rules", ""));
    }
    let sources: Vec<&Source> = sources.iter().collect();
    let documents: Vec<Node> = (0..).zip(&sources).flat_map(|(file, source)| nodes(file, source)).collect();
    let mut report = Report::new(&sources);
    for (rule, message, hint) in mistakes {
        let place = documents.iter().find_map(|document| place_of(document, rule, name));
        report.error(place.unwrap_or(Span::at(0, 0)), message, hint);
    }
    report.finish().map(drop)
}

/// The documents of a file that was compiled before, so that there are no mistakes to report.
fn nodes(file: u32, source: &Source) -> Vec<Node> {
    yaml::parse(file, &source.text, &mut Report::new(&[source]))
}

/// Where `document` has the field `name` of `rule`; where the rule is, if another field stands for it.
fn place_of(document: &Node, rule: &Rule, name: &str) -> Option<Span> {
    let is_text = |node: &Node, text: &str| scalar(node).is_some_and(|found| found == text);
    field(document, "domain").filter(|domain| is_text(domain, rule.domain()))?;
    let Value::List(rules) = &field(document, "rules")?.value else { return None };
    let is_it = |node: &&Node| field(node, "name").is_some_and(|name| is_text(name, rule.name()));
    let found = rules.iter().find(is_it)?;
    let Value::Map(fields) = &found.value else { return None };
    let known = fields.iter().find(|(key, _)| &*key.text == name);
    Some(known.map_or(Span::at(found.span.file, found.span.start), |(key, _)| key.span))
}
