//! Which rules of our own format a request meets, with which limits and cells.

use tidegate_core::Timestamp;
use tidegate_rules::{Descriptor, Format, Limits, Matches, RuleSet, Source};

fn rules(text: &str) -> RuleSet {
    match RuleSet::compile(&[Source::new("rules.yaml", text)], Format::Native) {
        Ok(rules) => rules,
        Err(wrong) => panic!("{wrong}"),
    }
}

/// The names of the rules that match, each with what it asks.
fn found(rules: &RuleSet, entries: &[(&str, &str)]) -> Vec<String> {
    let entries: Vec<(&str, &[u8])> = entries.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    let mut found = Matches::new();
    let now = Timestamp::from_micros(1_800_000_000_000_000);
    rules.matches("api", &[Descriptor { entries: &entries }], now, &mut found).expect("a known domain");
    let describe = |limits: Limits<'_>| match limits {
        Limits::Enforce(limits) => {
            limits.iter().map(|one| one.limit.quota().to_string()).collect::<Vec<_>>().join("+")
        }
        other => format!("{other:?}"),
    };
    found.iter().map(|one| format!("{} {}", one.rule.name(), describe(one.limits))).collect()
}

#[test]
fn the_contract_s_example_compiles_and_matches() {
    let rules = rules(include_str!("../../test_data/ok/contract.yaml"));
    let request = [
        ("user", "42"),
        ("tenant", "a"),
        ("method", "POST"),
        ("path", "/v1/items"),
        ("api_key", "x"),
        ("plan", "pro"),
    ];
    assert_eq!(found(&rules, &request), ["per-user 100+50+20+10000+11+10", "per-plan 1000+50000"]);
}
