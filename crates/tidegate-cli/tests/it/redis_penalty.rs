//! A penalty is the fleet's: who was refused by one node is kept out by all.

use tidegate_testkit::{Redis, http};

use crate::redis_world::{Node, PATIENT, check};

const LOGIN: &str = "- { name: login, key: [user], penalty: 1h, limits: [{ algorithm: fixed_window, limit: 2, window: 1d }] }";

/// Spends the limit of `user` through `node`, and then `refused` requests more.
fn spend(node: &Node, user: &str, refused: usize) {
    let mut client = node.client();
    let allowed: Vec<bool> =
        (0..2 + refused).map(|_| check(&mut client, &[("user", user)], 1).allowed).collect();
    assert_eq!(allowed.iter().filter(|allowed| **allowed).count(), 2, "{allowed:?}");
    // With room in the limit again, only a penalty still refuses.
    let refund = format!(r#"{{"domain":"api","attributes":{{"user":"{user}"}},"amount":2}}"#);
    assert_eq!(http::post_json(node.http, "/v1/refund", &refund).status, 200);
}

#[test]
fn who_was_refused_by_one_node_is_kept_out_by_the_other_until_the_penalty_ends() {
    let redis = Redis::start();
    let [first, second] = Node::pair(&redis.url(), PATIENT, LOGIN);
    spend(&first, "greedy", 1);
    spend(&first, "modest", 0);
    let answer = check(&mut second.client(), &[("user", "greedy")], 1);
    assert!(!answer.allowed && answer.is_exact(), "{answer:?}");
    let answer = check(&mut second.client(), &[("user", "modest")], 1);
    assert!(answer.allowed && answer.is_exact(), "{answer:?}");
    let body = r#"{"domain":"api","attributes":{"user":"greedy"}}"#;
    let told = http::post_json(second.http, "/v1/check", body).json();
    let wait = told["retry_after_ms"].as_u64().unwrap();
    assert!((3_000_000..=3_600_000).contains(&wait), "{told}");
}
