//! Keys through the API: looked up, reset, overridden, banned, lifted.

use serde_json::{Value, json};
use tidegate_rulestore::Role;

use super::world::{CONFIGURED, Node, RULES};

fn user(user: &str) -> Value {
    json!({ "domain": "api", "attributes": { "user": user } })
}

#[track_caller]
fn create(node: &Node, body: &Value) -> Value {
    let answer = node.ask("POST", "/keys/overrides", body);
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.json()
}

#[test]
fn a_look_shows_every_cell_and_spends_nothing() {
    let node = Node::start();
    assert_eq!(node.passing("42", 2), 2);
    for _ in 0..5 {
        let looked = node.ask("POST", "/keys/lookup", &user("42")).json();
        let cell = &looked["cells"][0];
        assert_eq!(
            (&cell["rule"], &cell["limit"], &cell["used"]),
            (&json!("per-user"), &json!(3), &json!(2))
        );
        assert_eq!((&cell["key"], &cell["refused"]), (&json!(["user=42"]), &json!(false)));
        assert_eq!(looked["cells"].as_array().unwrap().len(), 2);
    }
    assert_eq!(node.passing("42", 5), 1);
    assert_eq!(node.ask("POST", "/keys/lookup", &user("42")).json()["cells"][0]["refused"], true);
}

#[test]
fn a_reset_gives_the_whole_quota_back() {
    let node = Node::start();
    assert_eq!(node.passing("42", 9), 3);
    let answer = node.ask("POST", "/keys/reset", &user("42"));
    assert_eq!((answer.status, answer.json()), (200, json!({ "cells": 2 })));
    assert_eq!(node.passing("42", 9), 3);
}

#[test]
fn a_ban_refuses_at_once_until_it_is_lifted() {
    let node = Node::start();
    let ban = json!({ "domain": "api", "when": { "user": "42" }, "action": "ban", "reason": "abuse" });
    let made = create(&node, &ban);
    assert_eq!((node.passing("42", 3), node.passing("43", 3)), (0, 3));
    let looked = node.ask("POST", "/keys/lookup", &user("42")).json();
    assert_eq!(looked["overrides"][0]["id"], made["id"]);
    let lifted = node.ask("DELETE", "/keys/overrides", &json!({ "id": made["id"], "reason": "sorry" }));
    assert_eq!(lifted.status, 200, "{}", lifted.text());
    assert_eq!(node.passing("42", 9), 3, "and nothing was spent meanwhile");
    assert_eq!(node.ask("DELETE", "/keys/overrides", &json!({ "id": made["id"] })).status, 404);
}

#[test]
fn a_look_at_a_banned_key_says_until_when_by_whom_and_why() {
    let node = Node::start();
    let ban = json!({ "domain": "api", "rule": "per-user", "when": { "user": "42" }, "action": "ban",
                      "until": "2199-01-01T00:00:00Z", "reason": "abuse" });
    let mut made = create(&node, &ban);
    // Said of the publication alone.
    for part in ["distribution", "revision"] {
        made.as_object_mut().unwrap().remove(part);
    }
    let looked = node.ask("POST", "/keys/lookup", &user("42")).json();
    assert_eq!(looked["overrides"], json!([made]));
    let parts = ["action", "rule", "until", "reason"].map(|part| looked["overrides"][0][part].clone());
    assert_eq!(parts, ["ban", "per-user", "2199-01-01T00:00:00Z", "abuse"].map(Value::from));
    assert!(looked["overrides"][0]["author"].as_str().is_some_and(|author| !author.is_empty()), "{looked}");
    let banned = |one: &Value| one["rule"] == "per-user" && one["outcome"] == "banned";
    assert!(looked["others"].as_array().unwrap().iter().any(banned), "{looked}");
}

#[test]
fn an_override_gives_one_key_other_limits_and_survives_a_publish() {
    let node = Node::start();
    let more = json!({ "domain": "api", "rule": "per-user", "when": { "user": "42" }, "action": "limits",
                       "limits": ["8/minute"], "until": "2999-01-01T00:00:00Z", "reason": "a sale" });
    create(&node, &more);
    assert_eq!((node.passing("42", 20), node.passing("43", 20)), (8, 3));
    assert_eq!(node.publish(1, &RULES.replace("3/minute", "2/minute")).status, 200);
    assert_eq!((node.passing("44", 20), node.passing("42", 20)), (2, 0));
    let explained = node.ask("POST", "/explain", &user("42")).json();
    assert_eq!(explained["rules"][0]["from"], "an override of this key");
}

#[test]
fn an_override_of_a_rule_that_is_no_more_says_that_it_has_no_effect() {
    let node = Node::start();
    create(&node, &json!({ "domain": "api", "rule": "per-user", "when": { "user": "1" }, "action": "ban" }));
    assert_eq!(node.publish(1, "domain: api\nrules: []\n").status, 200);
    let listed = node.get("/keys/overrides");
    assert!(listed["overrides"][0]["warning"].as_str().unwrap().contains("per-user"), "{listed}");
}

