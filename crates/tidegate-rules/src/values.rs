//! Which values of an attribute rules distinguish: needed to decide with other values than were sent, as with a log that
//! hashes them.

use std::collections::BTreeSet;

use crate::choice::UsualLimits;
use crate::glob::Pattern;
use crate::rule::Rule;
use crate::ruleset::{Domain, RuleSet};

/// How the rules of a domain use an attribute's values. Keys are not included: they only need different values to differ.
#[derive(Debug, Default)]
pub struct ValuesRead<'r> {
    /// Values that are compared whole.
    pub literals: BTreeSet<&'r [u8]>,
    /// Rules that compare with such values: in `match`, tiers or key overrides.
    pub by_literal: Vec<&'r Rule>,
    /// Rules that match a pattern with `*`, which a hash cannot answer.
    pub by_pattern: Vec<&'r Rule>,
    /// Rules with a rollout or an experiment for a share of their keys, which depends on the values.
    pub by_share: Vec<&'r Rule>,
}

impl RuleSet {
    /// How the rules of a domain use the attribute's values. Rules that are off use nothing.
    #[must_use]
    pub fn values_read(&self, domain: &str, attribute: &str) -> ValuesRead<'_> {
        let mut read = ValuesRead::default();
        match self.domain(domain) {
            Some(Domain::Native(native)) => {
                let Some(number) = native.attributes.get(attribute) else { return read };
                let on = native.selectors.iter().filter(|selector| self.rule(selector.rule).is_enabled());
                for selector in on {
                    let rule = self.rule(selector.rule);
                    let before = read.literals.len();
                    let mut is_compared = false;
                    let of_it = selector.conditions.iter().filter(|condition| condition.attribute == number);
                    for pattern in of_it.flat_map(|one| one.is.iter().flatten().chain(&one.not)) {
                        match pattern {
                            Pattern::Exact(exact) => {
                                is_compared = true;
                                read.literals.insert(exact);
                            }
                            Pattern::Glob(glob) if glob.takes_all() => {}
                            Pattern::Glob(_) => add(&mut read.by_pattern, rule),
                        }
                    }
                    if let UsualLimits::ByTier(tiers) = &rule.limits.usual
                        && tiers.on == number
                    {
                        is_compared = true;
                        read.literals.extend(tiers.names.keys().map(|name| &**name));
                    }
                    read.literals.extend(rule.limits.overrides.values_of(number));
                    if is_compared || read.literals.len() > before {
                        add(&mut read.by_literal, rule);
                    }
                    let is_split = rule.rollout.is_some() || rule.limits.experiment.is_some();
                    if is_split && selector.key.contains(&number) {
                        add(&mut read.by_share, rule);
                    }
                }
            }
            Some(Domain::Envoy(envoy)) => {
                for (rule, path) in &envoy.paths {
                    let rule = self.rule(*rule);
                    for step in path.iter().filter(|step| *step.key == *attribute) {
                        match &step.value {
                            Some(value) if value.contains('*') => add(&mut read.by_pattern, rule),
                            Some(value) => {
                                read.literals.insert(value.as_bytes());
                                add(&mut read.by_literal, rule);
                            }
                            None => {}
                        }
                    }
                }
            }
            None => {}
        }
        read
    }
}

fn add<'r>(rules: &mut Vec<&'r Rule>, rule: &'r Rule) {
    if rules.last().is_none_or(|last| last.index() != rule.index()) {
        rules.push(rule);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, Source};

    #[test]
    fn what_rules_compare_with_is_told_and_what_they_count_by_is_not() {
        let text = "
domain: api
rules:
  - { name: count, key: [user, path], limits: [1/s] }
  - { name: any, match: { path: '*' }, key: [user], limits: [1/s] }
  - { name: exact, match: { path: [/a, /b], method: { not: GET } }, key: [user], limits: [1/s] }
  - { name: glob, match: { path: '/v1/*' }, key: [user], limits: [1/s] }
  - { name: off, enabled: false, match: { path: '/v2/*' }, key: [user], limits: [1/s] }
  - { name: tiers, key: [user], tiers: { on: plan, default: free, free: [1/s], gold: [9/s] } }
  - { name: own, key: [user], limits: [1/s], key_overrides: [{ when: { user: acme }, limits: [9/s] }] }
  - { name: some, key: [user], limits: [1/s], rollout: 10% }
";
        let rules = RuleSet::compile(&[Source::new("a", text)], Format::Native).unwrap();
        let check = |attribute: &str, literals: &[&str], by: [&[&str]; 3]| {
            let read = rules.values_read("api", attribute);
            let names = |rules: &[&Rule]| rules.iter().map(|rule| rule.name().to_owned()).collect::<Vec<_>>();
            let found: Vec<&[u8]> = read.literals.iter().copied().collect();
            assert_eq!(found, literals.iter().map(|one| one.as_bytes()).collect::<Vec<_>>(), "{attribute}");
            let found = [&read.by_literal, &read.by_pattern, &read.by_share].map(|rules| names(rules));
            assert_eq!(found, by.map(|by| by.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>()));
        };
        check("path", &["/a", "/b"], [&["exact"], &["glob"], &[]]);
        check("method", &["GET"], [&["exact"], &[], &[]]);
        check("plan", &["free", "gold"], [&["tiers"], &[], &[]]);
        check("user", &["acme"], [&["own"], &[], &["some"]]);
        check("other", &[], [&[], &[], &[]]);
    }
}
