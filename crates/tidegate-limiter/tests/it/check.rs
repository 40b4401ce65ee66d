use tidegate_core::Micros;
use tidegate_limiter::{CheckRequest, DescriptorAsk, Patience, RuleResult, Source, SpentAt};

use crate::world::{World, at_once, told};

const PER_USER: &str =
    "- { name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 3, window: 1m }] }";

#[test]
fn a_request_passes_until_the_limit_and_is_refused_until_the_window_ends() {
    let world = World::new(PER_USER);
    for left in [2, 1, 0] {
        let decision = world.check(&[("user", "42")]);
        assert!(decision.allowed);
        assert_eq!(told(&decision), (Some("per-user"), 3, left));
        assert_eq!(decision.source, Source::Store);
    }
    let refused = world.check(&[("user", "42")]);
    assert!(!refused.allowed);
    let outcome = refused.governing().unwrap().limit().unwrap().outcome;
    assert_eq!(outcome.retry_after(), Some(Micros::from_secs(60)));
    world.advance(Micros::from_secs(60));
    assert!(world.check(&[("user", "42")]).allowed);
}

#[test]
fn another_user_has_a_quota_of_its_own() {
    let world = World::new(PER_USER);
    let _ = world.check_cost(&[("user", "42")], 3);
    assert_eq!(told(&world.check(&[("user", "43")])), (Some("per-user"), 3, 2));
}

#[test]
fn a_request_that_no_rule_matches_passes_and_says_that_nobody_was_asked() {
    let world = World::new("- { name: posts, match: { method: POST }, limits: [1/minute] }");
    let decision = world.check(&[("method", "GET")]);
    assert!(decision.allowed);
    assert_eq!(decision.source, Source::None);
    assert!(decision.governing().is_none());
}

#[test]
fn an_unknown_domain_is_an_error_that_names_it() {
    let world = World::new(PER_USER);
    let descriptors = [DescriptorAsk::one(&[])];
    let request = CheckRequest::new("shop", &descriptors);
    assert_eq!(at_once(world.limiter.check(&request)).unwrap_err().domain, "shop");
}

#[test]
fn an_allowed_request_tells_the_limit_with_the_least_left() {
    let world = World::new(
        "- { name: wide, key: [user], limits: [100/hour] }\n- { name: narrow, key: [user], limits: [5/minute] }",
    );
    assert_eq!(told(&world.check(&[("user", "1")])), (Some("narrow"), 5, 4));
}

#[test]
fn a_tie_is_told_by_the_limit_that_resets_last() {
    let world = World::new(
        "- { name: minute, key: [user], limits: [{ algorithm: fixed_window, limit: 5, window: 1m }] }\n\
         - { name: hour, key: [user], limits: [{ algorithm: fixed_window, limit: 5, window: 1h }] }",
    );
    assert_eq!(told(&world.check(&[("user", "1")])), (Some("hour"), 5, 4));
}

#[test]
fn a_refused_request_tells_the_limit_with_the_longest_wait_and_spends_nothing() {
    let world = World::new(
        "- { name: minute, key: [user], limits: [{ algorithm: fixed_window, limit: 1, window: 1m }] }\n\
         - { name: hour, key: [user], limits: [{ algorithm: fixed_window, limit: 1, window: 1h }] }\n\
         - { name: day, key: [user], limits: [{ algorithm: fixed_window, limit: 9, window: 1d }] }",
    );
    assert!(world.check(&[("user", "1")]).allowed);
    let refused = world.check(&[("user", "1")]);
    assert!(!refused.allowed);
    assert_eq!(told(&refused), (Some("hour"), 1, 0));
    world.advance(Micros::from_secs(3_600));
    // The day's limit has one hit on it from before, and now this one: the refused one left no trace.
    let day = world.check(&[("user", "1")]);
    let day = day.reports().iter().find(|report| day.rule_of(report).unwrap().name() == "day").unwrap();
    assert_eq!(day.limit().unwrap().outcome.remaining, 7);
}

