use tidegate_core::{Hits, Micros};
use tidegate_limiter::{CheckRequest, DescriptorAsk, LimitOverride, SpentAt};

use crate::world::{World, at_once};

const BY_PATH: &str = "- { name: a, match: { path: a }, key: [path], limits: [{ algorithm: fixed_window, limit: 2, window: 1m }] }\n\
                       - { name: b, match: { path: b }, key: [path], limits: [{ algorithm: fixed_window, limit: 1, window: 1m }] }";

fn remaining(decision: &tidegate_limiter::Decision, descriptor: usize) -> (bool, u64) {
    let of = decision.descriptor(descriptor);
    (of.over_limit, of.governing.unwrap().limit().unwrap().outcome.remaining)
}

#[test]
fn one_descriptor_over_its_limit_refuses_the_request_and_spends_nothing_of_the_others() {
    let world = World::new(BY_PATH);
    let both: [(&[(&str, &str)], u64); 2] = [(&[("path", "a")], 1), (&[("path", "b")], 1)];
    assert!(world.check_descriptors(&both).allowed);
    let refused = world.check_descriptors(&both);
    assert!(!refused.allowed);
    assert_eq!(remaining(&refused, 0), (false, 1));
    assert_eq!(remaining(&refused, 1), (true, 0));
    assert!(world.check(&[("path", "a")]).allowed);
}

#[test]
fn two_descriptors_for_one_cell_ask_for_the_sum() {
    let world = World::new(BY_PATH);
    let twice: [(&[(&str, &str)], u64); 2] = [(&[("path", "a")], 1), (&[("path", "a")], 2)];
    assert!(!world.check_descriptors(&twice).allowed);
    let exactly: [(&[(&str, &str)], u64); 2] = [(&[("path", "a")], 1), (&[("path", "a")], 1)];
    let decision = world.check_descriptors(&exactly);
    assert!(decision.allowed);
    assert_eq!((remaining(&decision, 0), remaining(&decision, 1)), ((false, 0), (false, 0)));
}

#[test]
fn two_descriptors_for_one_cell_under_different_tiers_keep_the_stricter_whichever_comes_first() {
    let rules = "- { name: plan, key: [user], tiers: { on: plan, default: free, \
        free: [{ algorithm: token_bucket, rate: 1/h, burst: 50 }], \
        pro: [{ algorithm: token_bucket, rate: 50/h, burst: 5 }] } }";
    let free: (&[(&str, &str)], u64) = (&[("user", "1"), ("plan", "free")], 1);
    let pro: (&[(&str, &str)], u64) = (&[("user", "1"), ("plan", "pro")], 1);
    for both in [[free, pro], [pro, free]] {
        let world = World::new(rules);
        let passed = (0..50).filter(|_| world.check_descriptors(&both).allowed).count();
        assert_eq!(passed, 2, "each spends two of five");
        // And refills as slowly as the other: one hit in an hour, where two are wanted.
        world.advance(Micros::from_secs(3_600));
        assert!(world.check_descriptors(&both).allowed, "one was left, and one came back");
        assert!(!world.check_descriptors(&both).allowed);
    }
}

#[test]
fn a_limit_that_the_caller_brings_replaces_the_rules_of_its_descriptor_only() {
    let world = World::new(BY_PATH);
    let own = LimitOverride::new("api", 5, Micros::from_secs(60)).unwrap();
    let entries: [(&str, &[u8]); 1] = [("path", b"b")];
    let ask = DescriptorAsk::one(&entries).limit(&own);
    let asks = [ask];
    let request = CheckRequest::new("api", &asks);
    for left in [4, 3, 2, 1, 0] {
        let decision = at_once(world.limiter.check(&request)).unwrap();
        assert!(decision.allowed);
        assert_eq!(remaining(&decision, 0), (false, left));
    }
    assert!(!at_once(world.limiter.check(&request)).unwrap().allowed);
    // The rule's own counter was not touched.
    assert!(world.check(&[("path", "b")]).allowed);
}

#[test]
fn an_own_limit_keeps_the_rule_of_its_descriptor_from_replacing_others() {
    let world = World::envoy(
        "domain: api\n\
         descriptors:\n\
         - { key: a, rate_limit: { name: wide, unit: minute, requests_per_unit: 1 } }\n\
         - { key: b, rate_limit: { unit: minute, requests_per_unit: 9, replaces: [{ name: wide }] } }\n",
    );
    let own = LimitOverride::new("api", 5, Micros::from_secs(60)).unwrap();
    let brings_limit = DescriptorAsk::one(&[("b", b"1")]).limit(&own);
    let asks = [brings_limit, DescriptorAsk::one(&[("a", b"1")])];
    let request = CheckRequest::new("api", &asks);
    let first = at_once(world.limiter.check(&request)).unwrap();
    assert_eq!((remaining(&first, 0), remaining(&first, 1)), ((false, 4), (false, 0)));
    let second = at_once(world.limiter.check(&request)).unwrap();
    assert_eq!((remaining(&second, 0), remaining(&second, 1)), ((false, 4), (true, 0)));
}

#[test]
fn an_unlimited_quota_is_no_quota() {
    let world = World::envoy(
        "domain: api\n\
         descriptors:\n\
         - { key: a, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }\n\
         - { key: b, quota_mode: true, rate_limit: { unlimited: true } }\n",
    );
    let both: [(&[(&str, &str)], u64); 2] = [(&[("a", "1")], 1), (&[("b", "1")], 1)];
    assert!(world.check_descriptors(&both).allowed);
    assert!(!world.check_descriptors(&both).allowed);
}

#[test]
fn what_a_request_of_two_readings_spent_can_be_given_back_by_its_decision() {
    let world = World::new(BY_PATH);
    let entries: [[(&str, &[u8]); 1]; 2] = [[("path", b"a")], [("path", b"b")]];
    let asks = entries.each_ref().map(|entries| DescriptorAsk::one(entries));
    let request = CheckRequest::new("api", &asks);
    let decision = at_once(world.limiter.check(&request.readings())).unwrap();
    assert!(decision.allowed);
    at_once(world.limiter.refund(&request, Hits::ONE, SpentAt::By(&decision))).unwrap();
    let left = |path| remaining(&world.check_cost(&[("path", path)], 0), 0);
    assert_eq!((left("a"), left("b")), ((false, 2), (false, 1)));
}

#[test]
fn two_readings_of_a_request_under_different_tiers_keep_the_stricter_and_spend_once() {
    let rules = "- { name: cheap, key: [ip], tiers: { on: path, default: other, \
        other: [{ algorithm: fixed_window, limit: 10, window: 1h }], \
        cheap: [{ algorithm: fixed_window, limit: 1000, window: 1h }] } }";
    for paths in [["cheap", "dear"], ["dear", "cheap"]] {
        let world = World::new(rules);
        let entries = paths.map(|path| [("ip", &b"1"[..]), ("path", path.as_bytes())]);
        let asks = entries.each_ref().map(|entries| DescriptorAsk::one(entries));
        let request = CheckRequest::new("api", &asks);
        for left in (0..10).rev() {
            let decision = at_once(world.limiter.check(&request.readings())).unwrap();
            assert_eq!((decision.limit(), decision.remaining()), (Some(10), Some(left)), "{paths:?}");
        }
        let refused = at_once(world.limiter.check(&request.readings())).unwrap();
        assert_eq!((refused.allowed, refused.limit(), refused.remaining()), (false, Some(10), Some(0)));
    }
}
