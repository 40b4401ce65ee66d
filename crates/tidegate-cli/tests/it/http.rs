//! The data plane over HTTP, on the real server: answers, headers, mistakes, and that mistakes spend nothing.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_testkit::{TidegateServer, http};

const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");

/// Days, so that no window ends during a test.
const RULES: &str = r#"
domain: api
rules:
  - name: per-user
    key: [user]
    limits: [{ algorithm: fixed_window, limit: 3, window: 1d }]
  - name: uploads
    match: { path: /upload }
    key: [user]
    limits: [{ algorithm: concurrency, limit: 1, ttl: 60s }]
  - name: calm
    match: { path: /calm }
    limits: [{ algorithm: leaky_bucket, rate: 1/s, max_delay: 30s }]
"#;

struct Server {
    http: SocketAddr,
    admin: SocketAddr,
    server: TidegateServer,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let rules = dir.path().join("rules.yaml");
        std::fs::write(&rules, RULES).unwrap();
        let config = dir.path().join("tidegate.yaml");
        let listen = "listen: { http: '127.0.0.1:0', grpc: '127.0.0.1:0', resp: off, admin: '127.0.0.1:0' }";
        let rest = "rules: { paths: [rules.yaml] }\nshedding: { workers: 1000 }";
        std::fs::write(&config, format!("{listen}\n{rest}\n")).unwrap();
        let mut server = TidegateServer::start(BINARY, &["--config", config.to_str().unwrap()]);
        Server { http: server.addr("http"), admin: server.addr("admin"), server, _dir: dir }
    }

    fn post(&self, path: &str, body: &Value) -> http::Response {
        http::post_json(self.http, path, &body.to_string())
    }

    fn check(&self, attributes: &Value) -> http::Response {
        self.post("/v1/check", &json!({ "domain": "api", "attributes": attributes }))
    }

    /// What user 42 has left, asked without spending.
    fn left(&self) -> u64 {
        let body = json!({ "domain": "api", "attributes": { "user": "42" }, "cost": 0 });
        self.post("/v1/check", &body).json()["remaining"].as_u64().unwrap()
    }
}

