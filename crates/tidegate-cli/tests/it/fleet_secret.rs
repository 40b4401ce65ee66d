//! What somebody who can write to the fleet's Redis cannot do, if the nodes have a secret that Redis does not have.

use serde_json::json;
use tidegate_testkit::{Redis, eventually, resp};

use crate::control_world::{Node, PATIENCE, rules_of};

const PUBLISHED: &str = "tidegate:fleet{members}rules";
const NOTES: &str = "tidegate:fleet{members}notes";
const QUESTIONS: &str = "tidegate:fleet{members}questions";
const SECRET: &str = "a secret that Redis does not have";

fn node(redis: &Redis, secret: &str, admin: &str) -> Node {
    Node::start(&format!("store: {{ url: '{}', {secret} }}\nadmin: {{ {admin} }}", redis.url()))
}

fn leader(redis: &Redis) -> Node {
    let leader = node(redis, &format!("fleet_secret: '{SECRET}'"), "node: leader");
    eventually("it has published its rules", PATIENCE, || !field(redis, "set").is_empty());
    leader
}

fn follower(redis: &Redis) -> Node {
    node(redis, &format!("fleet_secret: '{SECRET}'"), "node: follower, database: none")
}

fn field(redis: &Redis, name: &str) -> String {
    match redis.cmd(&["HGET", PUBLISHED, name]) {
        resp::Value::Bulk(bytes) => String::from_utf8(bytes).unwrap(),
        _ => String::new(),
    }
}

/// Writes rules as a fleet without a secret publishes them.
fn forge(redis: &Redis, lineage: &str, limit: u64) {
    let documents = json!([{ "domain": "api", "text": rules_of(limit) }]);
    let set = json!({ "lineage": lineage, "version": 900, "overrides": 0, "documents": documents, "key_overrides": [] });
    let set = set.to_string();
    redis.cmd(&[
        "HSET", PUBLISHED, "lineage", lineage, "revision", "900", "set", &set, "changes", "", "mark", "",
    ]);
}

fn error_of(node: &Node, name: &str) -> String {
    let notes = node.notes();
    let note = notes.iter().find(|note| note["name"] == name);
    note.and_then(|note| note["error"].as_str()).unwrap_or_default().to_owned()
}

#[test]
fn forged_rules_are_refused_and_overwritten() {
    let redis = Redis::start();
    let (leader, follower) = (leader(&redis), follower(&redis));
    assert_eq!(leader.publish(&rules_of(9)).status, 200);
    follower.runs(9);
    let lineage = field(&redis, "lineage");
    for forged in ["another database", &lineage] {
        forge(&redis, forged, 1);
        eventually("the leader's rules are there again", PATIENCE, || {
            assert_eq!((leader.limit(), follower.limit()), (Some(9), Some(9)), "whatever Redis holds");
            field(&redis, "set").contains("limit: 9") && field(&redis, "lineage") == lineage
        });
    }
    assert_eq!(leader.publish(&rules_of(8)).status, 200, "the leader still leads");
    follower.runs(8);
    // A follower may hear of it only when it is over.
    let stderr = leader.server.stderr();
    assert!(
        stderr.contains("the published set in the store is not signed with this fleet's secret"),
        "{stderr}"
    );
}

#[test]
fn forged_rules_are_refused_while_the_leader_is_gone() {
    let redis = Redis::start();
    let (mut leader, follower) = (leader(&redis), follower(&redis));
    assert_eq!(leader.publish(&rules_of(9)).status, 200);
    follower.runs(9);
    leader.server.process().kill();
    forge(&redis, "another database", 1);
    eventually("the follower says so", PATIENCE, || {
        error_of(&follower, "follower").contains("is not signed")
    });
    assert_eq!(follower.limit(), Some(9));
    assert_eq!(follower.server.stderr().matches("is not signed with this fleet's secret").count(), 1, "once");

    leader.come_back();
    eventually("the leader's rules are there again", PATIENCE, || field(&redis, "set").contains("limit: 9"));
    assert_eq!(leader.publish(&rules_of(8)).status, 200);
    follower.runs(8);
}

#[test]
fn rules_put_back_do_not_roll_nodes_back() {
    let redis = Redis::start();
    let (mut leader, follower) = (leader(&redis), follower(&redis));
    assert_eq!(leader.publish(&rules_of(9)).status, 200);
    follower.runs(9);
    let resp::Value::Bulk(old) = redis.cmd(&["DUMP", PUBLISHED]) else { panic!("no copy") };
    leader.ban("7");
    eventually("the ban acts", PATIENCE, || !follower.allows("7"));
    // It may have fetched that ban before a heartbeat told of it: this one shows that a heartbeat has.
    leader.ban("6");
    eventually("the next ban acts", PATIENCE, || !follower.allows("6"));
    leader.server.process().kill();
    redis.cmd(&[b"RESTORE".as_slice(), PUBLISHED.as_bytes(), b"0", &old, b"REPLACE"]);
    eventually("the follower says so", PATIENCE, || {
        error_of(&follower, "follower").contains("is older than")
    });
    assert!(!follower.allows("7"));

    leader.come_back();
    eventually("the ban is published again", PATIENCE, || error_of(&follower, "follower").is_empty());
    assert!(!follower.allows("7"));
    leader.ban("8");
    eventually("and so are new ones", PATIENCE, || !follower.allows("8"));
}

