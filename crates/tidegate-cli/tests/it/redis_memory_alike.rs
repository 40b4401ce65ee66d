//! What a server on Redis answers, where a shortcut on the way to it could make it differ from one on the memory store.

use serde_json::{Value as Json, json};
use tidegate_testkit::{Redis, http};

use crate::redis_world::{Node, PATIENT, check};

/// What `/v1/usage` says is left to `user` of the rule's limit.
fn left_of(node: &Node, rule: &str, user: &str) -> Json {
    let usage = http::get(node.http, &format!("/v1/usage?domain=api&user={user}")).json();
    let limits = usage["limits"].as_array().unwrap();
    let of = limits.iter().find(|limit| limit["rule"] == rule);
    of.unwrap_or_else(|| panic!("no {rule} in {usage}"))["remaining"].clone()
}

/// Promise 12. On Redis the first refusal by `few` is remembered, and would be enough to refuse all that follow.
#[test]
fn every_refused_request_is_counted_by_a_limit_that_counts_them_on_redis_as_in_memory() {
    const RULES: &str = "\
- { name: few, key: [user], limits: [{ algorithm: fixed_window, limit: 3, window: 1d }] }
- { name: tries, key: [user], limits: [{ algorithm: sliding_log, limit: 30, window: 1d, count_refused: true }] }
";
    let redis = Redis::start();
    let left = ["memory:", &redis.url()].map(|store| {
        let node = Node::ready(store, PATIENT, RULES);
        let mut client = node.client();
        let passed = (0..3 + 20).filter(|_| check(&mut client, &[("user", "42")], 1).allowed).count();
        assert_eq!(passed, 3, "{store}");
        left_of(&node, "tries", "42")
    });
    assert_eq!(left, [json!(7), json!(7)], "three that passed and twenty that did not, of thirty");
}
