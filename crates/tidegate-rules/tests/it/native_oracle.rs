//! The matcher compared with one that tests every rule, on generated rule sets.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::harness::{NOW, native, shown, with_matches};

#[derive(Clone, Debug)]
struct Rule {
    conditions: Vec<(usize, Test)>,
    key: Vec<usize>,
    refuses: bool,
    shadow: bool,
    overrides: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Test {
    is: Option<Vec<String>>,
    not: Option<Vec<String>>,
}

const ATTRIBUTES: [&str; 3] = ["a", "b", "c"];

fn any_rule() -> impl Strategy<Value = Rule> {
    let patterns = || vec("[xy/*]{0,7}", 1..3);
    let test = prop_oneof![
        4 => patterns().prop_map(|is| Test { is: Some(is), not: None }),
        2 => patterns().prop_map(|not| Test { is: None, not: Some(not) }),
        2 => (patterns(), patterns()).prop_map(|(is, not)| Test { is: Some(is), not: Some(not) }),
    ];
    let conditions = vec((0..3_usize, test), 0..3).prop_map(|mut conditions| {
        conditions.sort_by_key(|(attribute, _)| *attribute);
        conditions.dedup_by_key(|(attribute, _)| *attribute);
        conditions
    });
    let key = proptest::sample::subsequence(vec![0, 1, 2], 0..=2);
    (conditions, key, any::<bool>(), any::<bool>(), vec(1..20_usize, 0..2)).prop_map(
        |(conditions, key, refuses, shadow, overrides)| Rule { conditions, key, refuses, shadow, overrides },
    )
}

fn any_request() -> impl Strategy<Value = Vec<Vec<(usize, String)>>> {
    vec(vec((0..3_usize, "[xy/]{0,6}"), 0..4), 1..3)
}

fn document(rules: &[Rule]) -> String {
    let rule = |(number, rule): (usize, &Rule)| {
        let condition = |test: &Test| match (&test.is, &test.not) {
            (Some(is), None) => json!(is),
            (None, not) => json!({ "not": not }),
            (is, not) => json!({ "is": is, "not": not }),
        };
        let conditions: serde_json::Map<String, Value> =
            rule.conditions.iter().map(|(at, test)| (ATTRIBUTES[*at].into(), condition(test))).collect();
        json!({
            "name": format!("r{number}"),
            "match": conditions,
            "key": rule.key.iter().map(|at| ATTRIBUTES[*at]).collect::<Vec<_>>(),
            "on_missing_key": if rule.refuses { "refuse" } else { "skip" },
            "shadow": rule.shadow,
            "limits": [format!("{}/s", number + 1)],
            "overrides": overridden(rules, number).map(|other| format!("r{other}")).collect::<Vec<_>>(),
        })
    };
    json!({ "domain": "api", "rules": rules.iter().enumerate().map(rule).collect::<Vec<_>>() }).to_string()
}

/// Rules override only later ones, so that there is no circle.
fn overridden(rules: &[Rule], number: usize) -> impl Iterator<Item = usize> {
    rules[number].overrides.iter().map(move |step| number + step).filter(|other| *other < rules.len())
}

fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], _) => text.is_empty(),
        ([b'*', rest @ ..], _) => glob(rest, text) || (!text.is_empty() && glob(pattern, &text[1..])),
        ([first, rest @ ..], [head, tail @ ..]) => first == head && glob(rest, tail),
        (_, []) => false,
    }
}

fn holds(test: &Test, value: Option<&str>) -> bool {
    let is_one_of = |patterns: &Vec<String>| {
        value.is_some_and(|value| patterns.iter().any(|one| glob(one.as_bytes(), value.as_bytes())))
    };
    test.is.as_ref().is_none_or(is_one_of) && !test.not.as_ref().is_some_and(is_one_of)
}

/// Descriptor, rule, limits, key: what must be found, by testing every rule.
fn expected(rules: &[Rule], request: &[Vec<(usize, String)>]) -> Vec<(usize, usize, String, Vec<u8>)> {
    let mut found = Vec::new();
    for (number, descriptor) in request.iter().enumerate() {
        let value =
            |at: usize| descriptor.iter().find(|(other, _)| *other == at).map(|(_, value)| value.as_str());
        for (index, rule) in rules.iter().enumerate() {
            if !rule.conditions.iter().all(|(at, test)| holds(test, value(*at))) {
                continue;
            }
            let parts: Option<Vec<&str>> = rule.key.iter().map(|at| value(*at)).collect();
            let (asks, key) = match parts {
                Some(parts) => {
                    let key = parts.iter().flat_map(|part| [&[part.len() as u8], part.as_bytes()].concat());
                    ((index + 1).to_string(), key.collect())
                }
                None => (format!("KeyMissing({})", if rule.refuses { "Refuse" } else { "Skip" }), Vec::new()),
            };
            found.push((number, index, asks, key));
        }
    }
    let all = found.clone();
    found.retain(|(_, one, ..)| {
        !all.iter().any(|(_, by, asks, _)| {
            overridden(rules, *by).any(|other| other == *one)
                && asks != "KeyMissing(Skip)"
                && (!rules[*by].shadow || rules[*one].shadow)
        })
    });
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_index_finds_what_looking_at_every_rule_finds(
        rules in vec(any_rule(), 0..20),
        request in any_request(),
    ) {
        let compiled = native(&document(&rules));
        let named: Vec<Vec<(&str, &str)>> = request
            .iter()
            .map(|entries| entries.iter().map(|(at, value)| (ATTRIBUTES[*at], value.as_str())).collect())
            .collect();
        let descriptors: Vec<&[(&str, &str)]> = named.iter().map(Vec::as_slice).collect();
        let found = with_matches(&compiled, &descriptors, NOW, |found| {
            found
                .iter()
                .map(|one| (one.descriptor, one.rule.index(), shown(one.limits), one.key.to_vec()))
                .collect::<Vec<_>>()
        });
        prop_assert_eq!(found, expected(&rules, &request));
    }
}
