//! What a shadow rule counts is what enforcing it would refuse.

use tidegate_core::{Hits, Micros};
use tidegate_limiter::{CheckRequest, Decision, DescriptorAsk, Report, SpentAt};

use crate::world::{World, at_once};

const RULES: [&str; 5] = [
    "limits: [10/minute, 100/hour]",
    "limits: [{ algorithm: token_bucket, rate: 1/s, burst: 5 }, { algorithm: fixed_window, limit: 50, window: 1m }]",
    "limits: [{ algorithm: sliding_log, limit: 5, window: 6s }], penalty: 3s",
    "limits: [{ algorithm: sliding_window, limit: 3, window: 2s }, { algorithm: sliding_log, limit: 40, window: 1m }], penalty: 1s",
    "limits: [{ algorithm: sliding_log, limit: 8, window: 5s, count_refused: true }, { algorithm: fixed_window, limit: 30, window: 1m }]",
];

/// Which of the requests of one caller, one every `pause`, the rule refuses or would refuse.
fn refused(rule: &str, mode: &str, pause: Micros) -> Vec<bool> {
    let world = World::new(&format!("- {{ name: a, key: [user], {rule}, {mode} }}"));
    (0..600)
        .map(|_| {
            let decision = world.check(&[("user", "42")]);
            world.clock.advance(pause);
            decision.reports().iter().any(|report| report.is_refusal())
        })
        .collect()
}

#[test]
fn a_shadow_rule_with_several_limits_or_a_penalty_counts_what_enforcing_it_would_refuse() {
    for rule in RULES {
        for pause in [7, 100, 650].map(Micros::from_millis) {
            let enforced = refused(rule, "shadow: false", pause);
            assert!(enforced.contains(&true) && enforced.contains(&false), "{rule}");
            assert_eq!(refused(rule, "shadow: true", pause), enforced, "{rule}, one every {pause}");
        }
    }
}

#[test]
fn a_shadow_rule_spends_nothing_for_a_request_that_another_rule_refuses() {
    let world = World::new(
        "- { name: a, key: [user], limits: [2/hour] }\n\
         - { name: b, key: [user], shadow: true, limits: [3/minute, 5/hour] }",
    );
    for _ in 0..10 {
        let _ = world.check(&[("user", "42")]);
    }
    // Two passed, so one of three is left to the shadow rule.
    let left = |world: &World| {
        world.check_cost(&[("user", "42")], 0).reports()[1].limit().unwrap().outcome.remaining
    };
    assert_eq!(left(&world), 1);
}

#[test]
fn what_two_equal_descriptors_spent_of_a_shadow_limit_goes_back_once() {
    let world = World::new(
        "- { name: a, key: [user], shadow: true, limits: [2/s, { algorithm: fixed_window, limit: 100, window: 1h }] }",
    );
    let user: &[(&str, &str)] = &[("user", "42")];
    let left = || world.check_cost(user, 0).reports()[1].limit().unwrap().outcome.remaining;
    let _ = world.check_descriptors(&[(user, 1), (user, 1)]);
    assert_eq!(left(), 98);
    let _ = world.check_descriptors(&[(user, 1), (user, 1)]);
    assert_eq!(left(), 98, "the second is refused, and spends nothing");
}

#[test]
fn a_refund_gives_a_shadow_rule_that_would_have_refused_nothing() {
    let world = World::new(
        "- { name: a, key: [user], shadow: true, limits: [2/hour, { algorithm: fixed_window, limit: 100, window: 1d }] }",
    );
    let user: &[(&str, &str)] = &[("user", "42")];
    let left = || {
        let decision = world.check_cost(user, 0);
        let remaining = |report: &Report| report.limit().unwrap().outcome.remaining;
        decision.reports().iter().map(remaining).collect::<Vec<u64>>()
    };
    let refund = |decision: &Decision| {
        let descriptors = [DescriptorAsk::one(&[("user", b"42")])];
        let request = CheckRequest::new("api", &descriptors);
        at_once(world.limiter.refund(&request, Hits::ONE, SpentAt::By(decision))).unwrap();
    };
    let [_, second, third] = [(); 3].map(|()| world.check(user));
    assert_eq!(left(), [0, 98]);
    refund(&third);
    assert_eq!(left(), [0, 98], "it was to be refused");
    refund(&second);
    assert_eq!(left(), [1, 99]);
}
