//! Rules in code mean what the same rules in a file mean, and are refused for the same reasons.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::Micros;
use tidegate_rules::code::{
    CalendarWindow, Concurrency, FixedWindow, KeyOverride, LeakyBucket, Limit, Rule, Rules, SlidingLog,
    SlidingWindow, Tiers, TokenBucket,
};
use tidegate_rules::{Coordination, Format, OnMissingKey, OnStoreFailure, Priority, RuleSet, Source};

/// All that is known of compiled rules, in an order that no hash map changes.
fn known(rules: &RuleSet) -> Vec<String> {
    let text: String = rules.rules().map(|rule| format!("{rule:?}, ")).collect();
    let mut parts: Vec<String> =
        text.split(&[',', '{', '}'][..]).map(|part| part.trim().to_owned()).collect();
    parts.sort();
    parts
}

fn check(code: Rule, yaml: &str) {
    let rules = Rules::new("api").rule(code);
    let file = Source::new("file", format!("domain: api\nrules:\n  - {yaml}"));
    let file = RuleSet::compile(&[file], Format::Native).unwrap_or_else(|error| panic!("{error}"));
    let code = rules.compile().unwrap_or_else(|error| panic!("{error}\n{rules}"));
    assert_eq!(known(&code), known(&file), "{rules}");
}

#[test]
fn a_rule_in_code_is_the_rule_of_a_file() {
    let second = Duration::from_secs(1);
    check(
        Rule::new("buckets")
            .matches("method", ["POST", "PUT"])
            .matches("path", "/v1/*")
            .matches_not("user", "admin")
            .key(["user", "tenant"])
            .on_missing_key(OnMissingKey::Refuse)
            .limit(TokenBucket::per_minute(100).burst(20))
            .limit(LeakyBucket::per(5, second * 2).max_delay(second * 2)),
        "{ name: buckets, match: { method: [POST, PUT], path: /v1/*, user: { not: admin } }, key: [user, tenant],
           on_missing_key: refuse, limits: [{ algorithm: token_bucket, rate: 100/minute, burst: 20 },
           { algorithm: leaky_bucket, rate: 5/2s, max_delay: 2s }] }",
    );
    check(
        Rule::new("windows")
            .limit("100/minute")
            .limit(SlidingWindow::per_hour(5_000).name("hourly"))
            .limit(SlidingLog::per(20, second * 3_600).min_interval(second / 5).count_refused())
            .limit(FixedWindow::per_calendar(10_000, CalendarWindow::Month).tz("Europe/Paris"))
            .limit(FixedWindow::per_day(9_000).name("daily"))
            .limit(Concurrency::new(10).ttl(second * 60).name("uploads")),
        "{ name: windows, limits: [100/minute, { algorithm: sliding_window, limit: 5000, window: 1h, name: hourly },
           { algorithm: sliding_log, limit: 20, window: 1h, min_interval: 200ms, count_refused: true },
           { algorithm: fixed_window, limit: 10000, window: month, tz: Europe/Paris },
           { algorithm: fixed_window, limit: 9000, window: 1d, name: daily },
           { algorithm: concurrency, limit: 10, ttl: 60s, name: uploads }] }",
    );
    check(
        Rule::new("per-plan")
            .key(["api_key"])
            .tiers(
                Tiers::on("plan")
                    .tier("free", ["100/minute", "1000/hour"])
                    .tier("pro", TokenBucket::per_second(50).burst(100))
                    .tier("internal", "unlimited")
                    .default_tier("free"),
            )
            .key_override(
                KeyOverride::when("api_key", "acme", "5000/minute")
                    .until("2027-01-01T00:00:00Z")
                    .keep_others(false),
            )
            .on_store_failure(OnStoreFailure::Closed)
            .coordination(Coordination::Approximate { sync_every: Micros::from_millis(250) })
            .colocate("api_key")
            .priority(Priority::P1)
            .penalty(second * 300)
            .rollout(25)
            .description("what a plan \"buys\"\nand no more")
            .owner("billing")
            .enabled(true)
            .shadow(),
        r#"{ name: per-plan, key: [api_key], tiers: { on: plan, default: free, free: [100/minute, 1000/hour],
             pro: [{ algorithm: token_bucket, rate: 50/s, burst: 100 }], internal: unlimited },
             key_overrides: [{ when: { api_key: acme }, limits: [5000/minute], until: 2027-01-01T00:00:00Z, keep_others: false }],
             on_store_failure: closed, coordination: approximate, sync_every: 250ms, colocate: api_key, priority: P1,
             penalty: 5m, rollout: 25%, description: "what a plan \"buys\"\nand no more", owner: billing, enabled: true, shadow: true }"#,
    );
    check(
        Rule::new("trial").key(["user"]).limit("100/minute").experiment(20, [Limit::from("200/minute")]),
        "{ name: trial, key: [user], limits: [100/minute], experiment: { split: 20%, limits: [200/minute] } }",
    );
    check(
        Rule::new("everywhere").limit("100/minute").coordination(Coordination::Escrow),
        "{ name: everywhere, limits: [100/minute], scope: global, consistency: escrow }",
    );
    check(
        Rule::new("ahead").limit("100/minute").lease_to_clients(true),
        "{ name: ahead, limits: [100/minute], lease_to_clients: true }",
    );
    let sync_every = Micros::from_millis(500);
    check(
        Rule::new("everywhere").limit("100/minute").coordination(Coordination::Eventual { sync_every }),
        "{ name: everywhere, limits: [100/minute], scope: global, consistency: eventual, sync_every: 500ms }",
    );
}

