//! A database that is unavailable: limits keep working, changes wait, and everything recovers automatically.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_admin::RuleSource;
use tidegate_testkit::{Postgres, eventually, http};

use super::world::{CONFIGURED, Node, RULES};

#[test]
fn a_database_that_dies_stops_changes_and_nothing_else() {
    let mut server = Postgres::start();
    let url = server.new_database();
    let node = Node::on(&url, RuleSource::Database, tempfile::tempdir().unwrap());
    server.kill();
    assert_eq!(node.passing("1", 5), 3, "limits keep working");
    assert_eq!(node.get("/rules")["version"], 1, "a token of the configuration needs no database");
    let away = node.publish(1, &RULES.replace("3/", "1/"));
    assert_eq!(away.status, 503, "{}", away.text());
    eventually("it is noticed", Duration::from_secs(30), || {
        node.get("/stores")["database"]["healthy"] == json!(false)
    });
    server.start_again();
    eventually("it heals", Duration::from_secs(30), || {
        node.get("/stores")["database"]["healthy"] == json!(true)
    });
    let back = node.publish(1, &RULES.replace("3/", "1/"));
    assert_eq!(back.status, 200, "{}", back.text());
    assert_eq!(node.passing("2", 5), 1);
}

#[test]
fn a_database_that_is_away_at_the_start_is_followed_once_it_is_there() {
    let mut server = Postgres::start();
    let url = server.new_database();
    drop(Node::on(&url, RuleSource::Database, tempfile::tempdir().unwrap()));
    server.kill();
    let node = Node::on(&url, RuleSource::Database, tempfile::tempdir().unwrap());
    assert_eq!(node.get("/rules")["version"], 0);
    server.start_again();
    eventually("the rules come", Duration::from_secs(30), || node.get("/rules")["version"] == json!(1));
    assert_eq!(node.passing("1", 5), 3);
    assert_eq!(node.ask("GET", "/versions", &Value::Null).status, 200);
}

/// The ids of the sessions in an answer, and whether it says that others are missing.
fn listed(answer: &Value) -> (Vec<String>, bool) {
    let sessions = answer["sessions"].as_array().unwrap().iter();
    (sessions.map(|one| one["id"].as_str().unwrap().to_owned()).collect(), answer["incomplete"].is_string())
}

#[test]
fn a_session_of_an_outage_is_listed_and_signed_out() {
    let mut server = Postgres::start();
    let url = server.new_database();
    let node = Node::on(&url, RuleSource::Database, tempfile::tempdir().unwrap());
    let log_in = || {
        let token = json!({ "token": CONFIGURED }).to_string();
        let answer = http::post_json(node.address, "/admin/v1/session", &token);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned()
    };
    let is_open = |cookie: &str| {
        let headers = [("cookie", cookie)];
        http::request(node.address, "GET", "/admin/v1/session", &headers, b"").unwrap().status == 200
    };
    let kept = log_in();
    assert!(!listed(&node.get("/sessions")).1);
    server.kill();
    let (first, second) = (log_in(), log_in());
    assert!(is_open(&first) && is_open(&second));
    let (ids, incomplete) = listed(&node.get("/sessions"));
    assert_eq!((ids.len(), incomplete), (2, true), "that of the database is unknown");
    let end = |id: &str| node.ask("DELETE", &format!("/sessions/{id}"), &Value::Null).status;
    assert_eq!(end(&ids[0]), 204);
    assert_eq!((is_open(&first), is_open(&second)), (true, false), "the newest is listed first");
    server.start_again();
    eventually("the database is back", Duration::from_secs(30), || !listed(&node.get("/sessions")).1);
    let (ids, _) = listed(&node.get("/sessions"));
    assert_eq!(ids.len(), 2, "that of the outage is among them: {ids:?}");
    assert!(is_open(&first) && is_open(&kept));
    assert_eq!(end(&ids[0]), 204, "it is the newer one");
    assert_eq!((is_open(&first), is_open(&kept), end(&ids[0])), (false, true, 404));
    eventually("it is audited", Duration::from_secs(30), || {
        let audit = node.get("/audit?action=logout");
        audit["entries"].as_array().unwrap().iter().any(|entry| entry["detail"]["id"] == json!(ids[0]))
    });
}