#[test]
fn a_check_answers_with_numbers_and_headers_until_it_is_refused() {
    let server = Server::start();
    for left in [2, 1, 0] {
        let answer = server.check(&json!({ "user": "42" }));
        assert_eq!(answer.status, 200);
        let body = answer.json();
        assert_eq!(body["allowed"], true);
        assert_eq!(
            (&body["rule"], &body["limit"], &body["remaining"]),
            (&json!("per-user"), &json!(3), &json!(left))
        );
        assert_eq!(
            (&body["source"], &body["lease"], &body["delay_ms"]),
            (&json!("store"), &Value::Null, &json!(0))
        );
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(&*left.to_string()));
        assert_eq!(answer.header("ratelimit-policy"), Some(r#""per-user";q=3;w=86400"#));
        assert_eq!(answer.header("retry-after"), None);
    }
    let refused = server.check(&json!({ "user": "42" }));
    assert_eq!(refused.status, 429);
    let body = refused.json();
    assert_eq!((&body["allowed"], &body["error"]), (&json!(false), &json!("rate_limit_exceeded")));
    let retry_ms = body["retry_after_ms"].as_u64().unwrap();
    let retry: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!(retry_ms.div_ceil(1_000).abs_diff(retry) <= 1, "{retry_ms} ms and {retry} s");
}

#[test]
fn the_reset_second_is_the_same_for_the_whole_window() {
    let server = Server::start();
    let resets: BTreeSet<String> = (0..300)
        .map(|user| {
            server.check(&json!({ "user": user.to_string() })).header("x-ratelimit-reset").unwrap().to_owned()
        })
        .collect();
    assert_eq!(resets.len(), 1, "{resets:?}");
}

#[test]
fn a_batch_is_decided_in_order_and_a_mistake_in_it_spends_nothing() {
    let server = Server::start();
    let check = json!({ "domain": "api", "attributes": { "user": "42" } });
    let wrong = json!({ "domain": "shop", "attributes": { "user": "42" } });
    let refused = server.post("/v1/check/batch", &json!({ "checks": [check, wrong] }));
    assert_eq!(refused.status, 422);
    assert_eq!(refused.json()["field"], "checks[1].domain");
    assert_eq!(server.left(), 3);

    let answer = server.post("/v1/check/batch", &json!({ "checks": [check, check, check, check] })).json();
    let allowed: Vec<&Value> =
        answer["decisions"].as_array().unwrap().iter().map(|one| &one["allowed"]).collect();
    assert_eq!(allowed, [&json!(true), &json!(true), &json!(true), &json!(false)]);
}

#[test]
fn a_named_request_is_spent_once_and_its_name_cannot_be_used_for_another() {
    let server = Server::start();
    let named = json!({ "domain": "api", "attributes": { "user": "42" }, "request_id": "r-1" });
    let (first, again) = (server.post("/v1/check", &named), server.post("/v1/check", &named));
    assert_eq!((first.status, first.text()), (again.status, again.text()));
    let batch = server.post("/v1/check/batch", &json!({ "checks": [named] })).json();
    assert_eq!(batch["decisions"][0], first.json());
    assert_eq!(server.left(), 2);

    let other = json!({ "domain": "api", "attributes": { "user": "42" }, "cost": 2, "request_id": "r-1" });
    let conflict = server.post("/v1/check", &other);
    assert_eq!((conflict.status, &conflict.json()["field"]), (409, &json!("request_id")));

    let refund = json!({ "domain": "api", "attributes": { "user": "42" }, "amount": 1, "request_id": "r-2" });
    for _ in 0..2 {
        assert_eq!(server.post("/v1/refund", &refund).status, 200);
    }
    assert_eq!(server.left(), 3);
    server.post("/v1/check", &json!({ "domain": "api", "attributes": { "user": "42" }, "cost": 2 }));
    server.post("/v1/refund", &refund);
    assert_eq!(server.left(), 1);
}

#[test]
fn leases_are_taken_renewed_and_given_back() {
    let server = Server::start();
    let upload = json!({ "user": "42", "path": "/upload" });
    let lease = server.check(&upload).json()["lease"].clone();
    assert!(lease.is_string());
    let refused = server.check(&upload);
    assert_eq!((refused.status, &refused.json()["lease"]), (429, &Value::Null));
    let renewed = server.post("/v1/renew", &json!({ "lease": lease }));
    assert_eq!((renewed.status, &renewed.json()["ttl_ms"]), (200, &json!(60_000)));
    assert_eq!(server.post("/v1/release", &json!({ "lease": lease })).json()["released"], true);
    assert_eq!(server.post("/v1/release", &json!({ "lease": lease })).json()["released"], false);
    assert_eq!(server.post("/v1/renew", &json!({ "lease": lease })).status, 410);
    assert_eq!(server.check(&upload).status, 200);
    let nonsense = server.post("/v1/release", &json!({ "lease": "nonsense" }));
    assert_eq!((nonsense.status, &nonsense.json()["field"]), (422, &json!("lease")));
}

#[test]
fn a_leaky_bucket_tells_how_long_to_wait() {
    let server = Server::start();
    let delays: Vec<u64> = (0..3)
        .map(|_| server.check(&json!({ "path": "/calm" })).json()["delay_ms"].as_u64().unwrap())
        .collect();
    assert!(delays[0] == 0 && (1..=1_000).contains(&delays[1]) && delays[2] > delays[1], "{delays:?}");
}

#[test]
fn envoys_question_in_json_is_answered_with_its_codes() {
    let server = Server::start();
    let body = json!({ "domain": "api", "descriptors": [{ "entries": [{ "key": "user", "value": "42" }] }], "hitsAddend": 3 });
    let first = server.post("/json", &body);
    assert_eq!((first.status, &first.json()["overallCode"]), (200, &json!("OK")));
    assert_eq!(first.json()["statuses"][0]["currentLimit"]["requestsPerUnit"], 3);
    let refused = server.post("/json", &body);
    assert_eq!((refused.status, &refused.json()["overallCode"]), (429, &json!("OVER_LIMIT")));

    // Negative hits give back, and never more than was spent.
    let entries = json!([{ "key": "user", "value": "42" }]);
    let back = json!({ "domain": "api", "descriptors": [{ "entries": entries, "hitsAddend": "99", "isNegativeHits": true }] });
    assert_eq!(server.post("/json", &back).json()["statuses"][0]["limitRemaining"], 3);
    // A descriptor's own zero looks without spending.
    let look = json!({ "domain": "api", "descriptors": [{ "entries": entries, "hitsAddend": "0" }], "hitsAddend": 2 });
    assert_eq!(server.post("/json", &look).json()["statuses"][0]["limitRemaining"], 3);
    // A limit that the descriptor brings along counts by itself.
    let own = json!({ "requestsPerUnit": 1, "unit": "DAY", "unitMultiplier": 2 });
    let overridden = json!({ "domain": "api", "descriptors": [{ "entries": entries, "limit": own }] });
    let status = server.post("/json", &overridden).json()["statuses"][0].clone();
    assert_eq!(
        (&status["currentLimit"]["requestsPerUnit"], &status["currentLimit"]["unitMultiplier"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(server.post("/json", &overridden).status, 429);
    assert_eq!(server.left(), 3);
    // An unknown domain passes, as Envoy's users expect.
    let unknown = json!({ "domain": "shop", "descriptors": [{ "entries": entries }] });
    let unknown = server.post("/json", &unknown);
    assert_eq!((unknown.status, unknown.json()["statuses"][0].get("currentLimit")), (200, None));
    for wrong in [json!({ "domain": "", "descriptors": [{}] }), json!({ "domain": "api", "descriptors": [] })]
    {
        assert_eq!(server.post("/json", &wrong).status, 422, "{wrong}");
    }
}

#[test]
fn every_mistake_is_named_and_spends_nothing() {
    let server = Server::start();
    let check = |body: &str| http::post_json(server.http, "/v1/check", body);
    let many: Value = (0..10_000)
        .map(|number| (format!("a{number}"), json!("x")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let deep = "[".repeat(5_000);
    let cases: Vec<(String, u16, Option<&str>)> = vec![
        ("{".into(), 400, None),
        (String::new(), 400, None),
        ("\u{0}".into(), 400, None),
        (deep, 422, None),
        (r#"{"domain":"api","attributes":{"user":42}}"#.into(), 422, Some("attributes.user")),
        (r#"{"domain":"api","attributes":{"user":"42"},"cost":-1}"#.into(), 422, Some("cost")),
        (r#"{"domain":"api","attributes":{"user":"42"},"cost":1.5}"#.into(), 422, Some("cost")),
        (r#"{"domain":"api","attributes":{"user":"42"},"cots":1}"#.into(), 422, Some("cots")),
        (r#"{"attributes":{"user":"42"}}"#.into(), 422, Some("domain")),
        (r#"{"domain":"shop","attributes":{"user":"42"}}"#.into(), 422, Some("domain")),
        (json!({ "domain": "api", "attributes": many }).to_string(), 422, Some("attributes")),
        (json!({ "domain": "api", "attributes": { "user": "x".repeat(1 << 20) } }).to_string(), 413, None),
        (
            json!({ "domain": "api", "attributes": { "user": "x".repeat(5_000) } }).to_string(),
            422,
            Some("attributes.user"),
        ),
    ];
    for (body, status, field) in cases {
        let answer = check(&body);
        let shown: String = body.chars().take(80).collect();
        assert_eq!(answer.status, status, "{shown}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{shown}");
        if let Some(field) = field {
            assert_eq!(answer.json()["field"], field, "{shown}");
        }
    }
    assert_eq!(server.left(), 3);
    let unknown = check(r#"{"domain":"shop"}"#).json();
    assert_eq!(unknown["hint"], "known domains: api");
}

#[test]
fn a_cost_of_any_size_has_a_defined_answer() {
    let server = Server::start();
    for cost in [4, u64::MAX] {
        let body = json!({ "domain": "api", "attributes": { "user": "42" }, "cost": cost });
        let answer = server.post("/v1/check", &body);
        assert_eq!((answer.status, &answer.json()["retry_after_ms"]), (429, &Value::Null));
        assert_eq!(answer.header("retry-after"), None);
    }
    assert_eq!(server.left(), 3);
}

#[test]
fn wrong_paths_methods_and_media_types_say_what_would_be_right() {
    let server = Server::start();
    assert_eq!(http::get(server.http, "/nope").status, 404);
    let wrong_method = http::get(server.http, "/v1/check");
    assert_eq!((wrong_method.status, wrong_method.header("allow")), (405, Some("POST")));
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let wrong_type = http::request(server.http, "POST", "/v1/check", &form, b"{}").unwrap();
    assert_eq!(wrong_type.status, 415);
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_body_takes_nothing_with_it() {
    let mut server = Server::start();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(server.http).unwrap();
        stream
            .write_all(
                b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{\"domain\":\"api\",",
            )
            .unwrap();
    }
    let mut garbage = TcpStream::connect(server.http).unwrap();
    garbage.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    garbage.write_all(b"\x16\x03\x01 this is no HTTP\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = garbage.read_to_end(&mut answer);
    assert_eq!(server.left(), 3);
    assert_eq!(server.server.terminate().code(), Some(0));
}

#[test]
fn health_is_told_and_the_document_describes_what_is_there() {
    let server = Server::start();
    assert_eq!(http::get(server.http, "/healthz").text(), "ok\n");
    assert_eq!(http::get(server.http, "/readyz").status, 200);
    assert!(http::get(server.admin, "/metrics").text().contains("tidegate_decisions_total"));

    let document = http::get(server.http, "/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let body = &operation["requestBody"]["content"]["application/json"]["example"];
            let sent = if body.is_null() { String::new() } else { body.to_string() };
            let headers = [("content-type", "application/json")];
            let answer =
                http::request(server.http, &method.to_uppercase(), path, &headers, sent.as_bytes()).unwrap();
            assert!(
                operation["responses"].get(answer.status.to_string()).is_some(),
                "{method} {path}: {}",
                answer.status
            );
            assert!(![404, 405, 415].contains(&answer.status), "{method} {path}: {}", answer.status);
            if !body.is_null() {
                assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text());
            }
        }
    }
}
