use tidegate_core::Micros;
use tidegate_limiter::{LeaseError, LeaseToken, LeaseTokenError};

use crate::world::{World, at_once};

const UPLOADS: &str =
    "- { name: uploads, key: [user], limits: [{ algorithm: concurrency, limit: 2, ttl: 30s }, 100/minute] }";

fn token(world: &World, text: &str) -> LeaseToken {
    world.limiter.read_lease(text).unwrap()
}

#[test]
fn a_lease_given_back_makes_room_and_can_be_given_back_once() {
    let world = World::new(UPLOADS);
    let first = world.check(&[("user", "1")]).lease.unwrap().to_string();
    let second = world.check(&[("user", "1")]);
    assert!(second.allowed && second.lease.is_some());
    let third = world.check(&[("user", "1")]);
    assert!(!third.allowed && third.lease.is_none());

    at_once(world.limiter.release(&token(&world, &first))).unwrap();
    assert!(matches!(at_once(world.limiter.release(&token(&world, &first))), Err(LeaseError::Ended)));
    assert!(world.check(&[("user", "1")]).allowed);
}

#[test]
fn a_lease_ends_by_itself_unless_renewed() {
    let world = World::new(UPLOADS);
    let kept = world.check(&[("user", "1")]).lease.unwrap();
    let lost = world.check(&[("user", "1")]).lease.unwrap();
    world.advance(Micros::from_secs(20));
    at_once(world.limiter.renew(&kept)).unwrap();
    world.advance(Micros::from_secs(20));
    assert!(matches!(at_once(world.limiter.renew(&lost)), Err(LeaseError::Ended)));
    assert!(world.check(&[("user", "1")]).allowed);
    assert!(!world.check(&[("user", "1")]).allowed);
    assert_eq!(kept.ttl(), Micros::from_secs(30));
}

#[test]
fn a_look_and_an_expensive_request_take_no_lease_and_one() {
    let world = World::new(UPLOADS);
    assert!(world.check_cost(&[("user", "1")], 0).lease.is_none());
    assert!(world.check_cost(&[("user", "1")], 50).lease.is_some());
    assert!(world.check(&[("user", "1")]).allowed);
    assert!(!world.check(&[("user", "1")]).allowed);
}

#[test]
fn a_request_refused_by_another_limit_takes_no_lease() {
    let world = World::new(
        "- { name: a, key: [user], limits: [{ algorithm: concurrency, limit: 1, ttl: 30s }] }\n\
         - { name: b, limits: [{ algorithm: fixed_window, limit: 1, window: 1m }] }",
    );
    assert!(world.check(&[("user", "1")]).allowed);
    assert!(!world.check(&[("user", "2")]).allowed);
    world.advance(Micros::from_secs(60));
    assert!(world.check(&[("user", "2")]).allowed);
}

#[test]
fn a_lease_that_another_wrote_is_no_lease() {
    let (world, other) = (World::new(UPLOADS), World::new(UPLOADS));
    let theirs = other.check(&[("user", "1")]).lease.unwrap().to_string();
    assert_eq!(world.limiter.read_lease(&theirs), Err(LeaseTokenError::NotSigned));
    assert_eq!(world.limiter.read_lease("a lease"), Err(LeaseTokenError::Malformed));
}
