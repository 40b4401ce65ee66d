//! A prepared check answers what a check answers, whatever the rules are, and is heard of alike.

use std::sync::Arc;

use proptest::prelude::*;
use tidegate_core::{Hits, Micros};
use tidegate_limiter::{
    CheckRequest, Decision, DescriptorAsk, Limiter, LimiterConfig, NoObserver, PreparedError, RuleResult,
    Source, Verdict,
};
use tidegate_rules::{Format, OverrideEffect, RuleSet, RuntimeOverride};
use tidegate_store::{ManualClock, MemoryConfig, MemoryStore};

use crate::allocations::allocations;
use crate::world::{START, World, at_once, compile};

const ATTRIBUTES: [&str; 3] = ["user", "path", "api_key"];

/// A limiter that nobody observes.
fn silent(rules: RuleSet) -> (Limiter, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(START));
    let config = MemoryConfig::new().max_cells(10_000).max_log_bytes(1 << 20);
    let store = Arc::new(MemoryStore::with_clock(config, clock.clone()));
    let mut config = LimiterConfig::new(rules, store, Arc::new(NoObserver));
    config.clock = clock.clone();
    (Limiter::new(config), clock)
}

fn whole_check(limiter: &Limiter, values: &[&str; 3], cost: u64) -> Decision {
    let entries: Vec<(&str, &[u8])> =
        ATTRIBUTES.iter().zip(values).map(|(name, value)| (*name, value.as_bytes())).collect();
    let descriptors = [DescriptorAsk::one(&entries).cost(Hits::new(cost))];
    at_once(limiter.check(&CheckRequest::new("api", &descriptors))).unwrap()
}

/// What both kinds of answer have.
type Numbers<'a> = (
    (bool, Source, Option<&'a str>),
    [Option<u64>; 2],
    [Option<std::time::Duration>; 3],
    std::time::Duration,
);

fn of_verdict<'a>(verdict: &Verdict<'a>) -> Numbers<'a> {
    (
        (verdict.is_allowed(), verdict.source(), verdict.rule()),
        [verdict.limit(), verdict.remaining()],
        [verdict.reset_after(), verdict.retry_after(), verdict.window()],
        verdict.delay(),
    )
}

fn of_decision(decision: &Decision) -> Numbers<'_> {
    let window = decision.governing().and_then(|report| report.limit()?.window);
    (
        (decision.allowed, decision.source, decision.rule()),
        [decision.limit(), decision.remaining()],
        [decision.reset_after(), decision.retry_after(), window.map(Into::into)],
        decision.delay(),
    )
}

/// What a rule may say, apart from its name.
fn any_rule() -> impl Strategy<Value = String> {
    let condition = prop::sample::select(vec![
        "",
        "",
        "",
        "",
        "match: { path: /a }, ",
        "match: { user: { not: ann } }, ",
        "match: { method: GET }, ",
        "match: { method: { not: GET } }, ",
    ]);
    let key = prop::sample::select(vec![
        "",
        "key: [user], ",
        "key: [user], ",
        "key: [path, user], ",
        "key: [api_key], ",
        "key: [ip], ",
        "key: [ip], on_missing_key: refuse, ",
    ]);
    let other = prop::sample::select(vec![
        "",
        "",
        "",
        "",
        "",
        "shadow: true, ",
        "penalty: 5s, ",
        "over: debt, ",
        "over: cap, ",
        "coordination: local, ",
        "coordination: approximate, ",
        "enabled: false, ",
        "rollout: 50%, ",
        "colocate: path, ",
        "overrides: [r0], ",
        "when: { flag: f }, ",
        "when: { flag: f, default: true }, ",
        "experiment: { split: 50%, limits: [7/minute] }, ",
        "key_overrides: [{ when: { user: ann }, limits: [7/minute] }], ",
    ]);
    let limits = prop::sample::select(vec![
        "limits: [3/minute]",
        "limits: [3/minute]",
        "limits: [1000/minute]",
        "limits: [{ algorithm: token_bucket, rate: 1/s, burst: 4 }]",
        "limits: [{ algorithm: token_bucket, rate: 1/s, burst: 4 }]",
        "limits: [{ algorithm: leaky_bucket, rate: 1/s, max_delay: 3s }]",
        "limits: [{ algorithm: fixed_window, limit: 0, window: 1h }]",
        "limits: [{ algorithm: fixed_window, limit: 4, window: day, tz: America/Sao_Paulo }]",
        "limits: [{ algorithm: sliding_log, limit: 2, window: 10s, count_refused: true }]",
        "limits: [{ algorithm: sliding_log, limit: 3, window: 10s, min_interval: 1s }]",
        "limits: [3/10s, 5/minute]",
        "limits: unlimited",
        "tiers: { on: plan, default: free, free: [2/minute], pro: [9/minute] }",
        "tiers: { on: user, default: free, free: [2/minute], ann: [9/minute] }",
    ]);
    (condition, key, other, limits)
        .prop_map(|(condition, key, other, limits)| format!("{condition}{key}{other}{limits}"))
}

