//! Hits that a descriptor spends, reads, or refunds.

use tidegate_core::Micros;
use tidegate_server::rls::{Code, RateLimitDescriptor, RateLimitRequest};

use super::told;
use crate::world::{World, descriptor, request};

const RULES: &str = "
domain: api
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 10 } }
";

fn user(hits: Option<u64>) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: hits, ..descriptor(&[("user", "42")]) }
}

fn back(hits: Option<u64>) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..user(hits) }
}

/// What is left after each of these requests: the hits of the request, and of its one descriptor.
async fn left(world: &World, asked: &[(u32, RateLimitDescriptor)]) -> Vec<(Code, u32)> {
    let mut left = Vec::new();
    for (hits_addend, descriptor) in asked {
        let request = RateLimitRequest { hits_addend: *hits_addend, ..request([descriptor.clone()]) };
        let answer = world.ask(request).await.unwrap();
        left.push((answer.overall_code(), answer.statuses[0].limit_remaining));
    }
    left
}

#[tokio::test]
async fn hits_of_the_request_count_and_none_means_one() {
    let world = World::envoy(RULES);
    let asked = [(0, user(None)), (1, user(None)), (5, user(None))];
    assert_eq!(left(&world, &asked).await, [(Code::Ok, 9), (Code::Ok, 8), (Code::Ok, 3)]);
}

#[tokio::test]
async fn a_descriptors_own_hits_come_first_and_zero_looks() {
    let world = World::envoy(RULES);
    let asked = [(5, user(Some(2))), (5, user(Some(0))), (0, user(Some(0))), (0, user(Some(8)))];
    assert_eq!(left(&world, &asked).await, [(Code::Ok, 8), (Code::Ok, 8), (Code::Ok, 8), (Code::Ok, 0)]);
    // A check with cost 0 reports what one hit would get.
    assert_eq!(left(&world, &[(0, user(Some(0)))]).await, [(Code::OverLimit, 0)]);
}

#[tokio::test]
async fn each_descriptor_spends_its_own_hits() {
    let world = World::envoy(RULES);
    let other = RateLimitDescriptor { hits_addend: Some(4), ..descriptor(&[("user", "7")]) };
    let both = RateLimitRequest { hits_addend: 3, ..request([user(None), other]) };
    assert_eq!(told(&world.ask(both).await.unwrap()).1, ["OK 7 of 10/MINUTE 60s", "OK 6 of 10/MINUTE 60s"]);
}

#[tokio::test]
async fn more_hits_than_are_left_are_charged_and_refused() {
    let world = World::envoy(RULES);
    let asked = [(0, user(Some(7))), (0, user(Some(4))), (0, user(Some(u64::MAX))), (u32::MAX, user(None))];
    assert_eq!(
        left(&world, &asked).await,
        [(Code::Ok, 3), (Code::OverLimit, 0), (Code::OverLimit, 0), (Code::OverLimit, 0)]
    );
}

#[tokio::test]
async fn negative_hits_give_back_at_most_what_was_spent() {
    let world = World::envoy(RULES);
    let asked = [
        (0, user(Some(8))),
        (0, back(Some(3))),
        // The request's hits, where the descriptor has none of its own, and one where neither has.
        (2, back(None)),
        (0, back(None)),
        (0, back(Some(u64::MAX))),
        (0, back(Some(0))),
        (0, user(Some(10))),
    ];
    assert_eq!(
        left(&world, &asked).await,
        [
            (Code::Ok, 2),
            (Code::Ok, 5),
            (Code::Ok, 7),
            (Code::Ok, 8),
            (Code::Ok, 10),
            (Code::Ok, 10),
            (Code::Ok, 0)
        ]
    );
}

#[tokio::test]
async fn negative_hits_of_a_request_that_is_refused_are_not_given_back() {
    let world = World::envoy(RULES);
    left(&world, &[(0, user(Some(10)))]).await;
    let other = RateLimitDescriptor { hits_addend: Some(11), ..descriptor(&[("user", "7")]) };
    let answer = world.ask(request([back(Some(4)), other])).await.unwrap();
    assert_eq!(
        told(&answer),
        (Code::OverLimit, vec!["OVER 0 of 10/MINUTE 60s".to_owned(), "OVER 0 of 10/MINUTE 60s".to_owned()])
    );
    assert_eq!(left(&world, &[(0, back(Some(4)))]).await, [(Code::Ok, 4)]);
}

/// The protocol has no field for when hits were spent.
#[tokio::test]
async fn negative_hits_go_back_into_the_current_window_whichever_they_were_spent_in() {
    let world = World::envoy(RULES);
    left(&world, &[(0, user(Some(10)))]).await;
    world.advance(Micros::from_secs(60));
    let asked = [(0, user(Some(10))), (0, back(Some(4))), (0, user(Some(4)))];
    assert_eq!(left(&world, &asked).await, [(Code::Ok, 0), (Code::Ok, 4), (Code::Ok, 0)]);
}
