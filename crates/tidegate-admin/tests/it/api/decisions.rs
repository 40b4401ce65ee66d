//! The decision log in the API: search, the busiest callers, previews.

use serde_json::{Value, json};
use tidegate_rulestore::Role;

use crate::api::world::Node;

/// A node that keeps every decision, where `alice` asked five times and `bob` once: three a minute pass.
fn node() -> Node {
    let node = Node::keeping_decisions();
    assert_eq!((node.passing("alice", 5), node.passing("bob", 1)), (3, 1));
    node
}

#[test]
fn a_search_says_who_was_refused_and_by_which_rule() {
    let node = node();
    let found = node.get("/decisions?key=user=alice&verdict=refused");
    assert_eq!((&found["fit"], &found["stand_for"]), (&json!(2), &json!(2)));
    let first = &found["decisions"][0];
    assert_eq!((&first["rule"], &first["attributes"]["user"]), (&json!("per-user"), &json!("alice")));
    assert_eq!(node.get("/decisions?key=user=nobody")["fit"], 0);
    assert_eq!(node.get("/decisions?from=15m")["fit"], 6);
    assert_eq!(node.get("/decisions?limit=2")["decisions"].as_array().unwrap().len(), 2);
    for wrong in
        ["/decisions?key=alice", "/decisions?verdict=maybe", "/decisions?from=soon", "/keys/top?by=name"]
    {
        assert_eq!(node.ask("GET", wrong, &Value::Null).status, 422, "{wrong}");
    }
}

#[test]
fn a_viewer_sees_no_key() {
    let node = node();
    let token = node.token(Role::Viewer, false);
    for path in ["/decisions", "/keys/top?by=used"] {
        let answer = node.ask_as(&token, "GET", path, &[], &Value::Null);
        assert_eq!(answer.status, 200);
        assert!(!answer.text().contains("alice") && answer.text().contains('#'), "{}", answer.text());
    }
}

#[test]
fn the_busiest_callers_are_ranked_with_their_error() {
    let node = node();
    let top = node.get("/keys/top?rule=per-user&by=refused");
    let callers = &top["rules"][0]["callers"];
    assert_eq!(
        (&callers[0]["key"][0][1], &callers[0]["count"], &callers[0]["error"]),
        (&json!("alice"), &json!(2), &json!(0))
    );
    assert_eq!(callers.as_array().unwrap().len(), 1);
    let used = node.get("/keys/top?rule=per-user&by=used");
    assert_eq!(used["rules"][0]["total"], 6);
}

#[test]
fn a_preview_says_what_a_proposed_rule_would_have_done() {
    let node = node();
    let text = "{ name: per-user, key: [user], limits: [1/minute] }";
    let proposed = json!({ "domain": "api", "rule": "per-user", "text": text });
    let answer = node.ask("POST", "/replay", &proposed);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let report = answer.json();
    assert_eq!(
        (&report["requests"], &report["refused"]["now"], &report["refused"]["before"]),
        (&json!(6), &json!(4), &json!(2))
    );
    let rules = report["rules"].as_array().unwrap();
    let rule = rules.iter().find(|rule| rule["rule"] == "per-user").unwrap();
    assert_eq!((&rule["callers"], &rule["callers_refused"]["now"]), (&json!(2), &json!(1)));
    assert_eq!(rule["hit_most"][0]["caller"], "user=alice");
    assert!(report["sentence"].as_str().unwrap().starts_with("would have refused 4 of 6 requests"));
    // Nothing was published.
    assert_eq!(node.get("/rules")["version"], 1);
    let suggested = node.get("/suggestions");
    let rules = suggested["rules"].as_array().unwrap();
    let rule = rules.iter().find(|rule| rule["rule"] == "per-user").unwrap();
    assert_eq!(rule["limits"][0]["suggestion"]["limit"], 5);
}

#[test]
fn a_node_that_keeps_no_decisions_says_how_to_switch_it_on() {
    let node = Node::start();
    for path in ["/decisions", "/keys/top", "/suggestions"] {
        let answer = node.ask("GET", path, &Value::Null);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.text().contains("decision_log"), "{}", answer.text());
    }
}