/// Rules, and whom they ban. Most are one rule, as most prepared checks meet.
fn any_rules() -> impl Strategy<Value = (Vec<String>, bool)> {
    let few = prop_oneof![4 => Just(1..2usize), 1 => Just(0..4usize)];
    (few.prop_flat_map(|count| prop::collection::vec(any_rule(), count)), prop::bool::weighted(0.1))
}

/// `None` where the compiler refuses a combination.
fn rule_set((rules, bans): &(Vec<String>, bool)) -> Option<RuleSet> {
    let named = rules.iter().enumerate().map(|(number, rule)| format!("- {{ name: r{number}, {rule} }}\n"));
    let text = format!(
        "domain: api\nrules:\n{}- {{ name: idle, match: {{ never: x }}, limits: [1/s] }}",
        named.collect::<String>()
    );
    let rules = RuleSet::compile(&[tidegate_rules::Source::new("rules.yaml", text)], Format::Native).ok()?;
    let ban = RuntimeOverride {
        domain: "api".into(),
        rule: None,
        when: vec![("user".into(), "bob".into())],
        effect: OverrideEffect::Ban,
        until: None,
    };
    Some(if *bans { rules.with_overrides(&[ban]).0 } else { rules })
}

#[derive(Clone, Debug)]
enum Step {
    Check([usize; 3], u64),
    Wait(u64),
    Replace(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => ([0..2usize, 0..2usize, 0..2usize], 0..4u64).prop_map(|(values, cost)| Step::Check(values, cost)),
        2 => (0..5_000_000u64).prop_map(Step::Wait),
        1 => (0..3usize).prop_map(Step::Replace),
    ]
}

proptest! {
    #[test]
    fn prepared_checks_and_checks_answer_alike(
        all in prop::collection::vec(any_rules(), 3),
        steps in prop::collection::vec(any_step(), 1..40),
    ) {
        let sets = || all.iter().map(rule_set).collect::<Option<Vec<_>>>();
        let (Some(mut ours), Some(mut others)) = (sets(), sets()) else { return Err(TestCaseError::reject("invalid rules")) };
        let ((limiter, clock), (twin, twins_clock)) = (silent(ours.remove(0)), silent(others.remove(0)));
        let prepared = match limiter.prepare("api", ATTRIBUTES) {
            Ok(prepared) => prepared,
            // No rule counts these, whatever their values are, for want of `ip`: the only attribute of a key that they lack.
            Err(PreparedError::NotCounted { attribute, .. }) => {
                prop_assert_eq!(attribute, "ip");
                for values in ["ann", "bob"].into_iter().flat_map(|user| [[user, "/a", "k"], [user, "/", "k"]]) {
                    prop_assert_eq!(whole_check(&twin, &values, 1).limit(), None, "{:?}", all);
                }
                return Ok(());
            }
            Err(other) => panic!("{other}"),
        };
        // Longer than a key on the stack, and than a length of one byte.
        let (long_path, long_key) = ("/".repeat(62), "k".repeat(200));
        for step in steps {
            match step {
                Step::Wait(micros) => {
                    clock.advance(Micros::new(micros));
                    twins_clock.advance(Micros::new(micros));
                }
                Step::Replace(number) => {
                    limiter.use_rules(rule_set(&all[number]).unwrap());
                    twin.use_rules(rule_set(&all[number]).unwrap());
                }
                Step::Check(which, cost) => {
                    let values = [["ann", "bob"][which[0]], ["/a", &*long_path][which[1]], ["k", &*long_key][which[2]]];
                    let decision = whole_check(&twin, &values, cost);
                    let verdict = prepared.check_cost_blocking(&values, cost).unwrap();
                    prop_assert_eq!(of_verdict(&verdict), of_decision(&decision), "{:?}", all);
                }
            }
        }
    }
}

#[test]
fn an_observer_hears_the_same_of_a_prepared_check() {
    let rules = "- { name: a, key: [user], limits: [1/minute] }";
    let (world, twin) = (World::new(rules), World::new(rules));
    let prepared = world.limiter.prepare("api", ["user"]).unwrap();
    for _ in 0..2 {
        let verdict = prepared.check_blocking(&["ann"]).unwrap();
        assert_eq!(verdict.is_allowed(), twin.check(&[("user", "ann")]).allowed);
    }
    let heard = world.heard.take();
    assert_eq!(heard, twin.heard.take());
    assert_eq!(heard[1].1, RuleResult::Refused);
}

#[test]
fn a_prepared_check_allocates_nothing() {
    for rules in [
        "- { name: a, key: [user], limits: [1000000/minute] }",
        "- { name: a, key: [user], limits: [1/day] }",
        "- { name: a, limits: [{ algorithm: token_bucket, rate: 1000000/s, burst: 9999 }] }",
    ] {
        let (limiter, _) = silent(compile(rules));
        let prepared = limiter.prepare("api", ["user"]).unwrap();
        let check = || {
            let _ = prepared.check_blocking(&["somebody-with-a-name-of-40-characters-or-so"]).unwrap();
            let _ = at_once(prepared.check(&["somebody-with-a-name-of-40-characters-or-so"])).unwrap();
        };
        // The first makes a cell.
        check();
        assert_eq!(allocations(|| (0..100).for_each(|_| check())), 0, "{rules}");
    }
}