#[test]
fn what_makes_no_sense_names_its_field() {
    let node = Node::start();
    let base = json!({ "domain": "api", "rule": "per-user", "when": { "user": "1" }, "action": "ban", "reason": "" });
    for (field, value, named) in [
        ("when", json!({}), "when"),
        ("until", json!("tomorrow"), "until"),
        ("until", json!("2001-01-01T00:00:00Z"), "until"),
        ("limits", json!(["1/s"]), "limits"),
        ("rule", json!("none"), "rule"),
        ("domain", json!("none"), "domain"),
        ("action", json!("forgive"), "action"),
    ] {
        let mut body = base.clone();
        body[field] = value;
        let answer = node.ask("POST", "/keys/overrides", &body);
        assert_eq!((answer.status, &answer.json()["field"]), (422, &json!(named)), "{}", answer.text());
    }
    let mut limits = base;
    (limits["action"], limits["limits"]) = (json!("limits"), json!(["many"]));
    assert_eq!(node.ask("POST", "/keys/overrides", &limits).json()["field"], "limits");
    // Every node keeps all overrides.
    limits["limits"] = json!(vec!["1000000/365d"; 1_000]);
    let refused = node.ask("POST", "/keys/overrides", &limits);
    assert_eq!(refused.status, 422);
    assert!(refused.text().contains("more than 8192"), "{}", refused.text());
    assert_eq!(node.get("/keys/overrides")["total"], 0);
}

#[test]
fn a_viewer_sees_that_keys_are_banned_and_not_which() {
    let node = Node::start();
    create(&node, &json!({ "domain": "api", "when": { "api_key": "s3cret" }, "action": "ban" }));
    let viewer = node.token(Role::Viewer, false);
    let list = |token: &str, query: &str| {
        node.ask_as(token, "GET", &format!("/keys/overrides{query}"), &[], &Value::Null).text()
    };
    assert!(list(CONFIGURED, "?search=s3c").contains("s3cret"));
    assert!(!list(&viewer, "").contains("s3cret"));
    assert_eq!(list(&viewer, "?search=s3c"), list(&viewer, "?search=nothing"), "nor by trying");
    let key = json!({ "domain": "api", "attributes": { "api_key": "s3cret" } });
    assert_eq!(
        node.ask_as(&viewer, "POST", "/keys/lookup", &[], &key).status,
        403,
        "nor by looking names up"
    );
    let other = json!({ "domain": "api", "attributes": { "api_key": "another" } });
    let explained = |token: &str, key: &Value| node.ask_as(token, "POST", "/explain", &[], key).text();
    assert_eq!(explained(&viewer, &key), explained(&viewer, &other), "nor by asking which rules match");
    assert_ne!(explained(CONFIGURED, &key), explained(CONFIGURED, &other));
}

#[test]
fn nodes_and_stores_say_who_runs_what() {
    let node = Node::start();
    let nodes = node.get("/nodes");
    assert_eq!((&nodes["version"], &nodes["converged"]), (&json!(1), &json!(true)));
    assert_eq!((&nodes["nodes"][0]["name"], &nodes["nodes"][0]["this"]), (&json!("node-1"), &json!(true)));
    assert_eq!(nodes["nodes"][0]["region"], "here");
    let explained = node.ask("POST", "/explain", &json!({ "domain": "api", "attributes": { "user": "42" } }));
    assert_eq!(explained.json()["region"], "here");
    let stores = node.get("/stores");
    assert_eq!((&stores["kind"], &stores["database"]["healthy"]), (&json!("memory"), &json!(true)));
}

#[test]
fn stats_have_what_was_decided() {
    let node = Node::start();
    node.passing("42", 5);
    let seen = tidegate_testkit::poll(std::time::Duration::from_secs(10), || {
        let stats = node.get("/stats?from=1m");
        let series = stats["series"].as_array().unwrap().clone();
        let own = series.iter().filter(|one| one["rule"] == "per-user");
        let sum = |name: &str| -> f64 {
            own.clone().flat_map(|one| one[name].as_array().unwrap()).filter_map(Value::as_f64).sum()
        };
        (sum("allowed") == 3.0 && sum("refused") == 2.0).then_some(())
    });
    assert!(seen.is_some(), "{}", node.get("/stats?from=1m"));
    let alone = node.get("/stats?from=1m")["partial"].clone();
    assert!(alone.as_array().unwrap().iter().all(|one| *one == false), "one node is the fleet: {alone}");
    assert_eq!(node.ask("GET", "/stats?from=30d&step=1s", &Value::Null).status, 422);
}
