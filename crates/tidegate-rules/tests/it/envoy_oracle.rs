//! The level by level matcher against a plain walk over joined keys, as envoyproxy/ratelimit describes it.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::harness::{NOW, envoy, with_matches};

#[derive(Clone, Debug)]
struct Descriptor {
    key: String,
    value: String,
    limited: bool,
    below: Vec<Descriptor>,
}

impl Descriptor {
    fn joined(&self) -> String {
        if self.value.is_empty() { self.key.clone() } else { format!("{}_{}", self.key, self.value) }
    }
}

fn any_level() -> impl Strategy<Value = Vec<Descriptor>> {
    // Keys without `_`: only those are compared there as they are here.
    let step = || ("[kl]|k[*]", "[xy*]{0,3}", any::<bool>());
    let leaf = step().prop_map(|(key, value, limited)| Descriptor { key, value, limited, below: Vec::new() });
    let tree = leaf.prop_recursive(2, 24, 4, move |inner| {
        (step(), vec(inner, 0..4)).prop_map(|((key, value, limited), below)| Descriptor {
            key,
            value,
            limited,
            below: unique(below),
        })
    });
    vec(tree, 0..6).prop_map(unique)
}

/// The format refuses two descriptors side by side that are joined alike.
fn unique(mut level: Vec<Descriptor>) -> Vec<Descriptor> {
    let mut seen = BTreeSet::new();
    level.retain(|descriptor| seen.insert(descriptor.joined()));
    level
}

fn document(level: &[Descriptor], count: &mut u32) -> Value {
    let mut list = Vec::new();
    for descriptor in level {
        let mut one = json!({ "key": descriptor.key, "value": descriptor.value });
        if descriptor.limited {
            *count += 1;
            one["rate_limit"] = json!({ "unit": "day", "requests_per_unit": *count });
        }
        one["descriptors"] = document(&descriptor.below, count);
        list.push(one);
    }
    json!(list)
}

fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], _) => text.is_empty(),
        ([b'*', rest @ ..], _) => glob(rest, text) || (!text.is_empty() && glob(pattern, &text[1..])),
        ([first, rest @ ..], [head, tail @ ..]) => first == head && glob(rest, tail),
        (_, []) => false,
    }
}

/// The path of the limit that applies, as the service's description says.
fn expected(root: &[Descriptor], entries: &[(String, String)]) -> Option<String> {
    let mut level = root;
    let mut path = Vec::new();
    for (at, (key, value)) in entries.iter().enumerate() {
        let joined = format!("{key}_{value}");
        let exact = level.iter().find(|one| one.joined() == joined);
        let wild = || {
            let is_wild = |one: &&Descriptor| one.joined().contains('*');
            level.iter().filter(is_wild).find(|one| glob(one.joined().as_bytes(), joined.as_bytes()))
        };
        let bare = || level.iter().find(|one| one.joined() == *key);
        let chosen = exact.or_else(wild).or_else(bare)?;
        path.push(chosen.joined());
        if at + 1 == entries.len() {
            return chosen.limited.then(|| path.join("."));
        }
        level = &chosen.below;
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_matcher_chooses_what_the_description_says(
        root in any_level(),
        requests in vec(vec(("[kl]", "[xy*]{0,3}"), 1..4), 1..8),
    ) {
        let text = json!({ "domain": "api", "descriptors": document(&root, &mut 0) }).to_string();
        let rules = envoy(&text);
        for entries in &requests {
            let borrowed: Vec<(&str, &str)> = entries.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            let found = with_matches(&rules, &[&borrowed], NOW, |found| {
                found.first().map(|one| one.rule.name().to_owned())
            });
            prop_assert_eq!(found, expected(&root, entries), "{:?}", entries);
        }
    }
}
