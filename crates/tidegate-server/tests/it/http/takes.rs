//! Hits that clients take ahead. The numbers are worked out by hand; the exchange in the documentation is run as it stands there.

use serde_json::{Value, json};
use tidegate_core::Micros;

use crate::world::World;

const LEASING: &str = include_str!("../../../../../docs/reference/leasing.md");

/// A hundred hits a minute, in a window that begins when the tests do; and at most fifteen a second.
const RULES: &str = "
domain: api
rules:
  - name: per-user
    key: [user]
    limits: [{ algorithm: fixed_window, limit: 100, window: 1m }]
    lease_to_clients: true
  - name: staff
    match: { plan: staff }
    limits: unlimited
  - name: evenly
    match: { path: /slow }
    key: [user]
    limits: [{ algorithm: token_bucket, rate: 5/s, burst: 20 }]
    lease_to_clients: true
  - name: secret
    match: { path: /secret }
    visible: false
    limits: [1000/minute]
";

fn take(world: &World, attributes: &Value, hits: u64) -> Value {
    let takes = json!([{ "attributes": attributes, "hits": hits }]);
    let answer = world.post("/v1/take", &json!({ "protocol": 1, "domain": "api", "takes": takes }));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["answers"][0].clone()
}

fn give_back(world: &World, attributes: &Value, hits: u64, age_ms: u64) {
    let returns = json!([{ "attributes": attributes, "hits": hits, "age_ms": age_ms }]);
    let answer = world.post("/v1/take", &json!({ "protocol": 1, "domain": "api", "returns": returns }));
    assert_eq!((answer.status, answer.json()), (200, json!({ "answers": [] })));
}

fn left(world: &World, attributes: &Value) -> Value {
    let look = world.post("/v1/check", &json!({ "domain": "api", "attributes": attributes, "cost": 0 }));
    look.json()["remaining"].clone()
}

#[test]
fn the_documented_exchange_is_answered_as_documented() {
    let blocks: Vec<&str> = LEASING.split("```").skip(1).step_by(2).collect();
    let rules = blocks.iter().find_map(|block| block.strip_prefix("yaml")).unwrap();
    let messages: Vec<Value> = blocks
        .iter()
        .filter_map(|block| block.strip_prefix("json"))
        .map(|block| serde_json::from_str(block).unwrap())
        .collect();
    let world = World::new(rules);
    assert_eq!(messages.len(), 4);
    for (number, exchange) in messages.chunks(2).enumerate() {
        world.advance(Micros::from_secs(2 * number as u64));
        let answer = world.post("/v1/take", &exchange[0]);
        assert_eq!((answer.status, answer.json()), (200, exchange[1].clone()), "message {number}");
    }
}

#[test]
fn a_take_gets_what_every_limit_has_and_checks_count_with_it() {
    let world = World::new(RULES);
    let both = json!({ "user": "42", "path": "/slow" });
    // A burst of 20 that may be spent 250 ms late is one of 18: 1.25 hits refill meanwhile.
    assert_eq!(take(&world, &both, 50)["granted"], 18);
    let refused = take(&world, &both, 50);
    assert_eq!((&refused["granted"], &refused["retry_after_ms"]), (&json!(0), &json!(200)));
    assert_eq!(left(&world, &json!({ "user": "42" })), 82, "what was refused spends nothing");
    assert_eq!(world.check(&json!({ "user": "42" })).json()["remaining"], 81);
    assert_eq!(take(&world, &json!({ "user": "42" }), 90)["granted"], 81);
    assert_eq!(world.check(&json!({ "user": "42" })).json()["allowed"], false);
}

#[test]
fn hits_are_held_for_a_second_and_never_into_the_next_window() {
    let world = World::new(RULES);
    let user = json!({ "user": "42" });
    assert_eq!(take(&world, &user, 1)["held_ms"], 1_000);
    world.advance(Micros::from_millis(59_600));
    assert_eq!(take(&world, &user, 1)["held_ms"], 400);
    assert_eq!(
        take(&world, &json!({ "plan": "staff" }), 7)["granted"],
        7,
        "a rule without a limit lends any"
    );
}

#[test]
fn returned_hits_go_back_into_their_window_and_into_no_later_one() {
    let world = World::new(RULES);
    let user = json!({ "user": "42" });
    world.advance(Micros::from_secs(59));
    take(&world, &user, 60);
    give_back(&world, &user, 20, 10);
    assert_eq!(left(&world, &user), 60);
    world.advance(Micros::from_secs(2));
    take(&world, &user, 30);
    give_back(&world, &user, 10, 2_000);
    assert_eq!(left(&world, &user), 70, "the next window got hits of the one before");
}

#[test]
fn a_rule_that_does_not_lease_has_each_request_asked_for_and_hides_if_it_is_hidden() {
    let world = World::new(RULES);
    let answer = take(&world, &json!({ "user": "42", "path": "/secret" }), 5);
    assert_eq!(answer, json!({ "ask": "a rule has no `lease_to_clients: true`" }));
    assert_eq!(left(&world, &json!({ "user": "42" })), 100);
}

#[test]
fn a_wrong_message_is_refused_whole_with_the_field_and_a_way_out() {
    let world = World::new(RULES);
    let one = json!({ "attributes": { "user": "42" }, "hits": 5 });
    let none = json!({ "attributes": { "user": "43" }, "hits": 0 });
    let many = vec![one.clone(); 201];
    for (body, field, says) in [
        (json!({ "protocol": 2, "domain": "api", "takes": [one] }), "protocol", "ask `/v1/check`"),
        (json!({ "protocol": 1, "domain": "ape", "takes": [one] }), "domain", "known domains: api"),
        (json!({ "protocol": 1, "domain": "api", "takes": [one, none] }), "takes[1].hits", "at least 1"),
        (
            json!({ "protocol": 1, "domain": "api", "takes": [one], "returns": [{ "hits": 0, "age_ms": 1 }] }),
            "returns[0].hits",
            "at least 1",
        ),
        (json!({ "protocol": 1, "domain": "api", "takes": many }), "takes", "several messages"),
        (json!({ "protocol": 1, "domain": "api", "takes": [{ "hits": "5" }] }), "takes[0].hits", "quotes"),
        (json!({ "domain": "api", "takes": [one] }), "protocol", "protocol"),
    ] {
        let answer = world.post("/v1/take", &body);
        let problem = answer.text();
        assert_eq!(answer.status, 422, "{problem}");
        assert!(problem.contains(field) && problem.contains(says), "{field}: {problem}");
    }
    assert_eq!(left(&world, &json!({ "user": "42" })), 100, "a refused message spent something");
    assert_eq!(
        take(&world, &json!({ "user": "42" }), u64::MAX)["granted"],
        100,
        "all there are, and no more"
    );
}

#[test]
fn a_store_that_does_not_answer_leaves_takes_to_the_rules_policy() {
    let rule = |policy: &str| {
        format!(
            "domain: api\nrules: [{{ name: r, limits: [100/minute], lease_to_clients: true, on_store_failure: {policy} }}]"
        )
    };
    for (policy, granted) in [("open", 40), ("closed", 0), ("local", 40)] {
        let world = World::without_store(&rule(policy));
        assert_eq!(take(&world, &json!({}), 40)["granted"], granted, "{policy}");
    }
}
