//! Once refused, refused for at least as long as the rule says.

use tidegate_core::{Hits, Micros};
use tidegate_limiter::{CheckRequest, Decision, DescriptorAsk, SpentAt};

use crate::world::{World, at_once, told};

const RULES: &str = "- { name: login, key: [user], penalty: 5m, limits: [2/s] }";

fn retry_after(decision: &Decision) -> Option<Micros> {
    assert!(!decision.allowed);
    decision.governing()?.limit()?.outcome.retry_after()
}

/// A world in which `user` has just been refused.
fn refused_once() -> World {
    let world = World::new(RULES);
    for remaining in [1, 0] {
        let decision = world.check(&[("user", "a")]);
        assert!(decision.allowed);
        // A penalty that does not apply tells no numbers.
        assert_eq!(told(&decision), (Some("login"), 2, remaining));
    }
    assert_eq!(retry_after(&world.check(&[("user", "a")])), Some(Micros::from_secs(300)));
    world
}

#[test]
fn once_refused_a_caller_is_refused_until_the_penalty_is_over() {
    let world = refused_once();
    world.advance(Micros::from_secs(10));
    // Its limit has long had room again. Asking on does not make it longer.
    assert_eq!(retry_after(&world.check(&[("user", "a")])), Some(Micros::from_secs(290)));
    assert!(world.check(&[("user", "b")]).allowed, "a penalty is for one key");
    world.advance(Micros::from_secs(290).saturating_sub(Micros::ONE));
    assert_eq!(retry_after(&world.check(&[("user", "a")])), Some(Micros::ONE));
    world.advance(Micros::ONE);
    assert!(world.check(&[("user", "a")]).allowed);
}

#[test]
fn looking_begins_no_penalty() {
    let world = World::new(RULES);
    let _ = world.check_cost(&[("user", "a")], 2);
    assert!(!world.check_cost(&[("user", "a")], 0).allowed);
    world.advance(Micros::from_secs(1));
    assert!(world.check(&[("user", "a")]).allowed);
}

#[test]
fn a_cost_above_the_whole_limit_begins_a_penalty() {
    let world = World::new(RULES);
    assert!(!world.check_cost(&[("user", "a")], 99).allowed);
    assert_eq!(retry_after(&world.check(&[("user", "a")])), Some(Micros::from_secs(300)));
}

#[test]
fn a_refund_lifts_no_penalty_and_a_reset_does() {
    let world = refused_once();
    let entries: [(&str, &[u8]); 1] = [("user", b"a")];
    let ask = DescriptorAsk::one(&entries).cost(Hits::new(1));
    let asks = [ask];
    let request = CheckRequest::new("api", &asks);
    at_once(world.limiter.refund(&request, Hits::new(2), SpentAt::Unknown)).unwrap();
    assert!(!world.check(&[("user", "a")]).allowed);
    at_once(world.limiter.reset(&request)).unwrap();
    assert!(world.check(&[("user", "a")]).allowed);
}

#[test]
fn a_penalty_begins_within_a_batch() {
    let world = World::new(RULES);
    let entries: [(&str, &[u8]); 1] = [("user", b"a")];
    let costs = [1, 2, 1, 1].map(|cost| [DescriptorAsk::one(&entries).cost(Hits::new(cost))]);
    let requests = costs.each_ref().map(|asks| CheckRequest::new("api", asks));
    let decisions = at_once(world.limiter.check_batch(&requests));
    let allowed: Vec<bool> = decisions.iter().map(|one| one.as_ref().unwrap().allowed).collect();
    assert_eq!(allowed, [true, false, false, false], "who was refused is refused for five minutes");
}
