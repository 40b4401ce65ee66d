//! Which rules of our own format a request meets, with which limits and cells.

use tidegate_core::{Micros, Timestamp};
use tidegate_rules::{Coordination, Format, Mode, OnStoreFailure, Priority, RuleSet, Source};

use crate::harness::{NOW, found, found_in, native, shown, with_matches};

#[test]
fn the_contract_s_example_compiles_and_matches() {
    let rules = native(include_str!("../../test_data/ok/contract.yaml"));
    let request =
        [("user", "42"), ("method", "POST"), ("path", "/v1/items"), ("api_key", "x"), ("plan", "pro")];
    assert_eq!(found(&rules, &request), ["per-user 100+50+20+10000+11+10", "per-plan 1000+50000"]);
}

#[test]
fn a_rule_without_match_is_for_every_request() {
    let rules = native("{ domain: api, rules: [{ name: all, limits: [5/s] }] }");
    assert_eq!(found(&rules, &[]), ["all 5"]);
    assert_eq!(found(&rules, &[("path", "/")]), ["all 5"]);
}

#[test]
fn an_absent_attribute_is_not_what_it_must_not_be() {
    let rules = native(
        "{ domain: api, rules: [
            { name: not, match: { plan: { not: [pro, 'ent*'] } }, limits: [1/s] },
            { name: present-but-not, match: { plan: { is: '*', not: pro } }, limits: [1/s] },
            { name: absent, match: { plan: { not: '*' } }, limits: [1/s] },
            { name: present, match: { plan: '*' }, limits: [1/s] } ] }",
    );
    assert_eq!(found(&rules, &[]), ["not 1", "absent 1"]);
    assert_eq!(found(&rules, &[("plan", "pro")]), ["present 1"]);
    assert_eq!(found(&rules, &[("plan", "free")]), ["not 1", "present-but-not 1", "present 1"]);
    assert_eq!(found(&rules, &[("plan", "enterprise")]), ["present-but-not 1", "present 1"]);
}

#[test]
fn a_missing_key_skips_or_refuses_as_the_rule_says() {
    let rules = native(
        "{ domain: api, rules: [
            { name: skips, key: [user], limits: [1/s] },
            { name: refuses, key: [user], on_missing_key: refuse, limits: [1/s] } ] }",
    );
    assert_eq!(found(&rules, &[]), ["skips KeyMissing(Skip)", "refuses KeyMissing(Refuse)"]);
    assert_eq!(found(&rules, &[("user", "")]), ["skips 1", "refuses 1"]);
}

#[test]
fn keys_that_read_the_same_when_joined_are_different_cells() {
    let rules = native("{ domain: api, rules: [{ name: pair, key: [a, b], limits: [1/s] }] }");
    let key = |a, b| with_matches(&rules, &[&[("a", a), ("b", b)]], NOW, |found| found[0].key.to_vec());
    assert_ne!(key("a_b", "c"), key("a", "b_c"));
    assert_ne!(key("ab", ""), key("a", "b"));
    assert_eq!(key("a", "b"), b"\x01a\x01b");
}

#[test]
fn a_key_has_the_hash_of_a_secret_and_conditions_its_value() {
    let text = "
domain: api
rules:
  - { name: default, match: { api_key: 'sk-*' }, key: [api_key], limits: [1/s] }
  - { name: listed, key: [user], hash: [user], limits: [1/s] }
  - { name: none, key: [token], hash: [], limits: [1/s] }
  - { name: tag, key: [plan], colocate: Authorization, limits: [1/s] }
";
    let (rules, secret) = (native(text), "sk-1234");
    let request =
        [("api_key", secret), ("user", secret), ("token", secret), ("plan", "p"), ("Authorization", secret)];
    let keys = with_matches(&rules, &[&request], NOW, |found| {
        found.iter().map(|one| (one.rule.name().to_owned(), one.key.to_vec())).collect::<Vec<_>>()
    });
    // printf %s sk-1234 | sha256sum
    let hash = b"\x21#88dc28d0f030c55ed4ab77ed8faf0981";
    let expected = [
        ("default", hash.to_vec()),
        ("listed", hash.to_vec()),
        ("none", b"\x07sk-1234".to_vec()),
        ("tag", [&b"\x01p"[..], hash].concat()),
    ];
    assert_eq!(keys, expected.map(|(name, key)| (name.to_owned(), key)));
}

#[test]
fn of_two_attributes_of_one_name_the_first_counts() {
    let rules = native("{ domain: api, rules: [{ name: r, match: { a: x }, key: [a], limits: [1/s] }] }");
    assert_eq!(found(&rules, &[("a", "x"), ("a", "y")]), ["r 1"]);
    assert!(found(&rules, &[("a", "y"), ("a", "x")]).is_empty());
}

