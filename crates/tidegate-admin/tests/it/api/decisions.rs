//! The decision log in the API: search, top callers, previews.

use serde_json::{Value, json};
use tidegate_rulestore::Role;

use crate::api::world::Node;

/// A node that keeps every decision, with five requests of `alice` and one of `bob`: three a minute are admitted.
fn node() -> Node {
    let node = Node::keeping_decisions();
    assert_eq!((node.passing("alice", 5), node.passing("bob", 1)), (3, 1));
    node
}

#[test]
fn a_search_says_who_was_refused_and_by_which_rule() {
    let node = node();
    let found = node.get("/decisions?key=user=alice&verdict=refused");
    assert_eq!((&found["matched"], &found["represents"]), (&json!(2), &json!(2)));
    let first = &found["decisions"][0];
    assert_eq!((&first["rule"], &first["attributes"]["user"]), (&json!("per-user"), &json!("alice")));
    assert_eq!(node.get("/decisions?key=user=nobody")["matched"], 0);
    assert_eq!(node.get("/decisions?from=15m")["matched"], 6);
    assert_eq!(node.get("/decisions?limit=2")["decisions"].as_array().unwrap().len(), 2);
    for wrong in
        ["/decisions?key=alice", "/decisions?verdict=maybe", "/decisions?from=soon", "/keys/top?by=name"]
    {
        assert_eq!(node.ask("GET", wrong, &Value::Null).status, 422, "{wrong}");
    }
}

#[test]
fn a_search_for_what_cannot_be_says_so() {
    let node = node();
    for (asked, unknown) in
        [("rule=nope", "rule"), ("domain=nope", "domain"), ("domain=api&rule=nope", "rule")]
    {
        let found = node.get(&format!("/decisions?{asked}"));
        let told = format!("no {unknown} in use is called `nope`");
        assert_eq!((&found["matched"], &found["unknown"]), (&json!(0), &json!(told)), "{asked}");
    }
    assert_eq!(node.get("/decisions?domain=api&rule=per-user")["unknown"], Value::Null);
    let refused = |query: &str| {
        let answer = node.ask("GET", &format!("/decisions?{query}"), &Value::Null);
        assert_eq!(answer.status, 422, "{query}");
        answer.json()["hint"].as_str().unwrap().to_owned()
    };
    assert!(refused("from=15m&to=1h").contains("spans go back from now"));
    assert!(refused("from=soon").contains("15m"));
}

#[test]
fn a_viewer_sees_no_key() {
    let node = node();
    let token = node.token(Role::Viewer, false);
    for (method, path, body) in [
        ("GET", "/decisions", &Value::Null),
        ("GET", "/keys/top?by=used", &Value::Null),
        ("POST", "/replay/log", &json!({ "html": true })),
    ] {
        let answer = node.ask_as(&token, method, path, &[], body);
        assert_eq!(answer.status, 200);
        assert!(!answer.text().contains("alice") && answer.text().contains('#'), "{}", answer.text());
    }
}

#[test]
fn a_viewer_cannot_find_out_whose_hash_it_sees_by_trying_names() {
    let node = node();
    let token = node.token(Role::Viewer, false);
    let ask = |path: &str| node.ask_as(&token, "GET", path, &[], &Value::Null);
    for guess in ["user=alice", "user=nobody", "{\"user\":\"alice\"}", "user="] {
        let answer = ask(&format!("/decisions?key={}", guess.replace('"', "%22")));
        assert_eq!(answer.status, 403, "{guess}: {}", answer.text());
    }
    let shown = ask("/decisions").json();
    let hash = shown["decisions"][0]["attributes"]["user"].as_str().unwrap().replace('#', "%23");
    assert_eq!(ask(&format!("/decisions?key=user={hash}")).json()["matched"], 1, "bob asked last, and once");
}

#[test]
fn a_viewer_cannot_find_out_values_by_rules_that_match_on_them() {
    let node = node();
    let token = node.token(Role::Viewer, false);
    let text = "{ name: per-user, match: { user: 'a*' }, key: [user], limits: [1/minute] }";
    let documents = json!([{ "domain": "api", "text": format!("{{ domain: api, rules: [{text}] }}") }]);
    for (path, body) in [
        ("/replay", json!({ "domain": "api", "rule": "per-user", "text": text })),
        ("/replay", json!({ "documents": documents })),
        ("/replay/log", json!({ "documents": documents })),
        ("/replay/log", json!({ "against": documents })),
    ] {
        let answer = node.ask_as(&token, "POST", path, &[], &body);
        assert_eq!(answer.status, 403, "{path} {body}: {}", answer.text());
    }
    let log = "203.0.113.7 - - [01/Jan/2027:00:00:00 +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"";
    let own = json!({ "log": log, "documents": documents });
    assert_eq!(node.ask_as(&token, "POST", "/replay/log", &[], &own).status, 200, "a log of one's own");
}

