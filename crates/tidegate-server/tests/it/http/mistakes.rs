//! Bad input: a problem that names the field, nothing spent, nobody hurt.

use serde_json::{Value, json};
use tidegate_testkit::http;

use super::PER_USER;
use crate::world::World;

/// Expects each body to be refused by `/v1/check` with this status and field, and user 42 to have spent nothing.
#[track_caller]
fn check_refused(world: &World, cases: &[(&[u8], u16, &str)]) {
    let kind = [("content-type", "application/json")];
    for (body, status, field) in cases {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let answer = http::request(world.http(), "POST", "/v1/check", &kind, body).unwrap();
        assert_eq!(answer.status, *status, "{shown}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{shown}");
        let problem = answer.json();
        assert_eq!(problem["status"], *status, "{shown}");
        assert_eq!(problem["field"].as_str().unwrap_or(""), *field, "{shown}: {problem}");
        assert!(answer.body.len() < 1_000, "{shown}: {} bytes", answer.body.len());
    }
    assert_eq!(world.left(), 3);
}

#[test]
fn what_is_not_json_is_malformed() {
    let world = World::new(PER_USER);
    let whole: &[u8] = br#"{"domain":"api","attributes":{"user":"42"}}"#;
    let cut: Vec<(&[u8], u16, &str)> = (0..whole.len()).map(|length| (&whole[..length], 400, "")).collect();
    check_refused(&world, &cut);
    check_refused(
        &world,
        &[
            (b"\0", 400, ""),
            (b"domain=api", 400, ""),
            (b"{\"domain\":\"api\",\"attributes\":{\"user\":\"\xff\xfe\"}}", 400, ""),
            (b"{\"domain\":\"api\",\"attributes\":{\"user\":\"\\ud800\"}}", 400, ""),
            (br#"{"domain":"api","attributes":{"user":"42"}} {}"#, 400, ""),
        ],
    );
}

#[test]
fn a_wrong_field_is_named() {
    let world = World::new(PER_USER);
    check_refused(
        &world,
        &[
            (b"[]", 422, ""),
            (br#"{"attributes":{"user":"42"}}"#, 422, "domain"),
            (br#"{"domain":7,"attributes":{"user":"42"}}"#, 422, "domain"),
            (br#"{"domain":"api","attributes":{"user":42}}"#, 422, "attributes.user"),
            (br#"{"domain":"api","attributes":{"user":"42","user":"42"}}"#, 422, "attributes.user"),
            (br#"{"domain":"api","attributes":[]}"#, 422, "attributes"),
            (br#"{"domain":"api","attributes":{"user":"42"},"cost":-1}"#, 422, "cost"),
            (br#"{"domain":"api","attributes":{"user":"42"},"cost":1.5}"#, 422, "cost"),
            (br#"{"domain":"api","attributes":{"user":"42"},"cost":"1"}"#, 422, "cost"),
            (br#"{"domain":"api","attributes":{"user":"42"},"cost":18446744073709551616}"#, 422, "cost"),
            (br#"{"domain":"api","attributes":{"user":"42"},"cots":1}"#, 422, "cots"),
            (br#"{"domain":"api","attributes":{"user":"42"},"request_id":7}"#, 422, "request_id"),
        ],
    );
}

#[test]
fn an_unknown_domain_is_told_the_known_ones() {
    let domains = (0..25).map(|n| format!("domain: d{n:02}\nrules: [{{ name: a, limits: [1/minute] }}]\n"));
    let world = World::new(&domains.collect::<Vec<_>>().join("---\n"));
    let answer = world.check(&json!({}));
    assert_eq!((answer.status, &answer.json()["field"]), (422, &json!("domain")));
    assert_eq!(answer.json()["detail"], "unknown domain `api`");
    let hint = answer.json()["hint"].as_str().unwrap().to_owned();
    assert!(hint.starts_with("known domains: d00, d01, ") && hint.ends_with("d19 and 5 more"), "{hint}");
    assert_eq!(world.heard.unknown_domains(), 1);
}

#[test]
fn what_is_too_large_is_refused_whichever_part_it_is() {
    let world = World::new(PER_USER);
    let body = |value: Value| value.to_string().into_bytes();
    let many: Value =
        (0..10_000).map(|n| (format!("a{n}"), json!("x"))).collect::<serde_json::Map<_, _>>().into();
    let long = |length: usize| "x".repeat(length);
    let cases = [
        (body(json!({ "domain": "api", "attributes": many })), 422, "attributes"),
        (body(json!({ "domain": "api", "attributes": { "user": long(4_097) } })), 422, "attributes.user"),
        (body(json!({ "domain": long(257) })), 422, "domain"),
        (body(json!({ "domain": "api", "request_id": long(129) })), 422, "request_id"),
        (body(json!({ "domain": "api", "attributes": { "user": long(1 << 20) } })), 413, ""),
        (vec![b'['; 200_000], 422, ""),
        (
            [br#"{"domain":"api","attributes":{"user":"#, &vec![b'['; 200_000][..]].concat(),
            422,
            "attributes.user",
        ),
        ([br#"{"x":"#, &b"{\"x\":".repeat(40_000)[..]].concat(), 422, "x"),
    ];
    let cases: Vec<(&[u8], u16, &str)> =
        cases.iter().map(|(body, status, field)| (&body[..], *status, *field)).collect();
    check_refused(&world, &cases);
}

#[test]
fn a_name_that_is_too_long_is_shown_in_part() {
    let world = World::new(PER_USER);
    let answer = world.check(&json!({ "n".repeat(100_000): "x" }));
    let field = answer.json()["field"].as_str().unwrap().to_owned();
    assert!(field.starts_with("attributes.nnn") && field.ends_with('…') && field.len() < 150, "{field}");
    assert_eq!(answer.status, 422);
}

#[test]
fn the_largest_that_is_allowed_is_decided() {
    let world = World::new(PER_USER);
    let attributes: serde_json::Map<String, Value> = (0..63)
        .map(|n| (format!("{n:0>256}"), json!("v".repeat(3_000))))
        .chain([("user".to_owned(), json!("é".repeat(2_048)))])
        .collect();
    let answer = world.check(&attributes.into());
    assert_eq!((answer.status, &answer.json()["remaining"]), (200, &json!(2)));
}

#[test]
fn another_media_type_is_refused_before_the_body_is_read() {
    let world = World::new(PER_USER);
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/xml", "json"] {
        for path in ["/v1/check", "/v1/check/batch", "/v1/release", "/v1/renew", "/v1/refund"] {
            let answer = http::request(world.http(), "POST", path, &[("content-type", kind)], b"{}").unwrap();
            assert_eq!(
                (answer.status, &answer.json()["field"]),
                (415, &json!("content-type")),
                "{kind} {path}"
            );
        }
    }
    let undeclared = br#"{"domain":"api","attributes":{"user":"7"}}"#;
    assert_eq!(http::request(world.http(), "POST", "/v1/check", &[], undeclared).unwrap().status, 200);
}
