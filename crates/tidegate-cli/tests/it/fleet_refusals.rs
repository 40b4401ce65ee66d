//! What nodes cannot tell each other, and what they must not believe: who asked is told, and nothing panics.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use tidegate_testkit::{Postgres, Redis, eventually, http, resp};

use crate::control_world::{Node, PATIENCE, rules_of};

const NOTES: &str = "tidegate:fleet{members}notes";
const QUESTIONS: &str = "tidegate:fleet{members}questions";

/// Rules of more than a MiB, the least that Redis can be set to refuse.
fn large(limit: u64) -> String {
    let (mut text, filler) = (rules_of(limit), "x".repeat(8_000));
    for number in 0..150 {
        let _ =
            writeln!(text, "  - {{ name: r{number}, description: '{filler}', limits: [{}/s] }}", number + 9);
    }
    text
}

#[test]
fn publication_that_redis_refuses_is_pending() {
    let redis = Redis::start();
    let store = format!("store: {{ url: '{}' }}", redis.url());
    let leader = Node::start(&format!("{store}\nadmin: {{ node: leader }}"));
    let follower = Node::start(&format!("{store}\nadmin: {{ node: follower, database: none }}"));
    let fits = leader.publish(&rules_of(9));
    let told = fits.json()["distribution"].clone();
    assert_eq!(told["state"], "published", "{told}");
    assert_eq!(told["running"][0], "leader", "{told}");
    follower.runs(9);
    // A node is known by its heartbeat, and says with the next one what it runs.
    eventually("the answer names both nodes", PATIENCE, || {
        let ban = json!({ "domain": "api", "when": { "user": "9" }, "action": "ban" });
        let told = leader.post("/keys/overrides", &ban).json()["distribution"].clone();
        let names = |list: &str| told[list].as_array().unwrap().iter().any(|one| one == "follower");
        assert!(!(names("running") && names("not_yet")), "{told}");
        names("running") || names("not_yet")
    });

    redis.cmd(&["CONFIG", "SET", "proto-max-bulk-len", "1048576"]);
    let refused = leader.publish(&large(8));
    assert_eq!((refused.status, leader.limit()), (200, Some(8)), "it is in force here: {}", refused.text());
    let distribution = refused.json()["distribution"].clone();
    assert_eq!(distribution["state"], "pending", "{distribution}");
    assert!(distribution["why"].is_string() && distribution["hint"].is_string(), "{distribution}");
    eventually("the log says so", PATIENCE, || {
        leader.server.stderr().contains("the other nodes do not learn of the newest rules and bans")
    });
    eventually("and so does an alert", PATIENCE, || {
        let alerts = leader.get("/alerts");
        alerts["active"].as_array().unwrap().iter().any(|alert| alert["kind"] == "publish_failed")
    });
    assert_eq!(follower.limit(), Some(9));

    redis.cmd(&["CONFIG", "SET", "proto-max-bulk-len", "536870912"]);
    follower.runs(8);
    eventually("the log says so", PATIENCE, || {
        leader.server.stderr().contains("the rules are published to the other nodes again")
    });
    let ban = json!({ "domain": "api", "when": { "user": "7" }, "action": "ban" });
    assert_eq!(leader.post("/keys/overrides", &ban).json()["distribution"]["state"], "published");
}

#[test]
fn node_alone_has_nothing_to_distribute() {
    let node = Node::start("");
    assert_eq!(node.publish(&rules_of(9)).json()["distribution"], Value::Null);
}

#[test]
fn reset_without_its_audit_entry_does_not_happen() {
    let mut postgres = Postgres::start();
    let node = Node::start(&format!("admin: {{ database: '{}' }}", postgres.new_database()));
    assert_eq!(node.publish(&rules_of(3)).status, 200);
    let key = json!({ "domain": "api", "attributes": { "user": "7" } });
    let body = key.to_string();
    let used = || {
        let usage = http::post_json(node.http, "/v1/usage", &body).json();
        usage["limits"][0]["used"].as_u64().unwrap()
    };
    assert_eq!(http::post_json(node.http, "/v1/check", &body).status, 200);
    postgres.kill();
    assert_eq!(node.post("/keys/reset", &key).status, 503);
    assert_eq!(used(), 1, "what was answered is true");

    postgres.start_again();
    eventually("it heals", PATIENCE, || node.post("/keys/reset", &key).status == 200);
    assert_eq!(used(), 0);
    let audit = node.get("/audit");
    let resets = audit["entries"].as_array().unwrap().iter().filter(|entry| entry["action"] == "key.reset");
    assert!(resets.count() >= 1, "{audit}");
}

/// Answers every question with this, as the node `mallory` that started at 5, until told to stop.
fn answer(redis: &Redis, answer: &str, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let resp::Value::Array(ids) = redis.cmd(&["HKEYS", QUESTIONS]) else { continue };
        for id in ids {
            let resp::Value::Bulk(id) = id else { continue };
            let id = u64::from_le_bytes(id.try_into().unwrap());
            redis.cmd(&["HSET", &format!("tidegate:fleet{{members}}answers{id:016x}"), "mallory 5", answer]);
        }
        thread::yield_now();
    }
}