#[test]
fn rules_of_code_and_files_are_one_set() {
    let rules = Rules::new("api")
        .rule(Rule::new("usual").limit("10/s"))
        .rule(Rule::new("free").matches("plan", "staff").unlimited().overrides(["from-file"]))
        .domain("mail")
        .rule(Rule::new("all").limit(SlidingWindow::per_hour(1_000)))
        .yaml("more.yaml", "{ domain: api, rules: [{ name: from-file, limits: [5/s] }] }");
    let set = rules.compile().unwrap_or_else(|error| panic!("{error}"));
    let names: Vec<String> = set.rules().map(|rule| format!("{}/{}", rule.domain(), rule.name())).collect();
    assert_eq!(names, ["api/usual", "api/free", "mail/all", "api/from-file"]);
}

#[test]
fn a_mistake_in_code_is_shown_with_its_text_and_a_hint() {
    let error = |rule: Rule| Rules::new("api").rule(rule).compile().unwrap_err().to_string();
    let nothing = error(Rule::new("r"));
    assert!(
        nothing.contains("rules in code:3") && nothing.contains("needs `limits` or `tiers`"),
        "{nothing}"
    );
    let endless = error(Rule::new("r").limit(SlidingWindow::per(1, Duration::ZERO)));
    assert!(endless.contains("the window is zero"), "{endless}");
    let fine = error(Rule::new("r").limit(TokenBucket::per(1, Duration::from_nanos(1))));
    assert!(fine.contains("1ns"), "{fine}");
    let twice = Rules::new("api")
        .rule(Rule::new("r").limit("1/s"))
        .yaml("f", "{ domain: api, rules: [{ name: r, limits: [1/s] }] }");
    assert!(twice.compile().unwrap_err().to_string().contains("two rules are called `r`"));
}

proptest! {
    #[test]
    fn any_text_and_any_span_arrive_as_they_were_given(text in "\\PC{1,20}|[\u{0}-\u{ff}]{1,8}", micros in 1..3_600_000_000u64) {
        let span = Duration::from_micros(micros);
        let rule = Rule::new("r").description(text.clone()).limit(Concurrency::new(1).ttl(span));
        let rules = Rules::new("api").rule(rule);
        let set = rules.compile().unwrap_or_else(|error| panic!("{error}\n{rules}"));
        let rule = set.rules().next().unwrap();
        prop_assert_eq!(rule.description(), Some(&*text));
        let ttl = format!("ttl: Micros({micros})");
        prop_assert!(format!("{rule:?}").contains(&ttl), "{}", rules);
    }
}
