//! A limit like `100/day` names no algorithm, and above 100 it has another. A change of the number keeps what was counted all the
//! same. (A day, so that no hit leaves its window while a busy machine tests this.)

use tidegate_testkit::{Redis, RedisCluster, ShardedRedis, http};

use crate::control_world::Node;

/// A rule for each user, and one for all: on several servers, a request spans two of them.
fn rules(count: u64) -> String {
    format!(
        "domain: api\nrules:\n- {{ name: per-user, key: [user], limits: [{count}/day] }}\n- {{ name: all, limits: [5000/day] }}\n"
    )
}

/// What is left of a user's limit, after a request that costs this much.
#[track_caller]
fn left_after(node: &Node, cost: u64) -> u64 {
    let body = format!(r#"{{"domain":"api","attributes":{{"user":"somebody"}},"cost":{cost}}}"#);
    let answer = http::post_json(node.http, "/v1/check", &body).json();
    assert_eq!((&answer["allowed"], &answer["source"]), (&true.into(), &"store".into()), "{answer}");
    answer["remaining"].as_u64().unwrap()
}

/// Publishes the rules with another number, which must lose nothing, and runs them.
#[track_caller]
fn publish(node: &Node, count: u64) {
    let answer = node.publish(&rules(count));
    assert_eq!(
        (answer.status, &answer.json()["warnings"]),
        (200, &serde_json::json!([])),
        "{}",
        answer.text()
    );
    node.runs(count);
}

#[track_caller]
fn keeps_what_was_counted(store: &str) {
    let node = Node::start(&format!("store: {{ url: '{store}', timeout: 5s }}"));
    // In place of those it starts with, which count by the minute.
    assert_eq!(node.publish(&rules(100)).status, 200);
    node.runs(100);
    assert_eq!(left_after(&node, 60), 40);
    publish(&node, 200);
    assert_eq!(left_after(&node, 0), 140);
    assert_eq!(left_after(&node, 30), 110);
    publish(&node, 100);
    assert_eq!(left_after(&node, 0), 10);
    assert_eq!(left_after(&node, 1), 9);
    publish(&node, 300);
    assert_eq!(left_after(&node, 9), 200);
}

#[test]
fn a_number_that_crosses_a_hundred_keeps_what_was_counted_in_memory() {
    keeps_what_was_counted("memory:");
}

#[test]
fn a_number_that_crosses_a_hundred_keeps_what_was_counted_in_redis() {
    keeps_what_was_counted(&Redis::start().url());
}

#[test]
fn a_number_that_crosses_a_hundred_keeps_what_was_counted_in_a_cluster() {
    keeps_what_was_counted(&RedisCluster::start().url());
}

#[test]
fn a_number_that_crosses_a_hundred_keeps_what_was_counted_on_sharded_servers() {
    keeps_what_was_counted(&ShardedRedis::start(3).url());
}