#[test]
fn a_shadow_rule_counts_and_is_heard_but_neither_refuses_nor_tells() {
    let world = World::new(
        "- { name: trial, key: [user], shadow: true, limits: [1/minute] }\n- { name: real, key: [user], limits: [5/minute] }",
    );
    let _ = world.check(&[("user", "1")]);
    world.heard.take();
    let decision = world.check(&[("user", "1")]);
    assert!(decision.allowed);
    assert_eq!(told(&decision), (Some("real"), 5, 3));
    let heard = world.heard.take();
    assert!(heard.contains(&("trial".into(), RuleResult::ShadowRefused, Source::Store)), "{heard:?}");
    assert!(heard.contains(&("real".into(), RuleResult::Allowed, Source::Store)), "{heard:?}");
}

#[test]
fn a_rule_is_heard_once_per_request_whatever_the_number_of_its_limits_and_descriptors() {
    let world = World::new(
        "- { name: two, key: [user], limits: [{ algorithm: fixed_window, limit: 9, window: 1m }, \
         { algorithm: fixed_window, limit: 2, window: 1h }] }\n\
         - { name: one, key: [user], limits: [{ algorithm: fixed_window, limit: 9, window: 1d }] }",
    );
    let both =
        |result| [("two".into(), result, Source::Store), ("one".into(), RuleResult::Allowed, Source::Store)];
    let _ = world.check(&[("user", "a")]);
    assert_eq!(world.heard.take(), both(RuleResult::Allowed));
    let _ = world.check_descriptors(&[(&[("user", "a")], 1), (&[("user", "b")], 1)]);
    assert_eq!(world.heard.take(), both(RuleResult::Allowed));
    // Only the hour's limit of only one of the two refuses; for the metric the rule refused.
    let _ = world.check_descriptors(&[(&[("user", "b")], 1), (&[("user", "a")], 1)]);
    assert_eq!(world.heard.take(), both(RuleResult::Refused));
}

#[test]
fn a_missing_key_is_skipped_or_refused_as_the_rule_says_and_heard_either_way() {
    let skip = World::new("- { name: a, key: [user], limits: [1/minute] }");
    assert!(skip.check(&[]).allowed);
    assert_eq!(skip.heard.take(), [("a".into(), RuleResult::KeyMissingSkipped, Source::None)]);

    let refuse = World::new(
        "- { name: a, key: [user], on_missing_key: refuse, limits: [1/minute] }\n- { name: b, limits: [9/minute] }",
    );
    assert!(!refuse.check(&[]).allowed);
    // Refused for want of a key: the other rule was only looked at.
    assert_eq!(told(&refuse.check(&[("user", "1")])).2, 0);
    let b = refuse.check_cost(&[("user", "2")], 0);
    let b = b.reports().iter().find(|report| report.rule == Some(1)).unwrap();
    assert_eq!(b.limit().unwrap().outcome.remaining, 8);
}

#[test]
fn a_cost_of_zero_looks_and_a_cost_above_the_limit_never_passes() {
    let world = World::new(PER_USER);
    assert_eq!(told(&world.check_cost(&[("user", "1")], 0)), (Some("per-user"), 3, 3));
    for cost in [4, u64::MAX] {
        let refused = world.check_cost(&[("user", "1")], cost);
        assert!(!refused.allowed);
        assert_eq!(refused.governing().unwrap().limit().unwrap().outcome.retry_after(), None);
    }
    assert_eq!(told(&world.check(&[("user", "1")])).2, 2);
}

#[test]
fn unlimited_tiers_pass_uncounted() {
    let world = World::new(
        "- { name: plans, key: [user], tiers: { on: plan, default: free, free: [1/minute], internal: unlimited } }",
    );
    for _ in 0..5 {
        assert!(world.check(&[("user", "1"), ("plan", "internal")]).allowed);
    }
    assert!(world.check(&[("user", "1")]).allowed);
    assert!(!world.check(&[("user", "1")]).allowed);
}

#[test]
fn a_leaky_bucket_asks_for_a_delay() {
    let world =
        World::new("- { name: calm, limits: [{ algorithm: leaky_bucket, rate: 5/s, max_delay: 2s }] }");
    assert_eq!(world.check(&[]).delay, Micros::ZERO);
    assert_eq!(world.check(&[]).delay, Micros::from_millis(200));
}

