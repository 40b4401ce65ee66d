//! envoyproxy/ratelimit's semantics, one by one.

use tidegate_core::Micros;
use tidegate_rules::{Format, MatchedLimits, Mode, RuleSet, Source};

use crate::harness::{NOW, envoy, found, found_in, native, with_matches};

const SHOP: &str = include_str!("../../test_data/envoy/ok/shop.yaml");

fn shop() -> RuleSet {
    envoy(&SHOP.replace("domain: shop", "domain: api"))
}

#[test]
fn an_exact_value_comes_before_wildcards_and_those_before_the_bare_key() {
    let rules = envoy(
        "{ domain: api, descriptors: [
            { key: k, rate_limit: { unit: second, requests_per_unit: 1 } },
            { key: k, value: 'ab*', rate_limit: { unit: second, requests_per_unit: 2 } },
            { key: k, value: 'a*', rate_limit: { unit: second, requests_per_unit: 3 } },
            { key: k, value: '*c', rate_limit: { unit: second, requests_per_unit: 4 } },
            { key: k, value: abc, rate_limit: { unit: second, requests_per_unit: 5 } } ] }",
    );
    for (value, expected) in [
        ("abc", "k_abc 5"),
        ("abd", "k_ab* 2"),
        ("ac", "k_a* 3"),
        ("xc", "k_*c 4"),
        ("x", "k 1"),
        ("", "k 1"),
        // The text of a wildcard is itself an exact value.
        ("a*", "k_a* 3"),
    ] {
        assert_eq!(found(&rules, &[("k", value)]), [expected], "{value}");
    }
}

#[test]
fn the_depth_of_a_descriptor_must_be_that_of_the_limit() {
    let rules = shop();
    assert_eq!(found(&rules, &[("path", "/checkout")]), ["path_/checkout 5"]);
    assert_eq!(found(&rules, &[("path", "/checkout"), ("user", "a")]), ["path_/checkout.user 20"]);
    assert!(found(&rules, &[("path", "/checkout"), ("user", "a"), ("more", "x")]).is_empty());
    assert!(
        found(&rules, &[("path", "/other"), ("user", "a")]).is_empty(),
        "there is nothing below the bare key"
    );
    assert!(found(&rules, &[("user", "a")]).is_empty());
    assert!(found(&rules, &[]).is_empty());
}

#[test]
fn a_value_without_a_limit_is_let_through_even_where_the_bare_key_has_one() {
    assert!(found(&shop(), &[("plan", "staff")]).is_empty());
}

#[test]
fn a_choice_is_never_taken_back() {
    let rules = envoy(
        "{ domain: api, descriptors: [
            { key: k, value: v, descriptors: [{ key: x, rate_limit: { unit: second, requests_per_unit: 1 } }] },
            { key: k, descriptors: [{ key: y, rate_limit: { unit: second, requests_per_unit: 2 } }] } ] }",
    );
    assert!(found(&rules, &[("k", "v"), ("y", "")]).is_empty());
    assert_eq!(found(&rules, &[("k", "w"), ("y", "")]), ["k.y 2"]);
}

#[test]
fn units_have_the_lengths_they_have_there() {
    for (unit, seconds) in [
        ("second", 1),
        ("Minute", 60),
        ("HOUR", 3_600),
        ("day", 86_400),
        ("week", 604_800),
        ("month", 30 * 86_400),
        ("year", 365 * 86_400),
    ] {
        let text = format!(
            "{{ domain: api, descriptors: [{{ key: k, rate_limit: {{ unit: {unit}, requests_per_unit: 1 }} }}] }}"
        );
        let rules = envoy(&text);
        let limit = &rules.rules().next().expect("one rule").limits().next().expect("one limit").limit;
        assert_eq!(limit.algorithm().name(), "fixed_window");
        assert_eq!(limit.period(), Some(Micros::from_secs(seconds)), "{unit}");
    }
}

#[test]
fn zero_requests_are_a_ban_and_unlimited_is_never_counted() {
    assert_eq!(found(&shop(), &[("banned", "x")]), ["banned 0"]);
    assert_eq!(found(&shop(), &[("path", "/static/a.css")]), ["path_/static/* Unlimited"]);
}

#[test]
fn a_limit_replaces_the_named_one_in_the_same_request_only() {
    let rules = shop();
    let free: &[(&str, &str)] = &[("plan", "free")];
    let trial: &[(&str, &str)] = &[("plan", "trial")];
    assert_eq!(found_in(&rules, &[free], NOW), ["plan_free 1000"]);
    assert_eq!(found_in(&rules, &[free, trial], NOW), ["plan_trial 500"]);
    assert_eq!(found_in(&rules, &[trial, free], NOW), ["plan_trial 500"]);
}

#[test]
fn what_is_unlimited_is_not_replaced_but_replaces() {
    let rules = envoy(
        "{ domain: api, descriptors: [
            { key: a, rate_limit: { unlimited: true, name: a, replaces: [{ name: b }] } },
            { key: b, rate_limit: { unit: day, requests_per_unit: 1, name: b, replaces: [{ name: a }] } } ] }",
    );
    assert_eq!(found_in(&rules, &[&[("a", "")], &[("b", "")]], NOW), ["a Unlimited"]);
}

