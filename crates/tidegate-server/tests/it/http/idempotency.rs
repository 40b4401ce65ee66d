//! `request_id`: asked again within a minute, a request gets the first answer and spends nothing.

use serde_json::{Value, json};
use tidegate_core::Micros;
use tidegate_store::{Record, Reply, Store as _};

use super::PER_USER;
use crate::world::World;

fn check(user: &str, id: &str) -> Value {
    json!({ "domain": "api", "attributes": { "user": user }, "request_id": id })
}

#[test]
fn a_named_check_spends_once_and_its_answer_is_repeated_headers_and_all() {
    let world = World::new(PER_USER);
    let first = world.post("/v1/check", &check("42", "r-1"));
    world.advance(Micros::from_secs(20));
    let again = world.post("/v1/check", &check("42", "r-1"));
    let told = |answer: &tidegate_testkit::http::Response| {
        let mut headers = answer.headers.clone();
        headers.retain(|(name, _)| name != "date");
        (answer.status, headers, answer.text())
    };
    assert_eq!(told(&first), told(&again));
    assert_eq!(world.left(), 2);
}

#[test]
fn the_order_of_attributes_does_not_make_another_request() {
    let world = World::new(PER_USER);
    let body =
        |attributes: &str| format!(r#"{{"domain":"api","attributes":{{{attributes}}},"request_id":"r"}}"#);
    for attributes in [r#""user":"42","path":"/""#, r#""path":"/","user":"42""#] {
        assert_eq!(
            tidegate_testkit::http::post_json(world.http(), "/v1/check", &body(attributes)).status,
            200
        );
    }
    assert_eq!(world.left(), 2);
}

#[test]
fn a_refusal_is_repeated_too() {
    let world = World::new(PER_USER);
    let all = json!({ "domain": "api", "attributes": { "user": "42" }, "cost": 3 });
    world.post("/v1/check", &all);
    assert_eq!(world.post("/v1/check", &check("42", "r-1")).status, 429);
    world.post("/v1/refund", &json!({ "domain": "api", "attributes": { "user": "42" }, "amount": 3 }));
    assert_eq!(world.post("/v1/check", &check("42", "r-1")).status, 429);
    assert_eq!(world.left(), 3);
}

#[test]
fn a_name_that_stands_for_another_request_is_a_conflict_that_spends_nothing() {
    let world = World::new(PER_USER);
    world.post("/v1/check", &check("42", "r-1"));
    let mut costlier = check("42", "r-1");
    costlier["cost"] = json!(2);
    let refund = json!({ "domain": "api", "attributes": { "user": "42" }, "amount": 1, "request_id": "r-1" });
    for (path, other) in [("/v1/check", costlier), ("/v1/refund", refund)] {
        let answer = world.post(path, &other);
        assert_eq!((answer.status, &answer.json()["field"]), (409, &json!("request_id")), "{other}");
        assert_eq!(answer.json()["hint"], "use a new request_id for a new request");
    }
    assert_eq!(world.left(), 2);
}

#[test]
fn a_name_of_one_caller_is_not_anothers() {
    let world = World::new(PER_USER);
    // Somebody guesses it, and is first.
    assert_eq!(world.post("/v1/check", &check("7", "r-1")).status, 200);
    for _ in 0..2 {
        let answer = world.post("/v1/check", &check("42", "r-1"));
        assert_eq!((answer.status, &answer.json()["remaining"]), (200, &json!(2)));
    }
}

#[test]
fn after_a_minute_the_name_is_free() {
    let world = World::new(PER_USER);
    let costlier = json!({ "domain": "api", "attributes": { "user": "42" }, "request_id": "r-1", "cost": 2 });
    world.post("/v1/check", &check("42", "r-1"));
    world.advance(Micros::from_secs(60));
    assert_eq!(world.post("/v1/check", &check("42", "r-1")).json()["remaining"], 2);
    assert_eq!(world.post("/v1/check", &costlier).status, 409);
    world.advance(Micros::from_secs(60));
    assert_eq!(world.post("/v1/check", &costlier).status, 200);
}

#[test]
fn a_name_is_kept_for_its_minute_however_many_follow() {
    let world = World::new(PER_USER);
    let first = world.post("/v1/check", &check("42", "r-1")).json();
    // More than 65,536, which once were the most.
    for batch in 0..700 {
        let named = |number| check("7", &format!("other-{batch}-{number}"));
        let checks: Vec<Value> = (0..100).map(named).collect();
        assert_eq!(world.post("/v1/check/batch", &json!({ "checks": checks })).status, 200);
    }
    assert_eq!(world.post("/v1/check", &check("42", "r-1")).json(), first);
    assert_eq!(world.left(), 2);
}

#[test]
fn a_name_for_which_there_is_no_room_is_refused_and_spends_nothing() {
    let (world, store) = World::with_store(PER_USER);
    // All the memory that names have.
    let large = vec![0; (128 << 20) - 2_048];
    let full = Record { name: b"large", value: &large };
    let kept = store.put_record(full, Micros::from_secs(60));
    assert!(matches!(kept, Reply::Now(Ok(None))));
    let mut answers = (0..10).map(|number| world.post("/v1/check", &check("42", &format!("r-{number}"))));
    let answer = answers.find(|answer| answer.status != 200).expect("there is room for a few");
    assert_eq!((answer.status, &answer.json()["field"]), (503, &json!("request_id")), "{}", answer.text());
    assert_eq!(answer.json()["hint"], "nothing was spent: try again later, or leave request_id out");
}

#[test]
fn a_named_refund_gives_back_once() {
    let world = World::new(PER_USER);
    world.post("/v1/check", &json!({ "domain": "api", "attributes": { "user": "42" }, "cost": 3 }));
    let refund = json!({ "domain": "api", "attributes": { "user": "42" }, "amount": 1, "request_id": "f-1" });
    for _ in 0..3 {
        let answer = world.post("/v1/refund", &refund);
        assert_eq!((answer.status, answer.text()), (200, r#"{"refunded":1}"#.to_owned()));
    }
    assert_eq!(world.left(), 1);
}

#[test]
fn names_hold_between_checks_and_batches() {
    let world = World::new(PER_USER);
    let first = world.post("/v1/check", &check("42", "r-1")).json();
    let unnamed = json!({ "domain": "api", "attributes": { "user": "42" } });
    let batch = json!({ "checks": [unnamed, check("42", "r-1"), check("42", "r-2")] });
    let decisions = world.post("/v1/check/batch", &batch).json()["decisions"].clone();
    assert_eq!(decisions[1], first);
    assert_eq!([&decisions[0]["remaining"], &decisions[2]["remaining"]], [1, 0]);
    assert_eq!(world.post("/v1/check", &check("42", "r-2")).json(), decisions[2]);
    assert_eq!(world.left(), 0);
}

#[test]
fn a_batch_with_a_conflict_or_one_name_twice_spends_nothing() {
    let world = World::new(PER_USER);
    world.post(
        "/v1/check",
        &json!({ "domain": "api", "attributes": { "user": "42" }, "request_id": "r-1", "cost": 0 }),
    );
    let conflict =
        world.post("/v1/check/batch", &json!({ "checks": [check("42", "r-2"), check("42", "r-1")] }));
    assert_eq!((conflict.status, &conflict.json()["field"]), (409, &json!("checks[1].request_id")));
    let twice = world.post("/v1/check/batch", &json!({ "checks": [check("42", "r-3"), check("42", "r-3")] }));
    assert_eq!((twice.status, &twice.json()["field"]), (422, &json!("checks[1].request_id")));
    assert_eq!(world.left(), 3);
    let of_two =
        world.post("/v1/check/batch", &json!({ "checks": [check("42", "r-4"), check("43", "r-4")] }));
    assert_eq!(of_two.status, 200, "each caller has its own names");
    assert_eq!(world.left(), 2);
    // Neither left a trace: their names are free.
    assert_eq!(world.post("/v1/check", &check("42", "r-2")).status, 200);
    assert_eq!(world.post("/v1/check", &check("42", "r-3")).status, 200);
}

#[test]
fn a_request_that_was_wrong_does_not_keep_its_name() {
    let world = World::new(PER_USER);
    let wrong = json!({ "domain": "shop", "request_id": "r-1" });
    assert_eq!(world.post("/v1/check", &wrong).status, 422);
    assert_eq!(world.post("/v1/check", &wrong).status, 422);
}

#[test]
fn the_same_name_in_another_domain_is_another_name() {
    let rules = "domain: api\nrules: [{ name: a, limits: [9/minute] }]\n---\ndomain: shop\nrules: [{ name: a, limits: [9/minute] }]\n";
    let world = World::new(rules);
    for domain in ["api", "shop"] {
        let answer =
            world.post("/v1/check", &json!({ "domain": domain, "request_id": "r", "cost": domain.len() }));
        assert_eq!(answer.status, 200);
    }
}
