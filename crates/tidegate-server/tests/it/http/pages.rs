//! Health, refunds, and what is not there.

use serde_json::json;
use tidegate_rules::Format;
use tidegate_server::service::ServiceSettings;
use tidegate_testkit::http;

use super::PER_USER;
use crate::world::World;

#[test]
fn a_process_that_answers_is_healthy_and_ready_with_rules() {
    let world = World::new(PER_USER);
    for (path, text) in [("/healthz", "ok\n"), ("/readyz", "ready\n")] {
        let answer = http::get(world.http(), path);
        assert_eq!((answer.status, answer.text()), (200, text.to_owned()));
        let head = http::request(world.http(), "HEAD", path, &[], b"").unwrap();
        assert_eq!((head.status, head.body), (200, Vec::new()));
    }
}

#[test]
fn healthcheck_and_rlconfig_answer_as_envoyproxy_ratelimit_does() {
    let world = World::envoy(
        "{ domain: mongo_cps, descriptors: [
          { key: database, value: users, rate_limit: { unit: second, requests_per_unit: 500 } },
          { key: database, value: trial, shadow_mode: true, rate_limit: { unit: week, requests_per_unit: 7 } } ] }",
    );
    let health = http::get(world.http(), "/healthcheck");
    assert_eq!((health.status, health.text().as_str()), (200, "OK"));
    let expected = "mongo_cps.database_users: unit=SECOND requests_per_unit=500, shadow_mode: false\n\
                    mongo_cps.database_trial: unit=WEEK requests_per_unit=7, shadow_mode: true\n";
    assert_eq!(http::get(world.http(), "/rlconfig").text(), expected);
}

#[test]
fn rlconfig_leaves_out_hidden_rules() {
    let world = World::new(
        "{ domain: api, rules: [{ name: a, limits: [5/10s] }, { name: b, visible: false, limits: [1/s] }] }",
    );
    let expected = "api.a: unit=SECOND unit_multiplier=10 requests_per_unit=5, shadow_mode: false\n";
    assert_eq!(http::get(world.http(), "/rlconfig").text(), expected);
}

fn limitador(switch: bool) -> World {
    let settings = ServiceSettings { limitador_api: switch, ..ServiceSettings::default() };
    World::with(PER_USER, Format::Native, settings)
}

#[test]
fn limitador_api_checks_reports_and_does_both() {
    let world = limitador(true);
    let status = |path: &str, delta: u64| {
        let body = json!({ "namespace": "api", "values": { "user": "42" }, "delta": delta });
        world.post(path, &body).status
    };
    // Three a minute: a check spends nothing.
    assert_eq!([status("/check", 3), status("/check", 4)], [200, 429]);
    assert_eq!(status("/check_and_report", 2), 200);
    assert_eq!([status("/check", 1), status("/check", 2)], [200, 429]);
    assert_eq!(status("/report", 1), 200);
    assert_eq!([status("/check", 1), status("/check_and_report", 1)], [429, 429]);
    let headers =
        json!({ "namespace": "api", "values": { "user": "7" }, "response_headers": "DRAFT_VERSION_03" });
    let answer = world.post("/check_and_report", &headers);
    assert_eq!((answer.header("x-ratelimit-remaining"), answer.text()), (Some("2"), String::new()));
    let unknown = world.post("/check_and_report", &json!({ "namespace": "none", "values": {} }));
    assert_eq!(unknown.status, 200, "as Limitador answers");
    assert_eq!(world.post("/check", &json!({ "namespace": "api" })).status, 400);
}

#[test]
fn limitador_api_is_off_unless_switched_on() {
    let body = json!({ "namespace": "api", "values": {} });
    assert_eq!(limitador(false).post("/check_and_report", &body).status, 404);
}

#[test]
fn without_rules_it_is_healthy_but_not_ready() {
    let world = World::without_rules();
    assert_eq!(http::get(world.http(), "/healthz").status, 200);
    let answer = http::get(world.http(), "/readyz");
    assert_eq!((answer.status, answer.text()), (503, "no rules\n".to_owned()));
    let check = world.check(&json!({}));
    assert_eq!(
        (check.status, &check.json()["hint"]),
        (422, &json!("known domains: none: no rules are loaded"))
    );
}

#[test]
fn while_the_store_is_away_it_is_ready_but_degraded_and_names_no_server() {
    let world = World::without_store(PER_USER);
    assert_eq!(http::get(world.http(), "/readyz").text(), "ready\n");
    for _ in 0..3 {
        world.check(&json!({ "user": "42" }));
    }
    let answer = http::get(world.http(), "/readyz");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.text(), "degraded\nsome of the store does not answer\n");
}

#[test]
fn a_refund_gives_back_at_most_what_was_spent() {
    let world = World::new(PER_USER);
    world.check(&json!({ "user": "42" }));
    let refund = json!({ "domain": "api", "attributes": { "user": "42" }, "amount": u64::MAX });
    assert_eq!(world.post("/v1/refund", &refund).status, 200);
    assert_eq!(world.left(), 3);
}

#[test]
fn a_refund_that_the_store_did_not_hear_is_an_error() {
    let world = World::without_store(PER_USER);
    let refund = json!({ "domain": "api", "attributes": { "user": "42" }, "amount": 1 });
    let answer = world.post("/v1/refund", &refund);
    assert_eq!((answer.status, answer.header("content-type")), (503, Some("application/problem+json")));
}

#[test]
fn what_is_not_there_says_what_is() {
    let world = World::new(PER_USER);
    for path in ["/v1", "/v1/check/", "/V1/check", "/v1/checks", &format!("/{}", "x".repeat(10_000))] {
        let answer = http::get(world.http(), path);
        assert_eq!(answer.status, 404, "{path:.20}");
        assert!(answer.json()["hint"].as_str().unwrap().contains("/openapi.json"));
        assert!(answer.body.len() < 1_000, "{} bytes", answer.body.len());
    }
    for path in ["/", "/admin/v1/rules", "/metrics"] {
        let answer = http::get(world.http(), path);
        assert_eq!(answer.status, 404, "{path}");
        let answer = answer.json();
        assert!(answer["hint"].as_str().unwrap().contains("admin listener"), "{answer}");
    }
    // A query changes nothing about where one is.
    assert_eq!(http::get(world.http(), "/healthz?from=probe").status, 200);
}

#[test]
fn a_wrong_method_says_which_is_right() {
    let world = World::new(PER_USER);
    let ask = |method: &str, path: &str| {
        let answer = http::request(world.http(), method, path, &[], b"").unwrap();
        (answer.status, answer.header("allow").map(str::to_owned))
    };
    let paths = ["/v1/check", "/v1/check/batch", "/v1/release", "/v1/renew", "/v1/refund", "/json"];
    for path in paths {
        for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
            assert_eq!(ask(method, path), (405, Some("POST".to_owned())), "{method} {path}");
        }
    }
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        assert_eq!(ask("POST", path), (405, Some("GET, HEAD".to_owned())), "{path}");
    }
}