#[test]
fn a_caller_whose_key_holds_commas_and_signs_is_found() {
    let node = node();
    for user in ["a,b", "a,b=c", "x=y", "{"] {
        assert_eq!(node.passing(user, 1), 1);
    }
    let fit = |key: &str| node.get(&format!("/decisions?key={key}"))["matched"].clone();
    assert_eq!([fit("user=a,b"), fit("user=x=y"), fit("user={")], [json!(1), json!(1), json!(1)]);
    assert_eq!(fit("{%22user%22:%22a,b=c%22}"), 1, "as an object of JSON there is no doubt");
    let wrong = node.ask("GET", "/decisions?key={%22user%22:7}", &Value::Null);
    assert_eq!((wrong.status, &wrong.json()["field"]), (422, &json!("key")));
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
    // For a slider: at a limit of 1, alice is refused four times, at 4 once, at 5 never.
    let touched = rule["limits"][0]["touched"].as_array().unwrap();
    let at = |limit: u64| {
        let below = touched.iter().rev().find(|point| point["limit"].as_u64().unwrap() <= limit).unwrap();
        (below["callers"].as_u64().unwrap(), below["requests"].as_u64().unwrap())
    };
    assert_eq!((at(1), at(5)), ((1, 4), (0, 0)));
    // Nothing was published.
    assert_eq!(node.get("/rules")["version"], 1);
}

#[test]
fn a_limit_says_whom_each_number_touches_and_suggests_none_for_two_callers() {
    let node = node();
    let suggested = node.get("/suggestions?domain=api&rule=per-user");
    assert_eq!(suggested["rules"].as_array().unwrap().len(), 1);
    let limit = &suggested["rules"][0]["limits"][0];
    // alice made five requests, of which three were admitted.
    assert_eq!((&limit["quota"], &limit["requests"], &limit["callers"]), (&json!(3), &json!(6), &json!(2)));
    assert_eq!(limit["peaks"], json!([{ "value": 1, "count": 1 }, { "value": 5, "count": 1 }]));
    assert_eq!(
        limit["touched"],
        json!([
            { "limit": 0, "callers": 2, "requests": 6 },
            { "limit": 1, "callers": 1, "requests": 4 },
            { "limit": 3, "callers": 1, "requests": 2 },
            { "limit": 5, "callers": 0, "requests": 0 },
        ])
    );
    assert_eq!(limit["suggestion"], json!(null), "two callers say next to nothing");
    assert_eq!(limit["none_because"], "the suggestion is only 0 % sure");
    assert_eq!((&suggested["nodes"], &suggested["missing"]), (&json!(["node-1"]), &json!([])));
}

#[test]
fn one_call_tries_another_limit_in_a_shadow_rule() {
    let node = node();
    let wanted = json!({ "domain": "api", "rule": "per-user" });
    let made = node.ask("POST", "/suggestions/shadow", &wanted);
    assert_eq!(made.status, 422);
    assert!(made.text().contains("nothing is suggested: the suggestion is only 0 % sure"), "{}", made.text());
    let wanted = json!({ "domain": "api", "rule": "per-user", "value": 5 });
    let made = node.ask("POST", "/suggestions/shadow", &wanted);
    assert_eq!(made.status, 200, "{}", made.text());
    let made = node.get("/rules/api/per-user-suggested");
    assert_eq!((&made["version"], &made["rule"]["mode"]), (&json!(2), &json!("shadow")));
    assert_eq!((&made["rule"]["limits"][0]["limit"], &made["rule"]["key"]), (&json!(5), &json!(["user"])));
    let versions = node.get("/versions");
    assert_eq!(versions["versions"][0]["reason"], "tries 5 for api/per-user in shadow");
    // It counts what enforcing it would refuse: of carol's eight requests the rule itself admits three, and this one would
    // have admitted five.
    assert_eq!(node.passing("carol", 8), 3);
    let callers = |by: &str| {
        let top = node.get(&format!("/keys/top?rule=per-user-suggested&by={by}"));
        let [rule] = &top["rules"].as_array().unwrap()[..] else { panic!("{top}") };
        let count =
            |caller: &Value| (caller["key"][0][1].as_str().unwrap().to_owned(), caller["count"].clone());
        rule["callers"].as_array().unwrap().iter().map(count).collect::<Vec<_>>()
    };
    assert_eq!((callers("used"), callers("refused")), (vec![("carol".to_owned(), json!(8))], vec![]));
    // With two instead it would have refused all of dave's but two, one of which the rule admitted.
    let two = json!({ "domain": "api", "rule": "per-user", "value": 2 });
    assert_eq!(node.ask("POST", "/suggestions/shadow", &two).status, 200);
    assert_eq!(node.passing("dave", 8), 3);
    assert_eq!(callers("refused"), [("dave".to_owned(), json!(6))]);
    // Again with another number: it is replaced.
    let again = json!({ "domain": "api", "rule": "per-user", "value": 7, "reason": "rather seven" });
    assert_eq!(node.ask("POST", "/suggestions/shadow", &again).status, 200);
    assert_eq!(node.get("/rules/api/per-user-suggested")["rule"]["limits"][0]["limit"], 7);
    for (wrong, status) in [
        (json!({ "domain": "api", "rule": "nobody" }), 404),
        (json!({ "domain": "api", "rule": "per-user", "limit": "no-such" }), 422),
        (json!({ "domain": "api", "rule": "per-user", "value": 0 }), 422),
    ] {
        assert_eq!(node.ask("POST", "/suggestions/shadow", &wrong).status, status, "{wrong}");
    }
}