#[test]
fn a_caller_that_cannot_wait_is_refused_instead_and_takes_no_slot() {
    let world =
        World::new("- { name: calm, limits: [{ algorithm: leaky_bucket, rate: 5/s, max_delay: 2s }] }");
    let descriptors = [DescriptorAsk::one(&[])];
    let gateway = CheckRequest::new("api", &descriptors).patience(Patience::MustGoNow);
    let ask = || at_once(world.limiter.check(&gateway)).unwrap();
    let retry_after = |decision: &tidegate_limiter::Decision| {
        decision.governing().unwrap().limit().unwrap().outcome.retry_after()
    };
    assert!(ask().allowed);
    for _ in 0..3 {
        let refused = ask();
        assert!(!refused.allowed);
        assert_eq!(retry_after(&refused), Some(Micros::from_millis(200)));
    }
    // The next slot is still the first free one: the refused took none.
    assert_eq!(world.check(&[]).delay, Micros::from_millis(200));
    world.advance(Micros::from_millis(200));
    assert_eq!(retry_after(&ask()), Some(Micros::from_millis(200)));
}

#[test]
fn a_refund_gives_back_what_a_check_took() {
    let world = World::new(PER_USER);
    let _ = world.check_cost(&[("user", "1")], 3);
    let descriptors = [DescriptorAsk::one(&[("user", b"1")])];
    let request = CheckRequest::new("api", &descriptors);
    at_once(world.limiter.refund(&request, tidegate_core::Hits::new(2), SpentAt::Unknown)).unwrap();
    assert_eq!(told(&world.check(&[("user", "1")])).2, 1);
}

#[test]
fn a_refund_goes_into_the_window_that_was_charged_and_nowhere_if_that_is_over() {
    for (limit, until_full) in [
        ("{ algorithm: fixed_window, limit: 10, window: 1m }", 60),
        ("{ algorithm: sliding_window, limit: 10, window: 1m }", 120),
        ("{ algorithm: sliding_log, limit: 10, window: 1m }", 60),
        ("{ algorithm: token_bucket, rate: 10/m, burst: 10 }", 60),
    ] {
        let world = World::new(&format!("- {{ name: a, key: [user], limits: [{limit}] }}"));
        let descriptors = [DescriptorAsk::one(&[("user", b"1")])];
        let request = CheckRequest::new("api", &descriptors);
        let refund = |spent: SpentAt<'_>| {
            at_once(world.limiter.refund(&request, tidegate_core::Hits::new(10), spent)).unwrap();
        };
        let first = world.check_cost(&[("user", "1")], 10);
        world.advance(Micros::from_secs(until_full));
        let second = world.check_cost(&[("user", "1")], 10);
        assert!(first.allowed && second.allowed, "{limit}");
        refund(SpentAt::By(&first));
        assert!(!world.check(&[("user", "1")]).allowed, "{limit}: the first ten are long back");
        refund(SpentAt::Ago(Micros::from_secs(until_full)));
        assert!(!world.check(&[("user", "1")]).allowed, "{limit}: and so they are by their age");
        let refused = world.check(&[("user", "1")]);
        refund(SpentAt::By(&refused));
        assert!(!world.check(&[("user", "1")]).allowed, "{limit}: who was refused has spent nothing");
        refund(SpentAt::By(&second));
        assert!(world.check_cost(&[("user", "1")], 10).allowed, "{limit}: the second ten are given back");
        assert!(!world.check(&[("user", "1")]).allowed, "{limit}");
    }
}

#[test]
fn a_batch_decides_each_request_in_order_and_an_unknown_domain_spoils_only_itself() {
    let world = World::new(PER_USER);
    let descriptors = [DescriptorAsk::one(&[("user", b"1")])];
    let known = CheckRequest::new("api", &descriptors);
    let unknown = CheckRequest::new("shop", &descriptors);
    let decisions = at_once(world.limiter.check_batch(&[known, unknown, known, known, known]));
    let allowed: Vec<Option<bool>> =
        decisions.iter().map(|one| one.as_ref().ok().map(|one| one.allowed)).collect();
    assert_eq!(allowed, [Some(true), None, Some(true), Some(true), Some(false)]);
}