#[test]
fn a_tier_is_chosen_by_its_attribute_and_unknown_ones_get_the_default() {
    let rules = native(
        "{ domain: api, rules: [{ name: plan, tiers: { on: plan, default: free, free: [1/s], pro: [10/s], in: unlimited } }] }",
    );
    assert_eq!(found(&rules, &[]), ["plan 1"]);
    assert_eq!(found(&rules, &[("plan", "gold")]), ["plan 1"]);
    assert_eq!(found(&rules, &[("plan", "pro")]), ["plan 10"]);
    assert_eq!(found(&rules, &[("plan", "in")]), ["plan Unlimited"]);
    assert_eq!(found(&rules, &[("plan", "default")]), ["plan 1"], "a word of the format is no tier");
}

#[test]
fn a_single_key_has_its_own_limits_until_they_end() {
    let rules = native(
        "{ domain: api, rules: [{ name: r, key: [k], limits: [1/s], key_overrides: [
            { when: { k: acme }, limits: [5/s], until: 2027-01-01T00:00:00Z },
            { when: { t: x, k: acme }, limits: [7/s] },
            { when: { k: acme }, limits: [6/s] } ] }] }",
    );
    let new_year: jiff::Timestamp = "2027-01-01T00:00:00Z".parse().expect("it is a moment");
    let ends = Timestamp::from_micros(u64::try_from(new_year.as_microsecond()).expect("after 1970"));
    let at = |entries: &[(&str, &str)], now| found_in(&rules, &[entries], now);
    assert_eq!(at(&[("k", "acme")], ends.back(Micros::ONE)), ["r 5"]);
    assert_eq!(at(&[("k", "acme")], ends), ["r 6"]);
    assert_eq!(at(&[("k", "acme"), ("t", "x")], ends), ["r 7"], "the first that fits counts");
    assert_eq!(at(&[("k", "other")], ends), ["r 1"]);
}

#[test]
fn limits_of_a_tier_and_of_a_single_key_spend_from_the_same_cells() {
    let rules = native(
        "{ domain: api, rules: [{ name: r, key: [k], tiers: { on: p, default: a, a: [1/m], b: [9/m] },
           key_overrides: [{ when: { k: x }, limits: [5/m] }] }] }",
    );
    let scope = |entries: &[(&str, &str)]| {
        with_matches(&rules, &[entries], NOW, |found| match found[0].limits {
            tidegate_rules::MatchedLimits::Enforce([limit]) => limit.scope.as_bytes().to_vec(),
            other => panic!("{other:?}"),
        })
    };
    let of_tier_a = scope(&[("k", "y")]);
    assert_eq!(of_tier_a, scope(&[("k", "y"), ("p", "b")]));
    assert_eq!(of_tier_a, scope(&[("k", "x")]));
}

#[test]
fn a_changed_number_keeps_its_cells_and_a_changed_window_or_algorithm_does_not() {
    let scope = |limit: &str| {
        let text = format!("{{ domain: api, rules: [{{ name: r, limits: [{limit}] }}] }}");
        let rules = native(&text);
        let rule = rules.rules().next().expect("there is one");
        rule.limits().next().expect("there is one").scope.as_bytes().to_vec()
    };
    let usual = scope("100/minute");
    assert_eq!(usual, scope("50/60s"));
    assert_eq!(usual, scope("{ algorithm: sliding_log, limit: 7, window: 1m }"));
    // Above a hundred the shorthand is a counter, and goes on from what the log counted.
    assert_eq!(usual, scope("101/minute"));
    assert_eq!(usual, scope("{ algorithm: sliding_window, limit: 7, window: 1m }"));
    for other in [
        "100/hour",
        "{ algorithm: fixed_window, limit: 100, window: 1m }",
        "{ algorithm: fixed_window, limit: 100, window: month }",
        "{ algorithm: fixed_window, limit: 100, window: month, tz: Europe/Paris }",
        "{ limit: 100, window: 1m, name: other }",
        "{ algorithm: concurrency, limit: 100 }",
    ] {
        assert_ne!(usual, scope(other), "{other}");
    }
    let month =
        |tz: &str| scope(&format!("{{ algorithm: fixed_window, limit: 1, window: month, tz: {tz} }}"));
    assert_ne!(month("Europe/Paris"), month("Europe/Rome"));
    assert_eq!(month("UTC"), scope("{ algorithm: fixed_window, limit: 9, window: month }"));
}

