//! What a program makes rules from.

use crate::code::Rules;
use crate::diagnostics::{Diagnostics, Report, Span};
use crate::load::Source;
use crate::ruleset::{Format, RuleSet};

/// Anything that rules can be compiled from: text (YAML or JSON), rules written in code, or a compiled set.
#[diagnostic::on_unimplemented(
    message = "rules cannot be made from `{Self}`",
    label = "neither text, nor `Rules`, nor a `RuleSet`",
    note = "text is YAML or JSON: \"{{ domain: api, rules: [{{ name: per-user, key: [user], limits: [100/minute] }}] }}\"",
    note = "in code: `Rules::new(\"api\").rule(Rule::new(\"per-user\").key(\"user\").limit(\"100/minute\"))`"
)]
pub trait IntoRules {
    /// The compiled set.
    ///
    /// # Errors
    /// With every mistake in the rules, each with its place and a hint. Text or code without a single rule is one: it would
    /// limit nobody.
    fn into_rules(self) -> Result<RuleSet, Diagnostics>;
}

impl IntoRules for &str {
    fn into_rules(self) -> Result<RuleSet, Diagnostics> {
        let sources = [Source::new("rules", self)];
        not_empty(RuleSet::compile(&sources, Format::Native)?, &sources)
    }
}

impl IntoRules for &String {
    fn into_rules(self) -> Result<RuleSet, Diagnostics> {
        self.as_str().into_rules()
    }
}

impl IntoRules for String {
    fn into_rules(self) -> Result<RuleSet, Diagnostics> {
        self.as_str().into_rules()
    }
}

impl IntoRules for &Rules {
    fn into_rules(self) -> Result<RuleSet, Diagnostics> {
        let sources = self.sources();
        not_empty(RuleSet::compile(&sources, Format::Native)?, &sources)
    }
}

impl IntoRules for Rules {
    fn into_rules(self) -> Result<RuleSet, Diagnostics> {
        (&self).into_rules()
    }
}

impl IntoRules for RuleSet {
    fn into_rules(self) -> Result<RuleSet, Diagnostics> {
        Ok(self)
    }
}

/// A set of rules, unless it has none.
fn not_empty(set: RuleSet, sources: &[Source]) -> Result<RuleSet, Diagnostics> {
    if set.rules().len() > 0 {
        return Ok(set);
    }
    let nothing = [Source::new("rules", "")];
    let all: Vec<&Source> = if sources.is_empty() { &nothing } else { sources }.iter().collect();
    let mut report = Report::new(&all);
    let hint = "add a rule with a limit, or compile the set with `RuleSet::compile` if that is meant";
    report.error(Span::at(0, 0), "there are no rules, so nobody would be limited".to_owned(), hint);
    report.finish().map(|_| set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Rule;

    #[test]
    fn rules_without_a_rule_are_a_mistake_unless_they_were_compiled_before() {
        let empty = "{ domain: api, rules: [] }";
        let mistakes = empty.into_rules().unwrap_err();
        assert!(mistakes.to_string().contains("there are no rules"), "{mistakes}");
        assert!(Rules::new("api").into_rules().is_err() && Rules::default().into_rules().is_err());
        assert!(Rules::new("api").rule(Rule::new("r").limit("1/s")).into_rules().is_ok());
        let compiled = RuleSet::compile(&[Source::new("a.yaml", empty)], Format::Native).unwrap();
        assert!(compiled.into_rules().is_ok());
    }
}
