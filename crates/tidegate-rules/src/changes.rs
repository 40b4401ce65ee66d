//! The differences between two rule sets, for the log line of a reload.

use std::collections::BTreeMap;
use std::fmt;

use crate::algorithms::shown;
use crate::lost::LostCounters;
use crate::rule::{Rule, RuleLimit};
use crate::ruleset::{Domain, RuleSet};

/// The differences between two rule sets. It prints as `+2 rules, ~1, -0: per-user 60/1m -> 90/1m`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleChanges {
    /// Added rules, by name.
    pub added: Vec<String>,
    /// Changed rules, and how.
    pub changed: Vec<String>,
    /// Removed rules.
    pub removed: Vec<String>,
    /// Rules of both whose counters start empty.
    pub lost: Vec<LostCounters>,
}

/// The most rules named in a log line; the counts cover all.
const MOST_NAMED: usize = 5;

impl RuleSet {
    /// The differences from `before`.
    #[must_use]
    pub fn changes_since(&self, before: &RuleSet) -> RuleChanges {
        let (old, new) = (before.described(), self.described());
        let several =
            self.domains().chain(before.domains()).collect::<std::collections::BTreeSet<_>>().len() > 1;
        let name = |(domain, rule): &(&str, &str)| match several {
            true => format!("{domain}/{rule}"),
            false => (*rule).to_owned(),
        };
        let mut changes = RuleChanges::default();
        for (key, description) in &new {
            match old.get(key) {
                None => changes.added.push(name(key)),
                Some(before) if before == description => {}
                Some(before) => {
                    changes.changed.push(format!("{} {}", name(key), before.difference(description)))
                }
            }
        }
        changes.lost = self.counters_lost_since(before);
        changes.removed = old.keys().filter(|key| !new.contains_key(*key)).map(name).collect();
        changes
    }

    /// Every rule as far as it affects requests, by domain and name.
    fn described(&self) -> BTreeMap<(&str, &str), Described> {
        let mut all: BTreeMap<(&str, &str), Described> =
            self.written().map(|rule| ((rule.domain(), rule.name()), Described::of(rule))).collect();
        for (name, domain) in self.all_domains() {
            let Domain::Native(native) = domain else { continue };
            for selector in &native.selectors {
                let rule = self.rule(selector.rule).name();
                let Some(described) = all.get_mut(&(name, rule)) else { continue };
                let mut conditions: Vec<String> = selector
                    .conditions
                    .iter()
                    .map(|one| format!("{} {}", native.attributes.name(one.attribute), one.written))
                    .collect();
                conditions.sort_unstable();
                described.fields.push(("match", conditions.join(", ")));
                let hashed: Vec<&str> =
                    selector.hashed.iter().map(|attribute| native.attributes.name(*attribute)).collect();
                described.fields.push(("hash", format!("[{}]", hashed.join(", "))));
                described.fields.push(("on_missing_key", format!("{:?}", selector.on_missing_key)));
            }
        }
        all
    }
}

/// The compared properties of a rule.
#[derive(PartialEq, Eq)]
struct Described {
    limits: String,
    fields: Vec<(&'static str, String)>,
}

impl Described {
    fn of(rule: &Rule) -> Self {
        let set = |(of, limits): (String, &[RuleLimit])| {
            let of = if of.is_empty() { of } else { format!("{of}: ") };
            let limits: Vec<String> = limits.iter().map(|one| shown(&one.limit)).collect();
            format!("{of}{}", if limits.is_empty() { "unlimited".to_owned() } else { limits.join(" + ") })
        };
        let sets: Vec<String> = rule.limit_sets().map(set).collect();
        let mut fields = rule.settings();
        fields.extend([
            ("experiment", rule.experiment().map_or("none".to_owned(), |share| share.to_string())),
            ("over of limits", over_of_limits(rule)),
            ("overrides", format!("{:?}", rule.replacing.replaces)),
            (
                "key_overrides",
                format!("{:?}", rule.limits().map(|one| shown(&one.limit)).collect::<Vec<_>>()),
            ),
        ]);
        Described { limits: sets.join("; "), fields }
    }

