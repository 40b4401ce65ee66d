//! Leases: taken by a check, renewed, released, ended by their time to live.

use serde_json::{Value, json};
use tidegate_core::Micros;

use crate::world::World;

const UPLOADS: &str = "
domain: api
rules:
  - { name: uploads, key: [user], limits: [{ algorithm: concurrency, limit: 2, ttl: 60s }] }
";

fn take(world: &World) -> Option<Value> {
    let answer = world.check(&json!({ "user": "42" }));
    (answer.status == 200).then(|| json!({ "lease": answer.json()["lease"].as_str().unwrap() }))
}

#[test]
fn a_lease_is_a_text_that_holds_one_place_until_it_is_released() {
    let world = World::new(UPLOADS);
    let (first, second) = (take(&world).unwrap(), take(&world).unwrap());
    assert_ne!(first, second);
    assert_eq!(take(&world), None);
    let released = world.post("/v1/release", &first);
    assert_eq!((released.status, released.text()), (200, r#"{"released":true}"#.to_owned()));
    assert!(take(&world).is_some());
    assert_eq!(take(&world), None);
}

#[test]
fn releasing_twice_does_no_harm_and_says_so() {
    let world = World::new(UPLOADS);
    let (first, _second) = (take(&world).unwrap(), take(&world).unwrap());
    world.post("/v1/release", &first);
    let again = world.post("/v1/release", &first);
    assert_eq!((again.status, again.text()), (200, r#"{"released":false}"#.to_owned()));
    assert!(take(&world).is_some());
    assert_eq!(take(&world), None);
}

#[test]
fn a_lease_ends_by_its_time_to_live_unless_it_is_renewed() {
    let world = World::new(UPLOADS);
    let (renewed, left_alone) = (take(&world).unwrap(), take(&world).unwrap());
    world.advance(Micros::from_secs(40));
    let answer = world.post("/v1/renew", &renewed);
    assert_eq!((answer.status, answer.json()), (200, json!({ "renewed": true, "ttl_ms": 60_000 })));
    world.advance(Micros::from_secs(40));
    assert!(take(&world).is_some());
    assert_eq!(take(&world), None);
    let ended = world.post("/v1/renew", &left_alone);
    assert_eq!((ended.status, &ended.json()["field"]), (410, &json!("lease")));
    assert_eq!(world.post("/v1/renew", &renewed).status, 200);
}

#[test]
fn a_look_takes_no_lease() {
    let world = World::new(UPLOADS);
    let look = json!({ "domain": "api", "attributes": { "user": "42" }, "cost": 0 });
    assert_eq!(world.post("/v1/check", &look).json()["lease"], Value::Null);
}

#[test]
fn what_is_no_lease_is_named() {
    let world = World::new(UPLOADS);
    for path in ["/v1/release", "/v1/renew"] {
        for lease in ["", "nonsense", "AQAAAAAAAAAB", &"A".repeat(60_000)] {
            let answer = world.post(path, &json!({ "lease": lease }));
            assert_eq!((answer.status, &answer.json()["field"]), (422, &json!("lease")), "{lease:.20}");
        }
        assert_eq!(world.post(path, &json!({})).json()["field"], "lease");
        assert_eq!(world.post(path, &json!({ "lease": "A".repeat(65_537) })).status, 422);
    }
}
