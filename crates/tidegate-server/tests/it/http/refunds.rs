//! The refund token of a decision, and what a later refund does with it.

use serde_json::{Value, json};
use tidegate_core::Micros;

use crate::world::World;

/// Ten hits a minute for each user, in a window that begins when the tests do; as many uploads at once as they like; and a
/// bucket that refills one hit a second.
const RULES: &str = "
domain: api
rules:
  - { name: per-user, match: { path: { not: /only-* } }, key: [user], limits: [{ algorithm: fixed_window, limit: 10, window: 1m }] }
  - { name: uploads, match: { path: /only-upload }, key: [user], limits: [{ algorithm: concurrency, limit: 10, ttl: 60s }] }
  - { name: bucket, match: { path: /only-bucket }, key: [user], limits: [{ algorithm: token_bucket, rate: 1/s, burst: 10 }] }
";

fn spend(world: &World, path: &str, cost: u64) -> Value {
    let attributes = json!({ "user": "42", "path": path });
    world.post("/v1/check", &json!({ "domain": "api", "attributes": attributes, "cost": cost })).json()
}

fn refund(world: &World, path: &str, amount: u64, spent: &Value) -> (u16, Value) {
    let attributes = json!({ "user": "42", "path": path });
    let body = json!({ "domain": "api", "attributes": attributes, "amount": amount, "spent": spent });
    let answer = world.post("/v1/refund", &body);
    (answer.status, answer.json())
}

/// How many of user 42's hits are left.
fn left(world: &World, path: &str) -> Value {
    spend(world, path, 0)["remaining"].clone()
}

#[test]
fn hits_of_a_window_that_is_over_are_not_given_to_the_next_one() {
    let world = World::new(RULES);
    let first = spend(&world, "/", 10);
    world.advance(Micros::from_millis(60_050));
    let second = spend(&world, "/", 10);
    assert_eq!((&first["allowed"], &second["allowed"]), (&json!(true), &json!(true)));
    assert_eq!(refund(&world, "/", 10, &first["spent"]).0, 200);
    assert_eq!(spend(&world, "/", 1)["allowed"], false, "the first window's hits were given to the second");
    world.advance(Micros::from_secs(1));
    assert_eq!(refund(&world, "/", 4, &second["spent"]).0, 200);
    assert_eq!(left(&world, "/"), 4, "the second window is not over");
}

#[test]
fn a_refund_counts_as_a_bit_older_than_it_seems_for_clocks_differ() {
    let world = World::new(RULES);
    let ahead = World::new(RULES);
    world.advance(Micros::from_millis(59_980));
    spend(&world, "/", 10);
    // The node that decided it is 40 ms ahead, where the next minute has begun.
    ahead.advance(Micros::from_millis(60_020));
    let spent = spend(&ahead, "/", 10)["spent"].clone();
    world.advance(Micros::from_millis(30));
    assert_eq!(spend(&world, "/", 10)["allowed"], true, "the next minute has begun");
    assert_eq!(refund(&world, "/", 10, &spent).0, 200);
    assert_eq!(left(&world, "/"), 0);
}

#[test]
fn a_bucket_takes_nothing_back_that_has_refilled() {
    let world = World::new(RULES);
    let one = spend(&world, "/only-bucket", 1)["spent"].clone();
    world.advance(Micros::from_secs(5));
    let all = spend(&world, "/only-bucket", 10);
    refund(&world, "/only-bucket", 1, &one);
    assert_eq!(left(&world, "/only-bucket"), 0, "that hit was back after a second");
    refund(&world, "/only-bucket", 3, &all["spent"]);
    assert_eq!(left(&world, "/only-bucket"), 3);
}

#[test]
fn what_spends_nothing_has_nothing_for_a_refund() {
    let world = World::new(RULES);
    for (path, cost, why) in [
        ("/", 0, "a look"),
        ("/only-upload", 1, "a lease is released, not refunded"),
        ("/only-other", 1, "no rule"),
        ("/", 11, "refused"),
    ] {
        assert_eq!(spend(&world, path, cost).get("spent"), None, "{why}");
    }
    let without =
        World::without_store(&RULES.replace("name: per-user,", "name: per-user, on_store_failure: open,"));
    let passed = spend(&without, "/", 1);
    assert_eq!((&passed["source"], passed.get("spent")), (&json!("fallback_open"), None), "nobody counted");
}

#[test]
fn every_decision_of_a_batch_says_when_it_spent() {
    let world = World::new(RULES);
    let check = |cost: u64| json!({ "domain": "api", "attributes": { "user": "42" }, "cost": cost });
    let body = json!({ "checks": [check(6), check(0), check(2)] });
    let answer = world.post("/v1/check/batch", &body).json();
    let spent: Vec<bool> = answer["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|decision| decision["spent"].is_string())
        .collect();
    assert_eq!(spent, [true, false, true], "{answer}");
}

#[test]
fn a_refund_with_a_wrong_spent_is_refused_by_name_and_gives_nothing_back() {
    let world = World::new(RULES);
    let spent = spend(&world, "/", 10)["spent"].as_str().unwrap().to_owned();
    let changed = format!("{}{}", &spent[..19], if spent.ends_with('A') { 'B' } else { 'A' });
    let long = "A".repeat(10_000);
    for wrong in ["", "x", &spent[1..], &format!("{spent}A"), &changed, "AAAAAAAAAAAAAAAAAAAA", &long, "é"] {
        let (status, problem) = refund(&world, "/", 1, &json!(wrong));
        assert_eq!((status, &problem["field"]), (422, &json!("spent")), "{wrong:.40}: {problem}");
    }
    assert_eq!(refund(&world, "/", 1, &json!(7)).1["field"], "spent");
    let both =
        json!({ "domain": "api", "attributes": { "user": "42" }, "amount": 1, "age_ms": 1, "spent": spent });
    let answer = world.post("/v1/refund", &both);
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert_eq!((answer.status, &answer.json()["field"]), (422, &json!("spent")));
    assert!(detail.contains("spent") && detail.contains("age_ms"), "{detail}");
    assert_eq!(left(&world, "/"), 0);
}

#[test]
fn a_decision_from_the_future_is_refused_and_one_that_is_ages_old_gives_nothing_back() {
    let world = World::new(RULES);
    world.advance(Micros::from_secs(600));
    let spent = spend(&world, "/", 10)["spent"].clone();
    let now = tidegate_store::Clock::now(&*world.clock);
    // Another node's clock is behind: by as much as they may differ, then by more.
    world.clock.set(now.back(Micros::from_millis(50)));
    assert_eq!(refund(&world, "/", 1, &spent).0, 200);
    world.clock.set(now.back(Micros::from_millis(51)));
    let (status, problem) = refund(&world, "/", 1, &spent);
    assert_eq!((status, &problem["field"]), (422, &json!("spent")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("clock"), "{problem}");

    world.clock.set(now);
    world.advance(Micros::from_secs(30 * 365 * 86_400));
    spend(&world, "/", 10);
    assert_eq!(refund(&world, "/", 10, &spent).0, 200);
    assert_eq!(left(&world, "/"), 0);
}
