//! A database that is unavailable: limits keep working, changes wait, and everything recovers automatically.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_admin::RuleSource;
use tidegate_testkit::{Postgres, eventually};

use super::world::{Node, RULES};

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