#[test]
fn strange_records_in_redis_panic_no_handler() {
    let redis = Redis::start();
    let node = Node::start(&format!(
        "store: {{ url: '{}', timeout: 5s }}\nadmin: {{ node: one }}\ndecision_log: {{ admissions_one_in: 1 }}",
        redis.url()
    ));
    eventually("it serves", PATIENCE, || node.limit() == Some(100));
    let body = r#"{"domain":"api","attributes":{"user":"7"}}"#;
    assert_eq!(http::post_json(node.http, "/v1/check", body).status, 200);
    let note = json!({
        "name": "mallory", "started_us": 5, "version": u64::MAX, "overrides": u64::MAX, "clock_us": u64::MAX,
        "allowed_per_s": -1e300, "format": u32::MAX, "serial": u64::MAX, "signals": { "version": u64::MAX },
    });
    let long = "9".repeat(400);
    for (name, told) in [
        ("8 bytes.", format!("99999999999999999 99999999999 {note}")),
        ("8 bytes,", format!("{long} {long} {{}}")),
        ("8 bytes;", "no note at all".to_owned()),
        ("nine bytes", format!("99999999999999999 99999999999 {note}")),
        ("8 bytes:", "99999999999999999 99999999999 [1, 2".to_owned()),
    ] {
        redis.cmd(&["HSET", NOTES, name, &told]);
    }
    let most = u64::MAX;
    let demand = json!({ "domain": "api", "rule": "r", "limit": "l", "algorithm": "x", "quota": most, "window_us": 0,
        "since_us": most, "halvings": 4_000_000_000_u32, "places": [[most, most], [1, most]], "left_out": most,
        "runs": [{ "window": most, "caller": 1, "used": most, "hits": most, "requests": most }],
        "callers": [{ "caller": 0, "used": most, "refused": most }], "named": [] });
    let caller = json!({ "key": [], "count": 0, "error": 0 });
    let strange = [
        json!({ "told": "decisions", "decisions": [1, "text", [], null, true], "fit": most, "stand_for": most, "cut": true }),
        json!({ "told": "decisions", "decisions": [{ "time_us": most, "attributes": 5 }], "fit": most, "stand_for": most,
            "oldest_us": most, "cut": true }),
        json!({ "told": "top", "rules": [{ "domain": "api", "rule": "r", "top": { "callers": [caller, caller],
            "total": most, "most_error": most } }] }),
        json!({ "told": "demand", "limits": [demand, demand] }),
        json!({ "told": "sample", "lines": ["", "{", "[]", "5"], "since_us": most }),
        json!([1, 2, 3]),
    ];
    for strange in &strange {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| answer(&redis, &strange.to_string(), &stop));
            for path in ["/decisions", "/keys/top", "/suggestions", "/nodes", "/stores", "/stats"] {
                let answer = node.ask("GET", path, &[], &Value::Null);
                assert!(answer.status < 500, "{path} with {strange}: {} {}", answer.status, answer.text());
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
    let stderr = node.server.stderr();
    assert!(!stderr.contains("panicked"), "{stderr}");
    let rules = "tidegate:fleet{members}rules";
    redis.cmd(&["DEL", rules]);
    redis.cmd(&["SET", rules, "not a hash"]);
    let published = || node.publish(&rules_of(9)).json()["distribution"]["state"] == "published";
    eventually("a key of another type is replaced", PATIENCE, published);
}

#[test]
fn node_whose_database_is_the_wrong_one_can_be_made_to_lead() {
    let redis = Redis::start();
    // Rules from files, and each node's own database for bans, which is the default.
    let files = |name: &str| {
        let store = format!("store: {{ url: '{}' }}", redis.url());
        Node::start(&format!("rules: {{ paths: [rules.yaml] }}\n{store}\nadmin: {{ node: {name} }}"))
    };
    let mut first = files("first");
    first.ban("1");
    eventually("it is published", PATIENCE, || {
        matches!(redis.cmd(&["EXISTS", "tidegate:fleet{members}rules"]), resp::Value::Int(1))
    });
    let second = files("second");
    eventually("it follows", PATIENCE, || !second.allows("1"));
    let ban = json!({ "domain": "api", "when": { "user": "2" }, "action": "ban" });
    let refused = second.post("/keys/overrides", &ban);
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(
        refused.json()["hint"].as_str().unwrap().contains("POST /admin/v1/nodes/lead"),
        "{}",
        refused.text()
    );
    // The first node, and its database, are gone for good.
    first.server.process().kill();
    let led = second.post("/nodes/lead", &json!({ "reason": "the first one is gone" }));
    assert_eq!(led.status, 200, "{}", led.text());
    eventually("bans are made here", PATIENCE, || second.post("/keys/overrides", &ban).status == 201);
    assert!(!second.allows("2") && second.allows("1"));
    let third = files("third");
    eventually("and followed by others", PATIENCE, || !third.allows("2"));
    let audit = second.get("/audit");
    assert!(
        audit["entries"].as_array().unwrap().iter().any(|entry| entry["action"] == "nodes.lead"),
        "{audit}"
    );
}
