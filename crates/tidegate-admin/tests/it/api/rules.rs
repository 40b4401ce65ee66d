//! Rules through the API: read, validated, published, compared, rolled back.

use serde_json::{Value, json};
use tidegate_testkit::http;

use super::world::{CONFIGURED, Node, RULES};

#[test]
fn rules_are_read_with_their_version_as_etag() {
    let node = Node::start();
    let answer = node.ask("GET", "/rules", &Value::Null);
    assert_eq!(answer.header("etag"), Some("\"1\""));
    let body = answer.json();
    assert_eq!(
        (&body["version"], &body["source"], &body["editable"]),
        (&json!(1), &json!("database"), &json!(true))
    );
    assert_eq!(body["documents"], json!([{ "domain": "api", "text": RULES }]));
    let lines: Vec<_> =
        body["rules"].as_array().unwrap().iter().map(|rule| (&rule["name"], &rule["line"])).collect();
    assert_eq!(lines, [(&json!("per-user"), &json!(5)), (&json!("everybody"), &json!(9))]);
}

#[test]
fn what_is_published_decides_the_next_request() {
    let node = Node::start();
    assert_eq!(node.passing("1", 5), 3);
    let answer = node.publish(1, &RULES.replace("3/minute", "1/minute"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!((answer.header("etag"), &answer.json()["version"]), (Some("\"2\""), &json!(2)));
    assert_eq!(
        answer.json()["diff"]["rules"],
        json!([{ "domain": "api", "rule": "per-user", "change": "changed" }])
    );
    assert_eq!(node.passing("2", 5), 1);
}

#[test]
fn of_two_editors_the_second_is_told_what_the_first_changed() {
    let node = Node::start();
    assert_eq!(node.publish(1, &RULES.replace("3/minute", "5/minute")).status, 200);
    let late = node.publish(1, &RULES.replace("3/minute", "9/minute"));
    assert_eq!((late.status, late.header("content-type")), (412, Some("application/problem+json")));
    let body = late.json();
    assert_eq!(
        (&body["version"], &body["author"], &body["reason"]),
        (&json!(2), &json!("configured"), &json!("a test"))
    );
    assert!(
        body["diff"]["documents"][0]["unified"].as_str().unwrap().contains("+    limits: [5/minute]"),
        "{body}"
    );
    assert_eq!(node.passing("1", 9), 5);
}

#[test]
fn a_mistake_is_shown_with_its_place_and_nothing_is_published() {
    let node = Node::start();
    let wrong = RULES.replace("3/minute", "many");
    let answer = node.publish(1, &wrong);
    assert_eq!(answer.status, 422);
    let first = &answer.json()["diagnostics"][0];
    assert_eq!(
        (&first["file"], &first["line"], &first["severity"]),
        (&json!("api"), &json!(7), &json!("error"))
    );
    assert_eq!(node.get("/rules")["version"], 1);
    let documents = json!({ "documents": [{ "domain": "api", "text": wrong }] });
    let dry = node.ask("POST", "/rules/validate", &documents).json();
    assert_eq!((&dry["valid"], &dry["diagnostics"][0]["line"]), (&json!(false), &json!(7)));
    let empty = node.ask("POST", "/rules/validate", &json!({}));
    assert_eq!(empty.status, 422);
    assert!(empty.text().contains("expected `documents`"), "it names the fields: {}", empty.text());
}

#[test]
fn a_change_must_name_its_version_and_its_own_domain() {
    let node = Node::start();
    let body = json!({ "documents": [{ "domain": "api", "text": RULES }], "reason": "" });
    assert_eq!(node.ask("PUT", "/rules", &body).status, 428);
    let other = json!({ "documents": [{ "domain": "web", "text": RULES }], "reason": "" });
    assert_eq!(node.ask_as(CONFIGURED, "PUT", "/rules", &[("if-match", "\"1\"")], &other).status, 422);
    let unknown = json!({ "documents": [], "reason": "", "force": true });
    let answer = node.ask_as(CONFIGURED, "PUT", "/rules", &[("if-match", "\"1\"")], &unknown);
    assert!(answer.status == 422 && answer.text().contains("force"), "{}", answer.text());
}

#[test]
fn a_set_of_nothing_is_refused_because_no_node_would_be_ready_with_it() {
    let node = Node::start();
    let none = json!({ "documents": [], "reason": "by mistake" });
    let answer = node.ask_as(CONFIGURED, "PUT", "/rules", &[("if-match", "\"1\"")], &none);
    assert_eq!((answer.status, &answer.json()["field"]), (422, &json!("documents")), "{}", answer.text());
    assert_eq!(node.get("/rules")["version"], 1);
}

#[test]
fn one_rule_is_changed_and_the_rest_stays_byte_for_byte() {
    let node = Node::start();
    let on = [("if-match", "\"1\"")];
    let text = node.get("/rules/api/per-user")["text"].as_str().unwrap().to_owned();
    assert_eq!(text, "name: per-user\nkey: [user]\nlimits: [3/minute]");
    let body = json!({ "text": text.replace("3/", "7/"), "reason": "more" });
    assert_eq!(node.ask_as(CONFIGURED, "PUT", "/rules/api/per-user", &on, &body).status, 200);
    assert_eq!(node.get("/versions/2")["documents"][0]["text"], RULES.replace("3/minute", "7/minute"));
    let on = [("if-match", "\"2\"")];
    let gone = node.ask_as(CONFIGURED, "DELETE", "/rules/api/everybody", &on, &json!({ "reason": "" }));
    assert_eq!(gone.status, 200, "{}", gone.text());
    assert_eq!(node.ask("GET", "/rules/api/everybody", &Value::Null).status, 404);
}

#[test]
fn the_way_back_is_a_new_version() {
    let node = Node::start();
    assert_eq!(node.publish(1, &RULES.replace("3/minute", "1/minute")).status, 200);
    let back = node.ask_as(CONFIGURED, "POST", "/versions/1/rollback", &[("if-match", "\"2\"")], &json!({}));
    assert_eq!(back.status, 200, "{}", back.text());
    let versions = node.get("/versions");
    let told: Vec<_> = versions["versions"].as_array().unwrap().iter().map(|one| &one["number"]).collect();
    assert_eq!(told, [3, 2, 1]);
    assert_eq!(node.get("/versions/3")["documents"], node.get("/versions/1")["documents"]);
    assert_eq!(node.get("/versions/3/diff?against=1")["documents"], json!([]));
    let changes = node.get("/versions?changes=true&limit=1")["versions"][0]["rules"].clone();
    assert!(changes.as_array().unwrap().iter().all(|rule| rule["change"] == "changed"), "{changes}");
    assert_eq!(changes[0]["domain"], "api");
    assert_eq!(node.get("/versions?limit=1")["versions"][0]["rules"], Value::Null);
    assert_eq!(node.passing("1", 5), 3);
    let actions = node.get("/audit");
    let actions: Vec<_> = actions["entries"].as_array().unwrap().iter().map(|one| &one["action"]).collect();
    assert_eq!(actions, ["rollback", "publish", "publish"]);
}

#[test]
fn rules_from_files_are_read_only_here_and_say_where_to_edit() {
    let node = Node::with_files();
    let answer = node.publish(0, RULES);
    assert_eq!((answer.status, &answer.json()["edit_at"]), (409, &json!(["rules.yaml"])));
    let rules = node.get("/rules");
    assert_eq!((&rules["source"], &rules["editable"]), (&json!("file"), &json!(false)));
    let ban = json!({ "domain": "api", "when": { "user": "1" }, "action": "ban", "reason": "abuse" });
    assert_eq!(node.ask("POST", "/keys/overrides", &ban).status, 201);
    assert_eq!((node.passing("1", 1), node.passing("2", 1)), (0, 1));
}

/// The documents after `minute` became the limit of `per-user`, as a question to validate them.
fn with_limit(minute: &str) -> Value {
    json!({ "documents": [{ "domain": "api", "text": RULES.replace("3/minute", minute) }] })
}

#[test]
fn counters_that_would_start_empty_are_said_before_publishing_and_after() {
    let node = Node::start();
    let said = json!({
        "severity": "warning", "file": "api", "line": 5, "column": 1,
        "message": "counters of `per-user` start empty: sliding_log 3/1m becomes sliding_window 200/1h",
        "hint": "to keep them, change only the number",
    });
    let dry = node.ask("POST", "/rules/validate", &with_limit("200/minute")).json();
    assert_eq!(dry["diagnostics"], json!([]), "another number, and with it another algorithm");
    let dry = node.ask("POST", "/rules/validate", &with_limit("200/hour")).json();
    assert_eq!((&dry["valid"], &dry["diagnostics"]), (&json!(true), &json!([said])));
    let answer = node.publish(1, &RULES.replace("3/minute", "200/hour")).json();
    assert_eq!(answer["warnings"], json!([said]));
}

#[test]
fn a_number_published_as_the_hint_says_keeps_what_was_counted() {
    let node = Node::start();
    assert_eq!(node.passing("1", 3), 3);
    let kept = "{ algorithm: sliding_log, limit: 200, window: 1m }";
    assert_eq!(node.ask("POST", "/rules/validate", &with_limit(kept)).json()["diagnostics"], json!([]));
    assert_eq!(node.publish(1, &RULES.replace("3/minute", kept)).json()["warnings"], json!([]));
    assert_eq!(node.passing("1", 300), 197);
}

#[test]
fn rlconfig_lists_the_limits_as_envoyproxy_ratelimit_does_on_its_debug_port() {
    let node = Node::with_files();
    let answer = http::get(node.address, "/rlconfig");
    let expected = "api.per-user: unit=MINUTE requests_per_unit=3, shadow_mode: false\n\
                    api.everybody: unit=SECOND requests_per_unit=1000, shadow_mode: false\n";
    assert_eq!((answer.status, answer.text().as_str()), (200, expected));
    assert_eq!(http::request(node.address, "POST", "/rlconfig", &[], b"").unwrap().status, 405);
    // A page of another site whose name leads here reads nothing.
    let elsewhere =
        http::request(node.address, "GET", "/rlconfig", &[("host", "evil.example")], b"").unwrap();
    assert_eq!(elsewhere.status, 421);
}
