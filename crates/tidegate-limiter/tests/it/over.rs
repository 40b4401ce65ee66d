//! Costs above what is left, as rules say: refused, owed, or capped.

use tidegate_core::{Hits, Micros};
use tidegate_limiter::{CheckRequest, DescriptorAsk, SpentAt};

use crate::world::{World, at_once, told};

const USER: &[(&str, &str)] = &[("user", "a")];

fn tokens(more: &str) -> World {
    World::new(&format!(
        "- {{ name: tokens, key: [user], {more}limits: [{{ algorithm: token_bucket, rate: 1000/h }}] }}"
    ))
}

fn left(world: &World) -> u64 {
    told(&world.check_cost(USER, 0)).2
}

#[test]
fn charges_without_debts_are_refused_and_spend_nothing() {
    let world = tokens("");
    assert!(!world.charge(USER, 1_200).allowed);
    assert_eq!(left(&world), 1_000);
}

#[test]
fn charges_into_debt_are_refused_and_repaid_by_time() {
    let world = tokens("over: debt, ");
    assert!(!world.charge(USER, 1_200).allowed);
    assert_eq!((world.check(USER).allowed, left(&world)), (false, 0));
    // A charge counts in debt as well: 800 in all, of which an hour repays 1,000.
    assert!(!world.charge(USER, 600).allowed);
    // Asks do not, whatever they cost.
    assert!(!world.check_cost(USER, 500).allowed);
    world.advance(Micros::from_secs(3_600));
    assert_eq!(left(&world), 200);
}

#[test]
fn debt_of_envoy_limits_is_the_default_and_ends_with_the_window() {
    let world = World::envoy(
        "domain: api\ndescriptors: [{ key: user, rate_limit: { unit: minute, requests_per_unit: 10 } }]",
    );
    assert!(!world.charge(USER, 12).allowed);
    assert!(!world.check(USER).allowed);
    world.advance(Micros::from_secs(60));
    assert_eq!(left(&world), 10);
}

#[test]
fn cap_takes_what_is_left_and_passes() {
    let world = tokens("over: cap, ");
    assert!(
        world.check_cost(USER, 5_000).allowed,
        "an estimate above the limit does not refuse the first request"
    );
    assert_eq!((world.check(USER).allowed, left(&world)), (false, 0));
}

/// What was left out by the cap was never spent: of a cost of 25 that found 6, none of the first 19 goes back.
#[test]
fn refund_of_a_capped_request_returns_what_it_spent() {
    for limit in ["{ limit: 10, window: 1h }", "{ algorithm: token_bucket, rate: 1/h, burst: 10 }"] {
        for (given_back, expected) in [(25, 6), (20, 1), (19, 0), (7, 0)] {
            let world = World::new(&format!("- {{ name: r, key: [user], over: cap, limits: [{limit}] }}"));
            assert!(world.check_cost(USER, 4).allowed);
            let capped = world.check_cost(USER, 25);
            let entries: Vec<(&str, &[u8])> =
                USER.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
            let asks = [DescriptorAsk::of(tidegate_rules::Descriptor { entries: &entries })];
            let request = CheckRequest::new("api", &asks);
            let token = capped.spent().expect("it spent 6");
            let read = world.limiter.read_spent(token.to_ascii().as_ref()).expect("our own text");
            at_once(world.limiter.refund(&request, Hits::new(given_back), SpentAt::Token(read))).unwrap();
            assert_eq!(left(&world), expected, "{limit}: {given_back} of 25");
        }
    }
}

#[test]
fn a_limit_may_say_otherwise_than_its_rule() {
    let world = World::new(
        "- { name: tokens, key: [user], over: debt, limits: [{ limit: 10, window: 1h, over: refuse }] }",
    );
    assert!(!world.charge(USER, 12).allowed);
    assert_eq!(left(&world), 10);
}

#[test]
fn a_request_that_takes_a_place_stays_out_of_debt() {
    let world = World::new(
        "- { name: tokens, key: [user], over: debt, limits: [10/h, { algorithm: concurrency, limit: 1, ttl: 1h }] }",
    );
    assert!(!world.check_cost(USER, 12).allowed);
    assert!(world.check(USER).allowed, "neither place nor quota is gone");
    // What was done already needs no place.
    let _ = world.charge(USER, 5);
    assert!(!world.check(USER).allowed, "the place is taken by the first");
}

#[test]
fn a_refund_repays_a_debt() {
    let world = tokens("over: debt, ");
    let _ = world.charge(USER, 1_200);
    let entries: [(&str, &[u8]); 1] = [("user", b"a")];
    let asks = [DescriptorAsk::one(&entries)];
    at_once(world.limiter.refund(&CheckRequest::new("api", &asks), Hits::new(300), SpentAt::Unknown))
        .unwrap();
    assert_eq!(left(&world), 100);
}

#[test]
fn charges_by_the_library_go_into_debt_too() {
    let world = tokens("over: debt, ");
    let entries: [(&str, &[u8]); 1] = [("user", b"a")];
    let asks = [DescriptorAsk::one(&entries)];
    let request = CheckRequest::new("api", &asks);
    at_once(world.limiter.charge(&request, Hits::new(1_500), SpentAt::Unknown)).unwrap();
    world.advance(Micros::from_secs(1_800));
    assert!(!world.check(USER).allowed, "half an hour repays 500, and nothing is left yet");
    world.advance(Micros::from_secs(4));
    assert!(world.check(USER).allowed);
}

#[test]
fn a_shadow_rule_owes_as_if_it_were_enforced() {
    let world = tokens("over: debt, shadow: true, ");
    assert!(world.charge(USER, 1_200).allowed);
    world.advance(Micros::from_secs(720));
    let looked = world.check_cost(USER, 0);
    let left: Vec<u64> = looked.reports().iter().map(|one| one.limit().unwrap().outcome.remaining).collect();
    assert_eq!(left, [0], "200 were owed");
}

#[test]
fn going_into_debt_begins_a_penalty() {
    let world = tokens("over: debt, penalty: 2h, ");
    let _ = world.check_cost(USER, 600);
    assert!(!world.check_cost(USER, 600).allowed);
    world.advance(Micros::from_secs(5_400));
    assert!(!world.check(USER).allowed, "the limit has room again, the penalty has not ended");
}