#[test]
fn a_rule_that_matches_switches_off_those_it_overrides() {
    let rules = native(
        "{ domain: api, rules: [
            { name: global, limits: [1/s] },
            { name: tenant, match: { tenant: '*' }, limits: [2/s], overrides: [global] },
            { name: endpoint, match: { path: /x }, limits: [3/s], overrides: [tenant] } ] }",
    );
    assert_eq!(found(&rules, &[]), ["global 1"]);
    assert_eq!(found(&rules, &[("tenant", "a")]), ["tenant 2"]);
    assert_eq!(found(&rules, &[("tenant", "a"), ("path", "/x")]), ["endpoint 3"]);
    assert_eq!(found(&rules, &[("path", "/x")]), ["global 1", "endpoint 3"]);
}

#[test]
fn overriding_spans_the_descriptors_of_one_request() {
    let rules = native(
        "{ domain: api, rules: [
            { name: general, match: { user: '*' }, limits: [1/s] },
            { name: special, match: { path: /x }, limits: [2/s], overrides: [general] } ] }",
    );
    let descriptors: [&[(&str, &str)]; 2] = [&[("user", "a")], &[("path", "/x")]];
    assert_eq!(found_in(&rules, &descriptors, NOW), ["special 2"]);
}

#[test]
fn leaving_out_the_key_of_the_overriding_rule_does_not_lift_the_overridden_one() {
    let rules = native(
        "{ domain: api, rules: [
            { name: per-ip, key: [ip], limits: [1/s] },
            { name: per-user, key: [user], limits: [9/s], overrides: [per-ip] } ] }",
    );
    assert_eq!(found(&rules, &[("ip", "::1"), ("user", "a")]), ["per-user 9"]);
    assert_eq!(found(&rules, &[("ip", "::1")]), ["per-ip 1", "per-user KeyMissing(Skip)"]);
}

#[test]
fn a_rule_on_trial_does_not_switch_off_an_enforced_one() {
    let rules = native(
        "{ domain: api, rules: [
            { name: live, limits: [1/s] },
            { name: old-trial, limits: [2/s], shadow: true },
            { name: trial, limits: [3/s], shadow: true, overrides: [live, old-trial] } ] }",
    );
    assert_eq!(found(&rules, &[]), ["live 1", "trial 3"]);
}

#[test]
fn cells_are_tagged_by_their_key_or_by_the_attribute_they_are_kept_together_by() {
    let rules = native(
        "{ domain: api, rules: [
            { name: by-key, key: [user, tenant], limits: [1/s] },
            { name: within, key: [user, tenant], colocate: tenant, limits: [1/s] },
            { name: beside, key: [user], colocate: tenant, limits: [1/s] },
            { name: tenants, key: [tenant], limits: [1/s] } ] }",
    );
    let entries: &[(&str, &str)] = &[("user", "u"), ("tenant", "t")];
    with_matches(&rules, &[entries], NOW, |found| {
        let tags: Vec<&[u8]> = found.iter().map(|one| one.tag()).collect();
        assert_eq!(tags, [b"\x01u\x01t".as_slice(), b"\x01t", b"\x01t", b"\x01t"]);
        assert_eq!(*found[2].key, *b"\x01u\x01t", "where a cell lives is part of which cell it is");
    });
    with_matches(&rules, &[&[("user", "u")]], NOW, |found| {
        let beside = found.iter().find(|one| one.rule.name() == "beside").expect("its key is there");
        assert_eq!(*beside.key, *b"\x01u");
    });
}

#[test]
fn what_a_rule_says_besides_its_limits_is_carried() {
    let rules = native(include_str!("../../test_data/ok/everything.yaml"));
    let rule = rules.rules().find(|rule| rule.name() == "refusing").expect("the file has it");
    assert_eq!(rule.domain(), "everything");
    assert_eq!(rule.mode(), Mode::Shadow);
    assert_eq!(rule.on_store_failure(), OnStoreFailure::Closed);
    assert_eq!(rule.coordination(), Coordination::Approximate { sync_every: Micros::from_millis(500) });
    assert_eq!(rule.priority(), Some(Priority::P0));
    assert_eq!(rule.key(), ["user", "tenant"]);
    let indices: Vec<usize> = rules.rules().map(|rule| rule.index()).collect();
    assert_eq!(indices, (0..rules.rules().len()).collect::<Vec<_>>());
}

#[test]
fn an_unknown_domain_is_told_apart_from_one_without_matches() {
    let rules = native("{ domain: api, rules: [] }");
    let mut matches = tidegate_rules::Matches::new();
    assert!(rules.matches("api", &[], NOW, &mut matches).is_ok());
    let unknown = rules.matches("ap", &[], NOW, &mut matches).expect_err("nobody wrote `ap`");
    assert_eq!(unknown.to_string(), "unknown domain `ap`");
    assert_eq!(rules.domains().collect::<Vec<_>>(), ["api"]);
    assert!(rules.has_domain("api") && !rules.has_domain("ap"));
}

