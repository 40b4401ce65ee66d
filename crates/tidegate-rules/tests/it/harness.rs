//! Short helpers to compile a text and match requests.

use tidegate_core::Timestamp;
use tidegate_rules::{Descriptor, Format, MatchedLimits, Matches, RuleSet, Source};

/// In January 2027.
pub(crate) const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

pub(crate) fn native(text: &str) -> RuleSet {
    compile(text, Format::Native)
}

pub(crate) fn envoy(text: &str) -> RuleSet {
    compile(text, Format::EnvoyRatelimit)
}

fn compile(text: &str, format: Format) -> RuleSet {
    RuleSet::compile(&[Source::new("rules.yaml", text)], format).unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// What matches one descriptor, each as `rule limit+limit`, in the domain `api`.
pub(crate) fn found(rules: &RuleSet, entries: &[(&str, &str)]) -> Vec<String> {
    found_in(rules, &[entries], NOW)
}

/// What matches a request of several descriptors.
pub(crate) fn found_in(rules: &RuleSet, descriptors: &[&[(&str, &str)]], now: Timestamp) -> Vec<String> {
    with_matches(rules, descriptors, now, |found| {
        found.iter().map(|one| format!("{} {}", one.rule.name(), shown(one.limits))).collect()
    })
}

/// Hands what matches to `look`.
pub(crate) fn with_matches<T>(
    rules: &RuleSet,
    descriptors: &[&[(&str, &str)]],
    now: Timestamp,
    look: impl FnOnce(&Matches<'_>) -> T,
) -> T {
    let entries: Vec<Vec<(&str, &[u8])>> = descriptors
        .iter()
        .map(|entries| entries.iter().map(|(name, value)| (*name, value.as_bytes())).collect())
        .collect();
    let descriptors: Vec<Descriptor<'_>> = entries.iter().map(|entries| Descriptor { entries }).collect();
    let mut found = Matches::new();
    rules.matches("api", &descriptors, now, &mut found).expect("a known domain");
    look(&found)
}

pub(crate) fn shown(limits: MatchedLimits<'_>) -> String {
    match limits {
        MatchedLimits::Enforce(limits) => {
            limits.iter().map(|one| one.limit.quota().to_string()).collect::<Vec<_>>().join("+")
        }
        other => format!("{other:?}"),
    }
}
