//! Checks that rules for all regions have a home: a store that counts for all of them. Which domains have one is not in the rules.

use crate::diagnostics::{Diagnostics, Report, Span};
use crate::load::Source;
use crate::outline::{field, scalar};
use crate::rule::Rule;
use crate::ruleset::RuleSet;
use crate::yaml::{self, Node, Value};

/// How to go on, for whoever writes the rules and whoever configures the nodes.
const HINT: &str = "add `regions: { home: redis://host:port }` to the configuration of all nodes, the same in every region; or \
                    remove `scope: global`";

impl RuleSet {
    /// Checks that each rule for all regions has a home; `has_home` knows it of a domain. The set was compiled from
    /// `sources`, which are read only to show places.
    ///
    /// # Errors
    /// The rules without a home, each with its place.
    pub fn check_homes(
        &self,
        sources: impl FnOnce() -> Vec<Source>,
        has_home: impl Fn(&str) -> bool,
    ) -> Result<(), Diagnostics> {
        let is_homeless = |rule: &&Rule| rule.coordination().is_global() && !has_home(rule.domain());
        let homeless: Vec<&Rule> = self.written().filter(is_homeless).collect();
        if homeless.is_empty() {
            return Ok(());
        }
        let sources = sources();
        let sources: Vec<&Source> = sources.iter().collect();
        let documents: Vec<Node> =
            (0..).zip(&sources).flat_map(|(file, source)| nodes(file, source)).collect();
        let mut report = Report::new(&sources);
        for rule in homeless {
            let place = documents.iter().find_map(|document| place_of(document, rule));
            let (name, domain) = (rule.name(), rule.domain());
            let message = format!("rule `{name}` has `scope: global`, and the domain `{domain}` has no home");
            report.error(place.unwrap_or(Span::at(0, 0)), message, HINT);
        }
        report.finish().map(drop)
    }
}

/// The documents of a file that was compiled before, so that there are no mistakes to report.
fn nodes(file: u32, source: &Source) -> Vec<Node> {
    yaml::parse(file, &source.text, &mut Report::new(&[source]))
}

/// Where `document` says that `rule` is for all regions; where the rule is, if another field does.
fn place_of(document: &Node, rule: &Rule) -> Option<Span> {
    let is_text = |node: &Node, text: &str| scalar(node).is_some_and(|found| found == text);
    field(document, "domain").filter(|domain| is_text(domain, rule.domain()))?;
    let Value::List(rules) = &field(document, "rules")?.value else { return None };
    let is_it = |node: &&Node| field(node, "name").is_some_and(|name| is_text(name, rule.name()));
    let found = rules.iter().find(is_it)?;
    let Value::Map(fields) = &found.value else { return None };
    let scope = fields.iter().find(|(key, _)| &*key.text == "scope");
    Some(scope.map_or(Span::at(found.span.file, found.span.start), |(key, _)| key.span))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ruleset::Format;

    #[test]
    fn a_rule_without_a_home_is_named_with_its_place() {
        let home =
            Source::new("a.yaml", "domain: a\nrules: [{ name: x, scope: global, limits: [60/minute] }]\n");
        let none = Source::new(
            "b.yaml",
            "domain: b\nrules:\n- { name: region, limits: [60/minute] }\n- name: x\n  scope: global\n  limits: [60/minute]\n",
        );
        let sources = || vec![home.clone(), none.clone()];
        let rules = RuleSet::compile(&sources(), Format::Native).unwrap();
        assert!(rules.check_homes(sources, |_| true).is_ok());
        let found = rules.check_homes(sources, |domain| domain == "a").unwrap_err();
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["b.yaml:5:3: rule `x` has `scope: global`, and the domain `b` has no home"]);
    }
}
