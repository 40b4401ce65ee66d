//! Other services' files in our format: they compile, decide alike, and losses are reported.

use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use tidegate_rules::import::{self, Import};
use tidegate_rules::{Diagnostics, Format, RuleSet, Source};

use crate::harness::{NOW, envoy, found, native, shown, with_matches};

fn check(folder: &str, import: fn(&[Source]) -> Result<Import, Diagnostics>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("test_data/import").join(folder);
    let sources = tidegate_rules::load(&folder).expect("test data can be read");
    for source in sources {
        let path = Path::new(&source.name).to_owned();
        let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        let imported = import(&[Source { name, ..source }]).unwrap_or_else(|wrong| panic!("{wrong}"));
        if let Err(wrong) = RuleSet::compile(&[Source::new("imported", &imported.rules)], Format::Native) {
            panic!("{} became rules with mistakes:\n{wrong}", path.display());
        }
        let notes: String = imported.notes.iter().map(|note| format!("# {note}\n")).collect();
        let shown = format!("{}\n{notes}", imported.rules);
        let expected = path.with_extension("txt");
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(&expected, &shown).expect("it can be written");
        }
        let expected = fs::read_to_string(&expected).unwrap_or_default();
        assert!(expected == shown, "{} became something else:\n{shown}", path.display());
    }
}

#[test]
fn envoyproxy_ratelimit_files_become_rules_and_notes() {
    check("envoy", import::envoy);
}

#[test]
fn limitador_files_become_rules_and_notes() {
    check("limitador", import::limitador);
}

#[test]
fn a_limitador_limit_applies_to_the_same_requests_here() {
    let text = include_str!("../../test_data/import/limitador/limits.yaml")
        .replace("namespace: shop", "namespace: api");
    let imported =
        import::limitador(&[Source::new("limits.yaml", text)]).unwrap_or_else(|wrong| panic!("{wrong}"));
    let rules = native(&imported.rules);
    let post = [("req.method", "POST"), ("user_id", "1"), ("tenant", "t")];
    let with = |more: &[(&'static str, &'static str)]| found(&rules, &[&post[..], more].concat());

    assert_eq!(with(&[("req.path", "/x")]), ["limit-1 1000", "writes per user 5"]);
    assert_eq!(with(&[("req.path", "/json")]), ["limit-1 1000"]);
    assert_eq!(with(&[("req.path", "/health*")]), ["limit-1 1000"], "a star in a text is a star");
    assert_eq!(with(&[("req.path", "/health/x")]), ["limit-1 1000", "writes per user 5"]);
    assert_eq!(with(&[]), ["limit-1 1000"], "a condition on an absent attribute never holds");
    assert_eq!(found(&rules, &[("path", "/v1/x"), ("plan", "trial")]), ["limit-1 1000", "limit-3 10"]);
    assert_eq!(found(&rules, &[("path", "/v1/x"), ("plan", "pro")]), ["limit-1 1000"]);
}

#[test]
fn an_import_is_lossy_only_where_a_limit_was_left_out() {
    let limit = "namespace: shop, max_value: 5, seconds: 60, variables: []";
    let lossy = |limits: &str| {
        let imported = import::limitador(&[Source::new("limits.yaml", limits)]);
        imported.unwrap_or_else(|wrong| panic!("{wrong}")).is_lossy()
    };
    assert!(
        !lossy(&format!("[{{ {limit}, conditions: [] }}]")),
        "a window that begins elsewhere is a limit still"
    );
    assert!(
        !lossy(&format!("[{{ {limit}, conditions: [], burst: 5 }}]")),
        "a field without a meaning limits nobody"
    );
    assert!(lossy(&format!("[{{ {limit}, conditions: [\"size(path) > 3\"] }}]")));
}

#[test]
fn files_that_the_other_service_refuses_are_refused() {
    let twice = ["a.yaml", "b.yaml"].map(|name| Source::new(name, "domain: d"));
    assert!(import::envoy(&twice).is_err());
    assert!(import::envoy(&[Source::new("a.yaml", "domain: d\nrules: []")]).is_err());
    assert!(import::limitador(&[Source::new("a.yaml", "limits: 5")]).is_err());
}

