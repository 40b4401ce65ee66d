//! Nodes of two releases on one Redis. There is one build here, so the other release is played at the wire: its keys are
//! written and read as it writes and reads them.

use serde_json::{Value, json};
use tidegate_testkit::{Postgres, Redis, eventually, resp};

use crate::control_world::{Node, PATIENCE, rules_of};

const PUBLISHED: &str = "tidegate:fleet{members}rules";
const NOTES: &str = "tidegate:fleet{members}notes";

fn field(redis: &Redis, name: &str) -> String {
    match redis.cmd(&["HGET", PUBLISHED, name]) {
        resp::Value::Bulk(bytes) => String::from_utf8(bytes).unwrap(),
        _ => String::new(),
    }
}

/// A heartbeat of a node that tells this of itself, and is not heard of again for a minute.
fn tell(redis: &Redis, note: &Value) {
    let resp::Value::Array(time) = redis.cmd(&["TIME"]) else { panic!("a time") };
    let [seconds, micros] = [0, 1].map(|at| time[at].text().parse::<u64>().unwrap());
    let told = format!("{} 60000000 {note}", seconds * 1_000_000 + micros);
    redis.cmd(&["HSET", NOTES, "8 bytes.", &told]);
}

/// A set as it was written before there were changes beside it, marks and formats.
fn first_set(version: u64, limit: u64) -> Value {
    let documents = json!([{ "domain": "api", "text": rules_of(limit) }]);
    json!({ "lineage": "theirs", "version": version, "overrides": 0, "documents": documents, "key_overrides": [] })
}

fn publish(redis: &Redis, revision: u64, set: &str, more: &[&str]) {
    let revision = revision.to_string();
    let own = ["HSET", PUBLISHED, "lineage", "theirs", "revision", &revision, "set", set];
    redis.cmd(&[&own[..], more].concat());
}

fn follower(redis: &Redis) -> Node {
    Node::start(&format!("store: {{ url: '{}' }}\nadmin: {{ node: follower, database: none }}", redis.url()))
}

fn error_of(node: &Node) -> String {
    node.notes().iter().find(|note| note["name"] == "follower").unwrap()["error"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn a_node_that_reads_whole_sets_alone_is_given_every_ban_in_one() {
    let redis = Redis::start();
    let leader = Node::start(&format!("store: {{ url: '{}' }}\nadmin: {{ node: leader }}", redis.url()));
    assert_eq!(leader.publish(&rules_of(9)).status, 200);
    eventually("it is published", PATIENCE, || field(&redis, "set").contains("limit: 9"));
    let earlier =
        json!({ "name": "earlier", "release": "0.0.9", "version": 2, "layout": "2", "started_us": 5 });
    tell(&redis, &earlier);
    leader.ban("first");
    eventually("the set holds the ban", PATIENCE, || field(&redis, "set").contains("first"));
    let set: Value = serde_json::from_str(&field(&redis, "set")).unwrap();
    let revision = set["version"].as_u64().unwrap() + set["overrides"].as_u64().unwrap();
    assert_eq!((field(&redis, "revision"), field(&redis, "format")), (revision.to_string(), "1".to_owned()));
    let notes = leader.notes();
    let shown = notes.iter().find(|note| note["name"] == "earlier").expect("it is shown");
    assert_eq!((&shown["release"], &shown["format"]), (&json!("0.0.9"), &json!(0)));

    redis.cmd(&["HDEL", NOTES, "8 bytes."]);
    leader.ban("second");
    eventually("changes alone are told again", PATIENCE, || field(&redis, "changes").contains("second"));
    assert!(!field(&redis, "set").contains("second"));
    assert_eq!(field(&redis, "format"), "2");
}

#[test]
fn what_an_earlier_release_published_is_followed() {
    let redis = Redis::start();
    publish(&redis, 1, &first_set(1, 7).to_string(), &[]);
    let node = follower(&redis);
    node.runs(7);
    publish(&redis, 2, &first_set(2, 8).to_string(), &[]);
    node.runs(8);
    assert_eq!(error_of(&node), "");
}

#[test]
fn a_newer_format_is_left_alone_and_the_node_says_why() {
    let redis = Redis::start();
    let mut set = first_set(1, 7);
    set["not_known_here"] = json!({ "any": ["thing"] });
    publish(&redis, 1, &set.to_string(), &["format", "2", "mark", "a.0", "also_not_known", "x"]);
    let node = follower(&redis);
    node.runs(7);

    publish(&redis, 2, "whatever comes", &["format", "99", "changes", "more"]);
    eventually("it says so", PATIENCE, || error_of(&node).contains("has format 99"));
    assert_eq!(node.limit(), Some(7), "what it has goes on");
    assert_eq!(node.get("/nodes")["converged"], false);

    // Who published hears that a node reads less, and writes the same revision for it.
    publish(&redis, 2, &first_set(2, 8).to_string(), &["format", "1", "changes", ""]);
    node.runs(8);
    eventually("nothing is wrong", PATIENCE, || error_of(&node).is_empty());
    assert_eq!(node.server.stderr().matches("has format 99").count(), 1, "it is logged once");
}

#[test]
fn a_node_whose_note_cannot_be_read_is_shown_all_the_same() {
    let redis = Redis::start();
    publish(&redis, 1, &first_set(1, 7).to_string(), &[]);
    let node = follower(&redis);
    node.runs(7);
    tell(
        &redis,
        &json!({ "name": "later", "release": "9.0.0", "version": { "of": "another kind" }, "format": 3 }),
    );
    let notes = node.notes();
    let shown = notes.iter().find(|note| note["name"] == "later").expect("it is shown");
    assert_eq!((&shown["release"], &shown["format"]), (&json!("9.0.0"), &json!(3)));
    assert!(shown["error"].as_str().unwrap().contains("cannot be read"), "{shown}");
}

#[test]
fn a_node_that_runs_while_a_newer_release_changes_the_schema_serves_on_and_changes_nothing() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    let node = Node::start(&format!("admin: {{ database: '{url}' }}"));
    assert_eq!(node.publish(&rules_of(7)).status, 200);
    postgres.run(&url, "UPDATE schema_version SET version = version + 1");
    let refused = node.publish_on("2", &rules_of(8));
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.json()["hint"].as_str().unwrap().contains("newer release"), "{}", refused.text());
    for _ in 0..20 {
        postgres
            .run(&url, "UPDATE head SET overrides = overrides + 1; SELECT pg_notify('tidegate_rules', '')");
        assert_eq!(node.limit(), Some(7));
    }
    eventually("it says so", PATIENCE, || node.server.stderr().contains("this release knows schemas up to"));
    assert!(!node.server.stderr().contains("the database answers again"), "{}", node.server.stderr());
}
