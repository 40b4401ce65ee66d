//! Checks that rules for all regions have a home: a store that counts for all of them. Which domains have one is not in the rules.

use crate::diagnostics::Diagnostics;
use crate::load::Source;
use crate::placed::report;
use crate::rule::Rule;
use crate::ruleset::RuleSet;

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
        let homeless = self.written().filter(is_homeless).map(|rule| {
            let (name, domain) = (rule.name(), rule.domain());
            (rule, format!("rule `{name}` has `scope: global`, and the domain `{domain}` has no home"), HINT)
        });
        report(homeless.collect(), "scope", sources)
    }
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