/// Levels with keys in alphabetical order, none twice on a path: what rules can express exactly.
fn any_level(depth: u32) -> BoxedStrategy<Vec<Value>> {
    let key = ["k", "l", "m"][depth as usize];
    let below = if depth < 2 { any_level(depth + 1) } else { Just(Vec::new()).boxed() };
    let one = ("[xy*]{0,3}", any::<bool>(), any::<bool>(), any::<bool>(), below);
    let one = one.prop_map(move |(value, limited, shared, shadow, below)| {
        let mut one = json!({ "key": key, "value": value, "descriptors": below, "shadow_mode": shadow });
        one["share_threshold"] = json!(shared && value.contains('*'));
        if limited {
            one["rate_limit"] = json!({ "unit": "day" });
        }
        one
    });
    let unique = |mut level: Vec<Value>| {
        level.sort_by_key(|one| one["value"].to_string());
        level.dedup_by_key(|one| one["value"].to_string());
        level
    };
    (vec(one, 0..4).prop_map(unique), any::<u64>()).prop_map(shuffled).boxed()
}

/// Wildcards go by the order of the file, which sorting has undone.
fn shuffled((mut level, seed): (Vec<Value>, u64)) -> Vec<Value> {
    let mut state = seed | 1;
    for at in (1..level.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        level.swap(at, (state >> 33) as usize % (at + 1));
    }
    level
}

/// Gives each limit a unique number, to recognize it.
fn numbered(level: &mut [Value], next: &mut u32) {
    for one in level {
        if one.get("rate_limit").is_some() {
            one["rate_limit"]["requests_per_unit"] = json!(*next);
            *next += 1;
        }
        if let Some(below) = one["descriptors"].as_array_mut() {
            numbered(below, next);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn imported_rules_decide_as_the_original_does(
        mut root in any_level(0),
        requests in vec(("[xy]{0,3}", "[xy]{0,3}", "[xy]{0,3}", 1..4_usize), 1..8),
    ) {
        numbered(&mut root, &mut 1);
        let text = json!({ "domain": "api", "descriptors": root }).to_string();
        let theirs = envoy(&text);
        let imported = import::envoy(&[Source::new("theirs.json", &text)]).unwrap_or_else(|wrong| panic!("{wrong}"));
        let ours = native(&imported.rules);
        let mut cells = Vec::new();
        // A key that the file does not name is the documented difference.
        let known = ["k", "l", "m"].iter().filter(|key| text.contains(&format!("\"key\":\"{key}\""))).count();
        for (k, l, m, depth) in requests.iter().filter(|(.., depth)| *depth <= known) {
            let entries = [("k", k.as_str()), ("l", l.as_str()), ("m", m.as_str())];
            let of = |rules: &RuleSet| {
                with_matches(rules, &[&entries[..*depth]], NOW, |found| {
                    found.iter().map(|one| (shown(one.limits), one.rule.mode(), one.key.to_vec())).collect::<Vec<_>>()
                })
            };
            let (theirs, ours) = (of(&theirs), of(&ours));
            prop_assert_eq!(theirs.len(), ours.len(), "{:?}", &entries[..*depth]);
            if let (Some(theirs), Some(ours)) = (theirs.first(), ours.first()) {
                prop_assert_eq!((&theirs.0, theirs.1), (&ours.0, ours.1));
                cells.push((theirs.clone(), ours.clone()));
            }
        }
        // Requests share a counter here exactly if they do there.
        for (one, other) in cells.iter().zip(cells.iter().skip(1)) {
            let same_there = (&one.0.0, &one.0.2) == (&other.0.0, &other.0.2);
            let same_here = (&one.1.0, &one.1.2) == (&other.1.0, &other.1.2);
            prop_assert_eq!(same_there, same_here);
        }
    }
}