#[test]
fn who_only_looks_at_a_key_is_not_in_the_log() {
    let node = node();
    let looked =
        node.ask("POST", "/keys/lookup", &json!({ "domain": "api", "attributes": { "user": "alice" } }));
    assert_eq!((looked.status, &looked.json()["cells"][0]["used"]), (200, &json!(3)));
    assert_eq!(node.get("/decisions")["matched"], 6);
}

const TEN: &str = "domain: api\nrules: [{ name: login, match: { path: /login }, key: [ip], limits: [{ algorithm: sliding_log, limit: 10, window: 1m }] }]\n";

/// An address that makes forty requests in forty seconds, as nginx logs it.
fn forty_log_ins() -> String {
    let line = |second| {
        format!(
            "198.51.100.7 - - [16/Nov/2026:10:00:{second:02} +0000] \"POST /login HTTP/1.1\" 200 12 \"-\" \"-\"\n"
        )
    };
    (0..40).map(line).collect()
}

#[test]
fn a_log_is_played_through_old_and_new_rules() {
    let node = Node::start();
    let five = TEN.replace("10", "5");
    let asked = json!({
        "log": forty_log_ins(),
        "documents": [{ "domain": "api", "text": TEN }],
        "against": [{ "domain": "api", "text": five }],
        "html": true,
    });
    let answer = node.ask("POST", "/replay/log", &asked);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let report = answer.json();
    assert_eq!((&report["format"], &report["requests"]), (&json!("combined"), &json!(40)));
    assert_eq!(report["refused"], json!({ "now": 30, "before": 35 }));
    assert_eq!(report["rules"][0]["hit_most"][0]["caller"], "ip=198.51.100.7");
    assert!(report["html"].as_str().unwrap().contains("198.51.100.7"));
}

#[test]
fn a_log_that_cannot_be_played_names_the_field_and_a_way_out() {
    let node = Node::start();
    let log = forty_log_ins();
    for (asked, field) in [
        (json!({ "log": "" }), "log"),
        (json!({ "log": "nothing that is a log\n" }), "format"),
        (json!({ "log": log, "format": "syslog" }), "format"),
        (json!({ "log": log, "format": "csv" }), "columns"),
        (json!({ "log": log, "domain": "nowhere" }), "domain"),
        (json!({ "log": log, "documents": [] }), "documents"),
        (json!({ "log": "{\"verdict\":1}\n", "format": "tidegate" }), "log"),
    ] {
        let answer = node.ask("POST", "/replay/log", &asked);
        assert_eq!((answer.status, &answer.json()["field"]), (422, &json!(field)), "{}", answer.text());
    }
    let wrong = json!({ "log": log, "documents": [{ "domain": "api", "text": "domain: api\nrulez: []\n" }] });
    assert!(!node.ask("POST", "/replay/log", &wrong).json()["diagnostics"].as_array().unwrap().is_empty());
    assert_eq!(node.ask("POST", "/replay/log", &json!({})).status, 404, "no decision is kept");
}

#[test]
fn a_proposal_of_nothing_or_of_two_things_says_what_to_give() {
    let node = node();
    for body in [
        json!({}),
        json!({ "domain": "api", "rule": "per-user" }),
        json!({ "documents": [], "domain": "api", "rule": "per-user", "text": "{}" }),
    ] {
        let answer = node.ask("POST", "/replay", &body);
        assert_eq!(answer.status, 422);
        assert!(answer.json()["hint"].as_str().unwrap().contains("`documents`"), "{}", answer.text());
    }
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
