//! Feature flags that rules follow: `when: { flag: new-limits }`.
//!
//! Whoever runs the rules asks a source now and then, and gives what it answered to [`RuleSet::with_flags`]. A request asks
//! nobody: a rule whose flag is off is out of the set until the flags change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::diagnostics::Report;
use crate::fields::{self, Fields};
use crate::rule::Rule;
use crate::ruleset::RuleSet;
use crate::yaml::Node;

pub(crate) const WHEN_FIELDS: [&str; 2] = ["flag", "default"];

/// The flag that a rule follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedFlag {
    /// Its name.
    pub name: String,
    /// Whether the rule counts while nobody says whether the flag is on.
    pub default: bool,
}

/// What a source of flags last answered. A flag that it does not know is in neither state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags(BTreeMap<String, bool>);

impl Flags {
    /// Whether the flag is on; `None` if nobody says so.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<bool> {
        self.0.get(name).copied()
    }

    /// The known flags, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, bool)> {
        self.0.iter().map(|(name, is_on)| (name.as_str(), *is_on))
    }

    /// Only those with these names.
    #[must_use]
    pub fn only(&self, names: &BTreeSet<String>) -> Flags {
        self.0
            .iter()
            .filter(|(name, _)| names.contains(*name))
            .map(|(name, on)| (name.clone(), *on))
            .collect()
    }
}

impl FromIterator<(String, bool)> for Flags {
    fn from_iter<T: IntoIterator<Item = (String, bool)>>(flags: T) -> Self {
        Flags(flags.into_iter().collect())
    }
}

/// The flags of a set, and what they mean for its rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlagStates {
    flags: Arc<Flags>,
    /// For each rule whether its flag keeps it off; empty if none does.
    off: Arc<[bool]>,
}

impl FlagStates {
    pub(crate) fn of(rules: &[Rule], flags: Flags) -> Self {
        let is_off =
            |rule: &Rule| rule.flag().is_some_and(|flag| !flags.get(&flag.name).unwrap_or(flag.default));
        let off: Arc<[bool]> = match rules.iter().any(is_off) {
            true => rules.iter().map(is_off).collect(),
            false => Arc::default(),
        };
        FlagStates { flags: Arc::new(flags), off }
    }

    pub(crate) fn keep_off(&self, rule: &Rule) -> bool {
        self.off.get(rule.index).copied().unwrap_or(false)
    }

    /// What the flag of a rule says, for people.
    pub(crate) fn says(&self, followed: &FollowedFlag) -> String {
        let state = |is_on| if is_on { "on" } else { "off" };
        match self.flags.get(&followed.name) {
            Some(is_on) => format!("the flag `{}` is {}", followed.name, state(is_on)),
            None => {
                format!("the flag `{}` is unknown, and {} by default", followed.name, state(followed.default))
            }
        }
    }
}

impl RuleSet {
    /// The same rules under other flags; nothing is compiled. Flags that no rule follows are dropped.
    #[must_use]
    pub fn with_flags(self, flags: &Flags) -> Self {
        let followed = self.followed_flags();
        self.under(flags.only(&followed))
    }

    /// The names of the flags that some rule follows.
    #[must_use]
    pub fn followed_flags(&self) -> BTreeSet<String> {
        self.written().filter_map(Rule::flag).map(|flag| flag.name.clone()).collect()
    }

    /// What is known of the flags that some rule follows.
    #[must_use]
    pub fn flags(&self) -> &Flags {
        &self.flag_states().flags
    }
}

/// `when: { flag: new-limits, default: false }`.
pub(crate) fn followed(node: &Node, report: &mut Report<'_>) -> Option<FollowedFlag> {
    let what = "`when` of a rule";
    let fields = Fields::read(node, what, &WHEN_FIELDS, report)?;
    let name = fields
        .require("flag", what, "the feature flag that the rule follows: `when: { flag: new-limits }`", report)
        .and_then(|node| fields::name(node, "the flag's name", report));
    let default = match fields.get("default") {
        Some(node) => fields::flag(node, "default", report)?,
        None => false,
    };
    Some(FollowedFlag { name: name?.to_string(), default })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Source;
    use crate::matching::{Descriptor, Matches};
    use crate::ruleset::Format;
    use tidegate_core::Timestamp;

    const RULES: &str = "
domain: api
rules:
  - { name: old, key: [user], limits: [100/minute] }
  - { name: new, when: { flag: new-limits }, key: [user], limits: [10/minute], overrides: [old] }
  - { name: guard, when: { flag: guard, default: true }, limits: [1000/minute] }
";
    const NOW: Timestamp = Timestamp::from_micros(1_000_000);

    fn rules() -> RuleSet {
        RuleSet::compile(&[Source::new("a.yaml", RULES)], Format::Native).unwrap()
    }

    fn flags(states: &[(&str, bool)]) -> Flags {
        states.iter().map(|(name, is_on)| ((*name).to_owned(), *is_on)).collect()
    }

    fn matched(rules: &RuleSet) -> Vec<String> {
        let mut found = Matches::new();
        rules.matches("api", &[Descriptor { entries: &[("user", b"42")] }], NOW, &mut found).unwrap();
        found.iter().map(|one| one.rule.name().to_owned()).collect()
    }

    #[test]
    fn rule_counts_as_its_flag_says() {
        let rules = rules();
        assert!(rules.warnings().is_none(), "a rule that may be off leaves the one that it overrides a use");
        assert_eq!(matched(&rules), ["old", "guard"], "nobody was asked yet");
        let rules = rules.with_flags(&flags(&[("new-limits", true), ("guard", false)]));
        assert_eq!(matched(&rules), ["new"], "it overrides the old one");
        let rules = rules.with_flags(&flags(&[("new-limits", false), ("guard", true)]));
        assert_eq!(matched(&rules), ["old", "guard"]);
    }

    #[test]
    fn override_of_a_key_leaves_the_flags_as_they_are() {
        let rules = rules().with_flags(&flags(&[("new-limits", true)]));
        let (rules, _) = rules.with_overrides(&[]);
        assert_eq!(matched(&rules), ["new", "guard"]);
    }

    #[test]
    fn flags_that_no_rule_follows_are_dropped() {
        let rules = rules().with_flags(&flags(&[("new-limits", true), ("dark-mode", true)]));
        assert_eq!(rules.flags(), &flags(&[("new-limits", true)]));
    }

    #[test]
    fn explanation_says_what_the_flag_says() {
        let request = Descriptor { entries: &[("user", b"42")] };
        let says = |rules: &RuleSet| rules.explain("api", &request, NOW).unwrap().to_string();
        let silent = says(&rules());
        assert!(
            silent.contains("new: is off: the flag `new-limits` is unknown, and off by default"),
            "{silent}"
        );
        assert!(silent.contains("note: the flag `guard` is unknown, and on by default"), "{silent}");
        let asked = says(&rules().with_flags(&flags(&[("new-limits", true), ("guard", false)])));
        assert!(asked.contains("note: the flag `new-limits` is on"), "{asked}");
        assert!(asked.contains("guard: is off: the flag `guard` is off"), "{asked}");
    }
}