#[test]
fn values_need_not_be_text() {
    let rules = native("{ domain: api, rules: [{ name: r, match: { k: 'a*' }, key: [k], limits: [1/s] }] }");
    let entries: [(&str, &[u8]); 1] = [("k", b"a\xff\x00")];
    let mut found = tidegate_rules::Matches::new();
    let descriptor = tidegate_rules::Descriptor { entries: &entries };
    rules.matches("api", &[descriptor], NOW, &mut found).expect("a known domain");
    assert_eq!(*found[0].key, *b"\x03a\xff\x00");
}

#[test]
fn a_rule_that_is_off_matches_nothing_and_overrides_nothing() {
    let rules = native(
        "{ domain: api, rules: [
            { name: global, limits: [1/s] },
            { name: off, enabled: false, limits: [2/s], overrides: [global] } ] }",
    );
    assert_eq!(found(&rules, &[]), ["global 1"]);
    assert!(!rules.rules().nth(1).expect("it is there").is_enabled());
}

#[test]
fn a_rollout_takes_its_share_of_keys_and_the_same_ones_every_time() {
    let rules = native("{ domain: api, rules: [{ name: new, key: [user], rollout: 10%, limits: [1/s] }] }");
    let taken = || -> Vec<usize> {
        (0..5_000).filter(|user| !found(&rules, &[("user", &user.to_string())]).is_empty()).collect()
    };
    let first = taken();
    assert!((400..600).contains(&first.len()), "{} of 5,000", first.len());
    assert_eq!(first, taken());
}

#[test]
fn an_experiment_gives_a_share_of_keys_other_limits_and_says_which_side_a_request_is_on() {
    let rules = native(
        "{ domain: api, rules: [{ name: r, key: [user], limits: [5/s], experiment: { split: 20%, limits: [9/s] },
            key_overrides: [{ when: { user: vip }, limits: [7/s] }] }] }",
    );
    let side = |user: &str| {
        with_matches(&rules, &[&[("user", user)]], NOW, |found| {
            (shown(found[0].limits), found[0].variant.map(tidegate_rules::Variant::name))
        })
    };
    let sides: Vec<_> = (0..5_000).map(|user| side(&user.to_string())).collect();
    let tried = sides.iter().filter(|side| **side == ("9".to_owned(), Some("experiment"))).count();
    let usual = sides.iter().filter(|side| **side == ("5".to_owned(), Some("control"))).count();
    assert_eq!(tried + usual, 5_000);
    assert!((850..1_150).contains(&tried), "{tried} of 5,000");
    assert_eq!(side("vip"), ("7".to_owned(), None));
}

#[test]
fn an_override_keeps_the_tiers_other_limits_unless_told_otherwise() {
    let rules = native(
        "{ domain: api, rules: [{ name: r, key: [k],
            tiers: { on: plan, default: free, free: [100/minute, 1000/hour], pro: [1000/minute, { algorithm: concurrency, limit: 5 }], all: unlimited },
            key_overrides: [
                { when: { k: acme }, limits: [5000/minute] },
                { when: { k: alone }, limits: [5000/minute], keep_others: false },
                { when: { k: slot }, limits: [{ algorithm: concurrency, limit: 50 }] },
                { when: { k: free }, limits: unlimited } ] }] }",
    );
    let of = |key: &str, plan: &str| found(&rules, &[("k", key), ("plan", plan)]);
    assert_eq!(of("acme", "free"), ["r 5000+1000"]);
    assert_eq!(of("acme", "pro"), ["r 5000+5"]);
    assert_eq!(of("acme", "all"), ["r 5000"]);
    assert_eq!(of("alone", "free"), ["r 5000"]);
    assert_eq!(of("slot", "pro"), ["r 50+1000"]);
    assert_eq!(of("free", "pro"), ["r Unlimited"]);
}

#[test]
fn a_domain_may_be_spread_over_files_each_with_defaults_of_its_own() {
    let one = Source::new(
        "one.yaml",
        "{ domain: api, defaults: { owner: a, shadow: true }, rules: [{ name: global, limits: [1/s] }] }",
    );
    let two = Source::new(
        "two.yaml",
        "{ domain: api, defaults: { owner: b }, rules: [{ name: user, key: [user], limits: [2/s], overrides: [global] },
            { name: other, owner: c, limits: [3/s] }] }",
    );
    let rules = RuleSet::compile(&[one, two], Format::Native).expect("it compiles");
    let owners: Vec<_> = rules.rules().map(|rule| (rule.name(), rule.owner(), rule.mode())).collect();
    assert_eq!(
        owners,
        [
            ("global", Some("a"), Mode::Shadow),
            ("user", Some("b"), Mode::Enforce),
            ("other", Some("c"), Mode::Enforce)
        ]
    );
    assert_eq!(found(&rules, &[("user", "x")]), ["user 2", "other 3"]);
}