#[test]
fn a_rule_that_gives_leases_cannot_be_prepared() {
    let held = "- { name: held, key: [user], limits: [{ algorithm: concurrency, limit: 1, ttl: 1h }] }";
    let takes_lease = PreparedError::TakesLease { rule: "held".to_owned() };
    let (limiter, _) = silent(compile(held));
    assert_eq!(limiter.prepare("api", ["user"]).unwrap_err(), takes_lease);
    // Requests that cannot match it can.
    let elsewhere = held.replace("key", "match: { path: /jobs }, key");
    limiter.use_rules(compile(&elsewhere));
    let prepared = limiter.prepare("api", ["user"]).unwrap();
    assert!(prepared.check_blocking(&["ann"]).unwrap().is_allowed());
    // Rules may change to such.
    limiter.use_rules(compile(held));
    assert_eq!(prepared.check_blocking(&["ann"]).unwrap_err(), takes_lease);
    limiter.use_rules(compile("- { name: a, key: [user], limits: [1/h] }"));
    assert!(prepared.check_blocking(&["ann"]).unwrap().is_allowed());
}

#[test]
fn requests_that_no_rule_would_count_cannot_be_prepared() {
    let per_user = "- { name: per-user, key: [user], limits: [1/h] }";
    let (limiter, _) = silent(compile(per_user));
    let error = limiter.prepare("api", ["usr"]).unwrap_err();
    let expected = PreparedError::NotCounted {
        rule: "per-user".to_owned(),
        attribute: "user".to_owned(),
        given: vec!["usr".to_owned()],
    };
    assert_eq!(error, expected);
    let text = error.to_string();
    assert!(text.starts_with("rule per-user counts by `user`, which these requests lack"), "{text}");
    assert!(text.contains("their attributes are `usr`: add `user`"), "{text}");
    // One that other rules count, or that a rule refuses, can be. So can one that no rule is about.
    for (rules, skipped) in [
        (format!("{per_user}\n- {{ name: all, limits: [1/h] }}"), 1),
        (per_user.replace("limits", "on_missing_key: refuse, limits"), 0),
        (per_user.replace("key", "match: { path: /login }, key"), 0),
        (per_user.replace("key", "enabled: false, key"), 0),
    ] {
        limiter.use_rules(compile(&rules));
        let prepared = limiter.prepare("api", ["usr"]).unwrap();
        let expected = vec![("per-user".to_owned(), "user".to_owned()); skipped];
        assert_eq!(prepared.skipped(), expected, "{rules}");
    }
    // A rule set that comes later is not asked: its mistakes must not stop a program that runs.
    let prepared = limiter.prepare("api", ["usr"]).unwrap();
    limiter.use_rules(compile(per_user));
    assert!(prepared.check_blocking(&["ann"]).unwrap().is_allowed());
}

#[test]
fn a_domain_that_is_gone_is_an_error() {
    let (limiter, _) = silent(compile("- { name: a, key: [user], limits: [1/h] }"));
    assert!(matches!(limiter.prepare("app", ["user"]), Err(PreparedError::UnknownDomain(_))));
    let prepared = limiter.prepare("api", ["user"]).unwrap();
    assert!(prepared.check_blocking(&["ann"]).unwrap().is_allowed());
    let other = "{ domain: app, rules: [{ name: a, limits: [1/h] }] }";
    limiter.use_rules(RuleSet::compile(&[tidegate_rules::Source::new("a", other)], Format::Native).unwrap());
    assert!(matches!(prepared.check_blocking(&["ann"]), Err(PreparedError::UnknownDomain(_))));
}

#[test]
fn a_handle_that_met_many_limits_still_answers_right() {
    let rules = |limit: u64| {
        compile(&format!(
            "- {{ name: a, key: [user], limits: [{{ algorithm: fixed_window, limit: {limit}, window: 1h }}] }}"
        ))
    };
    let (limiter, _) = silent(rules(1));
    let prepared = limiter.prepare("api", ["user"]).unwrap();
    for limit in 1..80 {
        limiter.use_rules(rules(limit));
        let verdict = prepared.check_blocking(&["ann"]).unwrap();
        assert_eq!((verdict.limit(), verdict.remaining(), verdict.rule()), (Some(limit), Some(0), Some("a")));
    }
}

#[test]
fn a_verdict_names_its_rule_however_many_there_are() {
    let rules: String = (0..200)
        .map(|number| format!("- {{ name: r{number}, match: {{ path: /{number} }}, limits: [1/hour] }}\n"))
        .collect();
    let (limiter, _) = silent(compile(&rules));
    let prepared = limiter.prepare("api", ["path"]).unwrap();
    for number in 0..200 {
        let (path, name) = (format!("/{number}"), format!("r{number}"));
        assert_eq!(prepared.check_blocking(&[path]).unwrap().rule(), Some(&*name));
    }
}
