//! Why a rule counts, or does not.

use tidegate_rules::{Descriptor, RuleSet};

use crate::harness::{NOW, envoy, native};

fn explained(rules: &RuleSet, entries: &[(&str, &str)]) -> String {
    let entries: Vec<(&str, &[u8])> = entries.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    rules.explain("api", &Descriptor { entries: &entries }, NOW).expect("a known domain").to_string()
}

#[test]
fn each_rule_says_whether_it_counts_and_why_not() {
    let rules = native(
        "{ domain: api, rules: [
            { name: everybody, limits: [1000/s] },
            { name: per-user, key: [user], limits: [100/minute, { algorithm: token_bucket, rate: 10/s, burst: 50 }], overrides: [everybody] },
            { name: per-key, key: [api_key], limits: [1/s] },
            { name: writes, match: { method: [POST, PUT] }, limits: [1/s] },
            { name: reads, match: { method: { is: '*', not: POST }, path: '/v1/*' }, limits: [1/s] },
            { name: plan, shadow: true, tiers: { on: plan, default: free, free: [1/s], staff: unlimited } },
            { name: staff, tiers: { on: plan, default: free, free: [1/s], pro: unlimited },
              key_overrides: [{ when: { user: '42' }, limits: unlimited }] } ] }",
    );
    let request = [("user", "42"), ("method", "GET"), ("path", "/v2/x")];
    assert_eq!(
        explained(&rules, &request),
        "\
everybody: overridden by per-user
per-user: counts, one cell for user=42 (from limits)
  sliding_log/1m: 100 by sliding_log in 1m
  token_bucket/1s: 50 by token_bucket in 5s, burst 50, rate 10/1s
per-key: skipped: the key needs `api_key`
plan: counts, but never refuses, one cell for everybody (from tier free)
  sliding_log/1s: 1 by sliding_log in 1s
staff: passes uncounted (from key_overrides, number 1)
writes: does not match: `method` is `GET`, and must be `POST` or `PUT`
reads: does not match: `path` is `/v2/x`, and must be `/v1/*`
"
    );
}

#[test]
fn a_rule_says_what_of_it_is_off_over_unknown_or_on_trial() {
    let rules = native(
        "{ domain: api, rules: [
            { name: off, enabled: false, limits: [1/s] },
            { name: nobody, key: [user], rollout: 0%, limits: [1/s] },
            { name: login, penalty: 5m, limits: [{ algorithm: sliding_log, limit: 5, window: 1m, min_interval: 1s, count_refused: true }] },
            { name: upload, limits: [{ algorithm: concurrency, limit: 3, ttl: 30s }] },
            { name: plan, key: [user], tiers: { on: plan, default: free, free: [5/s] },
              key_overrides: [{ when: { user: '42' }, limits: [9/s], until: 2026-01-01T00:00:00Z }] },
            { name: trial, key: [user], limits: [5/s], experiment: { split: 100%, limits: [6/s] } } ] }",
    );
    assert_eq!(
        explained(&rules, &[("user", "42"), ("plan", "gold")]),
        "\
login: counts, one cell for everybody (from limits)
  sliding_log/1m: 5 by sliding_log in 1m, count_refused true, min_interval 1s
  note: once refused, refused for 5m
upload: counts, one cell for everybody (from limits)
  concurrency: 3 by concurrency, ttl 30s
plan: counts, one cell for user=42 (from tier free)
  sliding_log/1s: 5 by sliding_log in 1s
  note: the tier `gold` is unknown, so the default applies
  note: key_overrides, number 1, ended at 2026-01-01T00:00:00Z
trial: counts, one cell for user=42 (from experiment)
  sliding_log/1s: 6 by sliding_log in 1s
  note: experiment on 100% of keys: this one is in `experiment`
off: is off: it says `enabled: false`
nobody: is off: this key is not among the 0% that it is rolled out to
"
    );
}

#[test]
fn a_rule_for_all_regions_says_where_it_is_counted() {
    let rules = native(
        "{ domain: api, rules: [
            { name: region, scope: region, limits: [60/minute] },
            { name: paid, scope: global, limits: [60/minute] },
            { name: trial, scope: global, consistency: eventual, sync_every: 2s, limits: [60/minute] } ] }",
    );
    let notes: Vec<String> =
        explained(&rules, &[]).lines().filter(|line| line.contains("note:")).map(str::to_owned).collect();
    assert_eq!(
        notes,
        [
            "  note: counted at home for all regions, before hits are spent",
            "  note: counted at home for all regions, which decide at once and report every 2s",
        ]
    );
}

#[test]
fn an_envoyproxy_ratelimit_limit_says_where_the_descriptor_left_its_path() {
    let rules = envoy(
        "{ domain: api, descriptors: [
            { key: path, value: '/v1/*', rate_limit: { unit: day, requests_per_unit: 5 } },
            { key: path, value: '/v1/a*', rate_limit: { unit: day, requests_per_unit: 6 } },
            { key: path, value: /v2, rate_limit: { unit: day, requests_per_unit: 7 } },
            { key: path, descriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 8 } }] } ] }",
    );
    assert_eq!(
        explained(&rules, &[("path", "/v1/a")]),
        "\
path_/v1/*: counts, one cell for path=/v1/a (from rate_limit)
  fixed_window/1d: 5 by fixed_window in 1d
path_/v1/a*: does not match: a more exact descriptor, or one earlier in the file, comes first
path_/v2: does not match: entry 1 is `path=/v1/a`, and must be `path=/v2`
path.user: does not match: it is 2 entries deep, the descriptor 1
"
    );
}

#[test]
fn an_explanation_can_be_read_by_a_program() {
    let rules = native("{ domain: api, rules: [{ name: a, key: [user], limits: [5/s] }] }");
    let explanation =
        rules.explain("api", &Descriptor { entries: &[("user", b"\xff")] }, NOW).expect("a known domain");
    let expected = serde_json::json!({ "domain": "api", "rules": [{
        "rule": "a", "says": "counts, one cell for user=\u{fffd} (from limits)\n  sliding_log/1s: 5 by sliding_log in 1s",
        "outcome": "counts", "mode": "enforce", "from": "limits", "key": ["user=\u{fffd}"],
        "limits": [{ "name": "sliding_log/1s", "algorithm": "sliding_log", "limit": 5, "window": "1s" }],
    }] });
    assert_eq!(serde_json::to_value(&explanation).expect("it is plain data"), expected);
}

#[test]
fn a_rule_that_leases_to_clients_shows_the_limits_that_count() {
    let rules = native(
        "{ domain: api, rules: [{ name: ahead, lease_to_clients: true, limits: [20/16s,
            { algorithm: token_bucket, rate: 100/s, burst: 500 }, { algorithm: fixed_window, limit: 5, window: 1m }] }] }",
    );
    let explained = explained(&rules, &[]);
    // Hits may be held for a second, and those of a burst of five seconds for a 16th of that.
    for part in [
        "20 by sliding_log in 17s",
        "burst 468, rate 100/1s",
        "5 by fixed_window in 1m",
        "clients may take hits and spend them within 312500us",
    ] {
        assert!(explained.contains(part), "{part} is not in {explained}");
    }
}