    /// How it changed, in a few words. Limits come first: they matter most.
    fn difference(&self, new: &Described) -> String {
        if self.limits != new.limits {
            return format!("{} -> {}", self.limits, new.limits);
        }
        let pairs = self.fields.iter().zip(&new.fields).filter(|(old, new)| old != new);
        let named: Vec<String> = pairs
            .map(|((name, old), (_, new))| match *name {
                "match" | "overrides" | "key_overrides" | "penalty" | "autopilot" => (*name).to_owned(),
                _ => format!("{name} {} -> {}", old.to_lowercase(), new.to_lowercase()),
            })
            .collect();
        named.join(", ")
    }
}

/// Which limits differ from their rule in what a cost above what is left does.
fn over_of_limits(rule: &Rule) -> String {
    let own = rule.limits().filter_map(|one| Some(format!("{} {:?}", one.name, one.over?)));
    own.collect::<Vec<_>>().join(", ")
}

impl RuleChanges {
    /// Whether nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }
}

impl fmt::Display for RuleChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (added, changed, removed) = (self.added.len(), self.changed.len(), self.removed.len());
        write!(f, "+{added} rules, ~{changed}, -{removed}")?;
        let signed = |sign: &'static str| move |name: &String| format!("{sign}{name}");
        let named = self.changed.iter().cloned();
        let named =
            named.chain(self.added.iter().map(signed("+"))).chain(self.removed.iter().map(signed("-")));
        let mut separator = ": ";
        for name in named.take(MOST_NAMED) {
            write!(f, "{separator}{name}")?;
            separator = "; ";
        }
        match (added + changed + removed).saturating_sub(MOST_NAMED) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Source;
    use crate::ruleset::Format;

    fn rules(text: &str) -> RuleSet {
        let source = Source::new("rules.yaml", format!("domain: api\nrules:\n{text}"));
        RuleSet::compile(&[source], Format::Native).unwrap()
    }

    #[track_caller]
    fn check(before: &str, after: &str, expected: &str) {
        assert_eq!(rules(after).changes_since(&rules(before)).to_string(), expected);
    }

    const OLD: &str = "- { name: per-user, key: [user], limits: [100/minute] }\n";

    #[test]
    fn a_changed_limit_is_shown_with_both_numbers() {
        check(
            OLD,
            "- { name: per-user, key: [user], limits: [200/minute] }\n- { name: a, limits: [1/s] }\n- { name: b, limits: [1/s] }\n",
            "+2 rules, ~1, -0: per-user 100/1m -> 200/1m; +a; +b",
        );
    }

    #[test]
    fn the_same_rules_in_another_order_are_no_change() {
        let (a, b) = (
            "- { name: a, match: { path: /a, user: u }, limits: [1/s] }\n",
            "- { name: b, key: [ip], limits: [1/s] }\n",
        );
        assert!(rules(&format!("{a}{b}")).changes_since(&rules(&format!("{b}{a}"))).is_empty());
    }

    #[test]
    fn a_rule_that_matches_something_else_has_changed() {
        check(
            "- { name: a, match: { path: /a }, limits: [1/s] }\n",
            "- { name: a, match: { path: /b }, limits: [1/s] }\n",
            "+0 rules, ~1, -0: a match",
        );
    }

    #[test]
    fn a_rule_that_comes_into_force_says_so() {
        check(
            "- { name: a, shadow: true, limits: [1/s] }\n",
            "- { name: a, limits: [1/s] }\n",
            "+0 rules, ~1, -0: a mode shadow -> enforce",
        );
    }

    #[test]
    fn a_tier_is_named() {
        let tiers = |free: &str| {
            format!(
                "- {{ name: plan, key: [user], tiers: {{ on: plan, default: free, free: [{free}], pro: [9/s] }} }}\n"
            )
        };
        check(
            &tiers("1/s"),
            &tiers("2/s"),
            "+0 rules, ~1, -0: plan free: 1/1s; pro: 9/1s -> free: 2/1s; pro: 9/1s",
        );
    }

    #[test]
    fn a_long_list_is_cut_and_counted() {
        let many: String = (0..9).map(|n| format!("- {{ name: r{n}, limits: [1/s] }}\n")).collect();
        check(OLD, &many, "+9 rules, ~0, -1: +r0; +r1; +r2; +r3; +r4; and 5 more");
    }
}
