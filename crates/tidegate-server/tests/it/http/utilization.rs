//! `/v1/utilization`, and the answers to a gateway meanwhile.

use tidegate_core::Micros;
use tidegate_http::identity::{Identity, IdentityConfig};
use tidegate_testkit::http::{self, Response};

use crate::world::World;

const RULES: &str = "
domain: api
rules:
  - { name: few, key: [], limits: [{ algorithm: fixed_window, limit: 2, window: 1d }] }
  - { name: pay, match: { path: /pay }, limits: unlimited, priority: P0, overrides: [few] }
";

fn report(world: &World, body: &str) -> Response {
    http::post_json(world.http(), "/v1/utilization", body)
}

fn auth(world: &World, path: &str) -> Response {
    let headers = [("x-forwarded-uri", path), ("x-forwarded-method", "GET")];
    http::request(world.http(), "GET", "/v1/auth?domain=api", &headers, b"").unwrap()
}

#[test]
fn what_is_reported_sheds_what_gateways_ask_about_until_it_is_old_and_spends_nothing() {
    let world = World::new(RULES);
    let told = report(&world, r#"{"in_use":17,"capacity":20}"#);
    assert_eq!((told.status, told.json()["utilization"].as_f64()), (200, Some(0.85)));
    for _ in 0..3 {
        let shed = auth(&world, "/notes");
        assert_eq!((shed.status, shed.header("retry-after")), (503, Some("1")));
        assert_eq!(shed.header("content-type"), Some("application/problem+json"));
        assert!(shed.json()["detail"].as_str().unwrap().contains("priority P2"), "{}", shed.text());
    }
    assert_eq!(auth(&world, "/pay").status, 200, "P0 is never shed");
    world.clock.advance(Micros::from_secs(10));
    assert_eq!([(); 3].map(|()| auth(&world, "/notes").status), [200, 200, 429], "both are left");
}

#[test]
fn a_gateway_that_knows_few_statuses_is_told_the_one_it_wants() {
    let world = World::new(RULES);
    report(&world, r#"{"in_use":20,"capacity":20}"#);
    let answer = http::get(world.http(), "/v1/auth?domain=api&deny_status=403");
    assert_eq!((answer.status, answer.json()["status"].as_u64()), (403, Some(503)));
    assert_eq!(answer.header("x-tidegate-status"), Some("503"));
}

#[test]
fn a_report_that_makes_no_sense_changes_nothing() {
    let world = World::new(RULES);
    for (body, status, field) in [
        (r#"{"in_use":1,"capacity":0}"#, 422, "capacity"),
        (r#"{"in_use":-1,"capacity":1}"#, 422, "in_use"),
        (r#"{"in_use":1}"#, 422, "capacity"),
        (r#"{"in_use":1.5,"capacity":2}"#, 422, "in_use"),
    ] {
        let answer = report(&world, body);
        assert_eq!((answer.status, answer.json()["field"].as_str()), (status, Some(field)), "{body}");
    }
    let most = report(&world, r#"{"in_use":0,"capacity":18446744073709551615}"#);
    assert_eq!((most.status, auth(&world, "/notes").status), (200, 200));
}

#[test]
fn a_server_that_sheds_no_load_says_so() {
    let identity = Identity::new(&IdentityConfig::default()).unwrap();
    let world = World::identified(RULES, identity);
    let answer = report(&world, r#"{"in_use":1,"capacity":2}"#);
    assert_eq!(answer.status, 404);
    assert!(answer.json()["hint"].as_str().unwrap().contains("shedding"), "{}", answer.text());
}
