//! `/json`: envoyproxy/ratelimit's form of the same questions and answers.

use serde_json::{Value, json};
use tidegate_testkit::http;

use crate::world::World;

const RULES: &str = "
domain: api
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: plan, value: internal, rate_limit: { unlimited: true } }
";

fn user(value: &str) -> Value {
    json!({ "domain": "api", "descriptors": [{ "entries": [{ "key": "user", "value": value }] }] })
}

#[test]
fn the_answer_has_that_services_shape() {
    let world = World::envoy(RULES);
    let answer = world.post("/json", &user("42"));
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(
        answer.json(),
        json!({
            "overallCode": "OK",
            "statuses": [{
                "code": "OK",
                "currentLimit": { "requestsPerUnit": 2, "unit": "MINUTE", "name": "user" },
                "limitRemaining": 1,
                "durationUntilReset": "60s",
            }],
        })
    );
    world.post("/json", &user("42"));
    let refused = world.post("/json", &user("42"));
    assert_eq!(refused.status, 429);
    assert_eq!(
        refused.json(),
        json!({
            "overallCode": "OVER_LIMIT",
            "statuses": [{
                "code": "OVER_LIMIT",
                "currentLimit": { "requestsPerUnit": 2, "unit": "MINUTE", "name": "user" },
                "durationUntilReset": "60s",
            }],
        })
    );
}

#[test]
fn unlimited_and_unknown_pass_without_a_limit() {
    let world = World::envoy(RULES);
    let entries = json!([{ "key": "plan", "value": "internal" }]);
    let unlimited = json!({ "domain": "api", "descriptors": [{ "entries": entries }] });
    assert_eq!(
        world.post("/json", &unlimited).json(),
        json!({ "overallCode": "OK", "statuses": [{ "code": "OK", "limitRemaining": u32::MAX }] })
    );
    let unknown = json!({ "domain": "shop", "descriptors": [{ "entries": entries }, {}] });
    assert_eq!(
        world.post("/json", &unknown).json(),
        json!({ "overallCode": "OK", "statuses": [{ "code": "OK" }, { "code": "OK" }] })
    );
}

#[test]
fn both_spellings_of_a_field_and_any_content_type_are_read() {
    let world = World::envoy(RULES);
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let body =
        r#"{"domain":"api","descriptors":[{"entries":[{"key":"user","value":"42"}]}],"hits_addend":2}"#;
    let answer = http::request(world.http(), "POST", "/json", &form, body.as_bytes()).unwrap();
    assert_eq!((answer.status, &answer.json()["statuses"][0].get("limitRemaining")), (200, &None));
    assert_eq!(world.post("/json", &user("42")).status, 429);
}

#[test]
fn mistakes_are_problems_that_name_the_field() {
    let world = World::envoy(RULES);
    let bring = |limit: Value| json!({ "domain": "api", "descriptors": [{ "limit": limit }] });
    for (body, status, field) in [
        (json!({ "descriptors": [{}] }), 422, "domain"),
        (json!({ "domain": "api" }), 422, "descriptors"),
        (json!({ "domain": "api", "descriptors": [{}], "hits": 1 }), 422, "hits"),
        (json!({ "domain": "api", "descriptors": [{}], "hitsAddend": -1 }), 422, "hitsAddend"),
        (json!({ "domain": "api", "descriptors": vec![json!({}); 101] }), 422, "descriptors"),
        (bring(json!({ "requestsPerUnit": 1 })), 422, "descriptors[0].limit.unit"),
        (
            bring(json!({ "requestsPerUnit": 1, "unit": "DAY", "unitMultiplier": 0 })),
            422,
            "descriptors[0].limit.unit_multiplier",
        ),
    ] {
        let answer = world.post("/json", &body);
        assert_eq!((answer.status, &answer.json()["field"]), (status, &json!(field)), "{}", answer.text());
    }
    assert_eq!(http::post_json(world.http(), "/json", "{").status, 400);
}

#[test]
fn answers_are_timed_as_http() {
    let world = World::envoy(RULES);
    world.post("/json", &user("42"));
    assert_eq!(world.heard.answered(), [0, 1]);
}
