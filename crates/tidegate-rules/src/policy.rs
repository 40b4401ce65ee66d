//! What callers know a limit by: one policy per limit, as the IETF's rate limit headers want it.
//!
//! The only limit of a rule is called as its rule is (`per-user`). Several are told apart by their windows or given names
//! (`per-user/minute`, `per-user/uploads`). A name depends on the rule alone, never on the request.

use std::borrow::Cow;

use crate::choice::LimitSet;
use crate::rule::{Rule, RuleLimit};

/// Which policy of its rule a limit is; [`Rule::policy_name`] has its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy(u16);

impl Policy {
    /// The only limit that applies.
    pub const ONLY: Policy = Policy(0);
    /// The penalty of a rule.
    pub const PENALTY: Policy = Policy(u16::MAX);
    /// The first of those without a name in the rule: a runtime override may have limits that the rule does not.
    const FIRST_UNNAMED: u16 = u16::MAX - 256;
}

/// The whole names of a rule's limits, for sets of several.
#[derive(Debug, Default)]
pub(crate) struct PolicyNames(Vec<Box<str>>);

impl PolicyNames {
    /// Numbers the limits of a set of `rule`, and names those that are new.
    pub(crate) fn add(&mut self, rule: &str, set: &mut LimitSet) {
        number(set, |name| {
            let whole = format!("{rule}/{name}");
            if let Some(known) = self.at(&whole) {
                return Some(known);
            }
            let has_room = self.0.len() < usize::from(Policy::FIRST_UNNAMED) - 1;
            has_room.then(|| {
                self.0.push(whole.into());
                policy_at(self.0.len() - 1)
            })
        });
    }

    /// Numbers the limits of a set of `rule` that came later; it adds no names.
    pub(crate) fn find(&self, rule: &str, set: &mut LimitSet) {
        number(set, |name| self.at(&format!("{rule}/{name}")));
    }

    fn at(&self, whole: &str) -> Option<Policy> {
        self.0.iter().position(|known| **known == *whole).map(policy_at)
    }
}

fn policy_at(place: usize) -> Policy {
    Policy(u16::try_from(place + 1).expect("fewer names than numbers"))
}

fn number(set: &mut LimitSet, mut of: impl FnMut(&str) -> Option<Policy>) {
    let LimitSet::Enforce(limits) = set else { return };
    if let [only] = &mut **limits {
        only.policy = Policy::ONLY;
        return;
    }
    let short: Vec<String> = limits.iter().map(short_name).collect();
    for (place, limit) in limits.iter_mut().enumerate() {
        let is_shared = short.iter().filter(|name| **name == short[place]).count() > 1;
        let name = if is_shared { &limit.name } else { &short[place] };
        let unnamed =
            || Policy(Policy::FIRST_UNNAMED.saturating_add(u16::try_from(place).unwrap_or(255).min(255)));
        limit.policy = of(name).unwrap_or_else(unnamed);
    }
}

/// The given name of a limit, or its window in a word.
fn short_name(limit: &RuleLimit) -> String {
    let slot = limit.slot();
    let word = match slot {
        "1s" => "second",
        "1m" => "minute",
        "1h" => "hour",
        "1d" => "day",
        "7d" => "week",
        // A calendar unit, and its time zone.
        _ => slot.split_once('@').map_or(slot, |(unit, _)| unit),
    };
    word.to_owned()
}

impl Rule {
    /// What callers know a limit of this rule by.
    #[must_use]
    pub fn policy_name(&self, policy: Policy) -> Cow<'_, str> {
        match policy {
            Policy::ONLY => Cow::Borrowed(self.name()),
            Policy::PENALTY => Cow::Owned(format!("{}/penalty", self.name())),
            Policy(number) => match self.policies.0.get(usize::from(number) - 1) {
                Some(name) => Cow::Borrowed(name),
                None => {
                    let nth = number.saturating_sub(Policy::FIRST_UNNAMED) + 1;
                    Cow::Owned(format!("{}/override-{nth}", self.name()))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Timestamp;

    use crate::runtime::{OverrideEffect, RuntimeOverride};
    use crate::{Descriptor, Format, MatchedLimits, Matches, RuleSet, Source};

    fn rules(rule: &str) -> RuleSet {
        let text = format!("{{ domain: d, rules: [{{ name: r, key: [user], {rule} }}] }}");
        RuleSet::compile(&[Source::new("rules", text)], Format::Native).unwrap()
    }

    fn names(rules: &RuleSet, plan: &str) -> Vec<String> {
        let mut found = Matches::new();
        let entries = [("user", b"7".as_slice()), ("plan", plan.as_bytes())];
        let now = Timestamp::from_micros(0);
        rules.matches("d", &[Descriptor { entries: &entries }], now, &mut found).unwrap();
        let MatchedLimits::Enforce(limits) = found[0].limits else { panic!("no limits") };
        limits.iter().map(|limit| found[0].rule.policy_name(limit.policy).into_owned()).collect()
    }

    #[test]
    fn the_only_limit_is_called_as_its_rule_is() {
        assert_eq!(names(&rules("limits: [100/minute]"), ""), ["r"]);
    }

    #[test]
    fn several_limits_are_told_apart_by_window_or_name() {
        let several =
            "limits: [10/s, 100/minute, 1000/5m, { algorithm: fixed_window, limit: 9, window: month },
                        { algorithm: concurrency, limit: 3, ttl: 1m, name: uploads }]";
        assert_eq!(names(&rules(several), ""), ["r/second", "r/minute", "r/5m", "r/month", "r/uploads"]);
        let same = "limits: [5/s, { algorithm: token_bucket, rate: 9/s, burst: 2 }]";
        assert_eq!(names(&rules(same), ""), ["r/sliding_log/1s", "r/token_bucket/1s"]);
    }

    #[test]
    fn a_tier_has_the_names_of_its_own_limits() {
        let tiers = rules("tiers: { on: plan, default: free, free: [1/s], pro: [9/s, 99/minute] }");
        assert_eq!(
            (names(&tiers, "free"), names(&tiers, "pro")),
            (vec!["r".to_owned()], vec!["r/second".to_owned(), "r/minute".to_owned()])
        );
    }

    #[test]
    fn a_runtime_override_keeps_the_names_of_the_windows_it_changes() {
        let with = |limits: &str| {
            let one = RuntimeOverride {
                domain: "d".into(),
                rule: Some("r".into()),
                when: vec![("user".into(), "7".into())],
                effect: OverrideEffect::Limits(limits.into()),
                until: None,
            };
            let (rules, problems) = rules("limits: [10/s, 100/minute]").with_overrides(&[one]);
            assert_eq!(problems, []);
            names(&rules, "")
        };
        assert_eq!(with("[20/s, 900000/minute]"), ["r/second", "r/minute"]);
        assert_eq!(with("[20/s, 900/hour]"), ["r/second", "r/override-2"]);
        assert_eq!(with("[900/hour]"), ["r"]);
    }
}