#[test]
fn each_value_of_a_wildcard_has_its_own_counter_unless_they_share() {
    let rules = shop();
    let key = |path: &str| with_matches(&rules, &[&[("path", path)]], NOW, |found| found[0].key.to_vec());
    assert_eq!(key("/v1/export/a.csv"), key("/v2/export/b.csv"));
    assert_ne!(key("/a"), key("/b"));
    assert_eq!(key("/a"), b"\x04path\x02/a");
}

#[test]
fn sharing_above_the_limit_counts_too() {
    let rules = envoy(
        "{ domain: api, descriptors: [{ key: p, value: 'a*', share_threshold: true,
            descriptors: [{ key: u, rate_limit: { unit: day, requests_per_unit: 1 } }] }] }",
    );
    let key =
        |p: &str, u: &str| with_matches(&rules, &[&[("p", p), ("u", u)]], NOW, |found| found[0].key.to_vec());
    assert_eq!(key("a1", "x"), key("a2", "x"));
    assert_ne!(key("a1", "x"), key("a1", "y"));
}

#[test]
fn entries_that_read_the_same_when_joined_are_told_apart() {
    let rules = envoy(
        "{ domain: api, descriptors: [
            { key: a, value: b_c, rate_limit: { unit: day, requests_per_unit: 1 } },
            { key: a_b, rate_limit: { unit: day, requests_per_unit: 2 } } ] }",
    );
    assert_eq!(found(&rules, &[("a", "b_c")]), ["a_b_c 1"]);
    assert_eq!(found(&rules, &[("a_b", "c")]), ["a_b 2"]);
    assert!(found(&rules, &[("a", "b")]).is_empty());
}

#[test]
fn a_wildcard_in_the_key_is_compared_with_key_and_value_together() {
    let rules = envoy(
        "{ domain: api, descriptors: [
            { key: 'x-*', rate_limit: { unit: day, requests_per_unit: 1 } },
            { key: 'y*', value: z, rate_limit: { unit: day, requests_per_unit: 2 } } ] }",
    );
    assert_eq!(found(&rules, &[("x-user", "a")]), ["x-* 1"]);
    assert_eq!(found(&rules, &[("yes", "z")]), ["y*_z 2"]);
    assert!(found(&rules, &[("yes", "a")]).is_empty());
}

#[test]
fn a_counter_survives_when_its_descriptor_moves_to_another_limit() {
    let scope = |text: &str| {
        let rules = envoy(text);
        with_matches(&rules, &[&[("k", "v")]], NOW, |found| match found[0].limits {
            MatchedLimits::Enforce([limit]) => (limit.scope.as_bytes().to_vec(), found[0].key.to_vec()),
            other => panic!("{other:?}"),
        })
    };
    let bare =
        scope("{ domain: api, descriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: 1 } }] }");
    let exact = scope(
        "{ domain: api, descriptors: [{ key: k, value: v, rate_limit: { unit: day, requests_per_unit: 9 } }] }",
    );
    assert_eq!(bare, exact);
}

#[test]
fn shadow_and_quota_are_modes_of_the_rule() {
    let rules = shop();
    let mode = |name: &str| rules.rules().find(|rule| rule.name() == name).expect("the file has it").mode();
    assert_eq!(mode("path_/checkout.user_robot"), Mode::Shadow);
    assert_eq!(mode("plan_free"), Mode::Quota);
    assert_eq!(mode("plan_trial"), Mode::Enforce);
}

#[test]
fn both_formats_make_one_set_and_a_domain_belongs_to_one_of_them() {
    let ours = [Source::new("ours.yaml", "{ domain: ours, rules: [{ name: a, limits: [1/s] }] }")];
    let theirs = [Source::new("theirs.yaml", SHOP)];
    let both = [(&ours[..], Format::Native), (&theirs[..], Format::EnvoyRatelimit)];
    let rules = RuleSet::compile_all(&both).expect("they do not meet");
    let mut domains: Vec<&str> = rules.domains().collect();
    domains.sort_unstable();
    assert_eq!(domains, ["ours", "shop"]);

    let ours = [Source::new("ours.yaml", "{ domain: shop, rules: [] }")];
    let both = [(&ours[..], Format::Native), (&theirs[..], Format::EnvoyRatelimit)];
    let wrong = RuleSet::compile_all(&both).expect_err("both say `shop`");
    assert_eq!(wrong.iter().next().expect("one mistake").file, "theirs.yaml");
}

#[test]
fn a_format_is_known_by_its_fields() {
    assert_eq!(Format::of(&Source::new("a", SHOP)), Format::EnvoyRatelimit);
    assert_eq!(Format::of(&Source::new("a", "domain: a\nrules: []")), Format::Native);
    assert_eq!(Format::of(&Source::new("a", "neither: this")), Format::Native);
    drop(native("{ domain: a, rules: [] }"));
}