#[test]
fn redis_that_lost_everything_is_filled_again() {
    let redis = Redis::start();
    let (leader, follower) = (leader(&redis), follower(&redis));
    assert_eq!(leader.publish(&rules_of(9)).status, 200);
    follower.runs(9);
    redis.cmd(&["FLUSHALL"]);
    eventually("it is published again", PATIENCE, || field(&redis, "set").contains("limit: 9"));
    assert_eq!(leader.publish(&rules_of(8)).status, 200);
    follower.runs(8);
}

#[test]
fn unsigned_rules_start_no_node_that_has_a_secret() {
    let redis = Redis::start();
    forge(&redis, "theirs", 7);
    let (open, closed) = (node(&redis, "required: true", "node: open, database: none"), follower(&redis));
    open.runs(7);
    assert_eq!(closed.limit(), None);
    eventually("it says why", PATIENCE, || error_of(&closed, "follower").contains("is not signed"));
    eventually("the other node is shown as unsigned", PATIENCE, || {
        error_of(&closed, "open").contains("its heartbeat is not signed")
    });
    eventually("who has no secret checks nothing", PATIENCE, || {
        error_of(&open, "follower") == error_of(&closed, "follower")
    });
}

#[test]
fn first_node_with_a_secret_takes_no_fleet_over() {
    let redis = Redis::start();
    let old = node(&redis, "required: true", "node: old");
    assert_eq!(old.publish(&rules_of(9)).status, 200);
    eventually("it is published", PATIENCE, || field(&redis, "set").contains("limit: 9"));
    let new = node(&redis, &format!("fleet_secret: '{SECRET}'"), "node: new");
    assert_eq!(new.publish(&rules_of(5)).json()["distribution"]["state"], "pending");
    assert!(field(&redis, "set").contains("limit: 9"));
    assert_eq!(old.limit(), Some(9));
}

#[test]
fn store_beyond_this_machine_without_a_secret_is_warned_of() {
    let redis = Redis::start();
    // An address for documentation: nothing answers there, and the node starts without its store.
    let elsewhere = "redis://192.0.2.1:6379";
    for (url, secret, warned) in [
        (elsewhere, String::new(), true),
        (elsewhere, format!(", fleet_secret: '{SECRET}'"), false),
        (&redis.url(), String::new(), false),
    ] {
        let node = Node::start(&format!("store: {{ url: '{url}'{secret} }}"));
        assert_eq!(
            node.server.stderr().contains("`store.fleet_secret` is not set: whoever can write"),
            warned,
            "{url}{secret}"
        );
    }
}

#[test]
fn forged_questions_are_not_answered() {
    let redis = Redis::start();
    let decisions = "\ndecision_log: { admissions_one_in: 1 }";
    let with_log = |admin: &str| {
        let store = format!("store: {{ url: '{}', fleet_secret: '{SECRET}' }}", redis.url());
        Node::start(&format!("{store}\nadmin: {{ {admin} }}{decisions}"))
    };
    let leader = with_log("node: leader");
    eventually("it has published its rules", PATIENCE, || !field(&redis, "set").is_empty());
    let follower = with_log("node: follower, database: none");
    eventually("both are seen", PATIENCE, || leader.notes().len() == 2 && follower.limit().is_some());
    let forged = json!({ "ask": "top", "domain": null, "rule": null, "by": "used" }).to_string();
    redis.cmd(&["HSET", QUESTIONS, "\u{1}2345678", &forged]);
    // A real one, which travels with the same heartbeats: where it is answered, the forged one was heard.
    let top = leader.get("/keys/top");
    assert_eq!(top["missing"], json!([]), "{top}");
    let resp::Value::Array(keys) = redis.cmd(&["KEYS", "*answers*"]) else { panic!("a list") };
    assert!(keys.is_empty(), "{keys:?}");
}

#[test]
fn forged_heartbeats_are_shown_as_such() {
    let redis = Redis::start();
    let leader = leader(&redis);
    let resp::Value::Array(time) = redis.cmd(&["TIME"]) else { panic!("a time") };
    let now_us = time[0].text().parse::<u64>().unwrap() * 1_000_000;
    let note = json!({ "name": "mallory", "started_us": u64::MAX, "clock_us": u64::MAX, "serial": u64::MAX, "format": 2 });
    redis.cmd(&["HSET", NOTES, "8 bytes.", &format!("{now_us} 60000000 {note}")]);
    assert!(error_of(&leader, "mallory").contains("not signed"), "{:?}", leader.notes());
    assert_eq!(leader.publish(&rules_of(8)).json()["distribution"]["state"], "published");
    assert!(field(&redis, "serial").parse::<u64>().unwrap() < u64::MAX / 2, "it changed no order");
}
