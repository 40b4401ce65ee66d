//! `/v1/check/batch`.

use serde_json::{Value, json};

use super::PER_USER;
use crate::world::World;

fn one(user: &str) -> Value {
    json!({ "domain": "api", "attributes": { "user": user } })
}

#[test]
fn checks_are_decided_in_their_order_each_by_itself() {
    let world = World::new(PER_USER);
    let two = json!({ "domain": "api", "attributes": { "user": "42" }, "cost": 2 });
    let checks = [one("42"), one("7"), two.clone(), two, one("7")];
    let answer = world.post("/v1/check/batch", &json!({ "checks": checks }));
    assert_eq!(answer.status, 200);
    let body = answer.json();
    let decisions: Vec<_> = body["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["allowed"].as_bool().unwrap(), one["remaining"].as_u64().unwrap()))
        .collect();
    // 42 has three: one, then two more, then two that do not fit. 7 goes on beside it.
    assert_eq!(decisions, [(true, 2), (true, 2), (true, 0), (false, 0), (true, 1)]);
}

#[test]
fn each_decision_is_what_a_check_alone_would_have_been_answered() {
    let (batched, alone) = (World::new(PER_USER), World::new(PER_USER));
    let checks: Vec<Value> = (0..5).map(|_| one("42")).collect();
    let decisions = batched.post("/v1/check/batch", &json!({ "checks": checks })).json();
    for (check, decision) in checks.iter().zip(decisions["decisions"].as_array().unwrap()) {
        assert_eq!(&alone.post("/v1/check", check).json(), decision);
    }
}

#[test]
fn an_empty_batch_has_no_decisions() {
    let world = World::new(PER_USER);
    assert_eq!(world.post("/v1/check/batch", &json!({ "checks": [] })).text(), r#"{"decisions":[]}"#);
}

#[test]
fn one_wrong_check_refuses_the_batch_and_spends_nothing() {
    let world = World::new(PER_USER);
    let good = one("42");
    for (wrong, field) in [
        (json!({ "domain": "shop" }), "checks[1].domain"),
        (json!({ "domain": "api", "cost": -1 }), "checks[1].cost"),
        (json!({ "domain": "api", "attributes": { "user": 42 } }), "checks[1].attributes.user"),
        (json!({ "domain": "api", "costs": 1 }), "checks[1].costs"),
        (json!([]), "checks[1]"),
    ] {
        let answer = world.post("/v1/check/batch", &json!({ "checks": [good, wrong] }));
        assert_eq!((answer.status, &answer.json()["field"]), (422, &json!(field)), "{wrong}");
    }
    assert_eq!(world.left(), 3);
}

#[test]
fn a_hundred_checks_are_taken_and_one_more_is_too_many() {
    let world = World::new(PER_USER);
    let checks = |count: usize| json!({ "checks": vec![one("42"); count] });
    let most = world.post("/v1/check/batch", &checks(100));
    assert_eq!((most.status, most.json()["decisions"].as_array().unwrap().len()), (200, 100));
    let many = world.post("/v1/check/batch", &checks(101));
    assert_eq!((many.status, &many.json()["hint"]), (422, &json!("send several batches")));
}
