//! A penalty is the fleet's: who was refused by one node is kept out by all.

use serde_json::json;
use tidegate_testkit::{Redis, ShardedRedis, eventually, http};

use crate::redis_world::{DEFAULT, Node, PATIENCE, PATIENT, check};

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

#[test]
fn a_penalty_begins_on_sharded_servers_however_short_the_limits_own_wait_is() {
    const BURSTS: &str = "- { name: bursts, key: [user], penalty: 1h, limits: [{ algorithm: token_bucket, rate: 20/s, burst: 2 }] }";
    let redis = ShardedRedis::start(3);
    let node = Node::ready(&redis.url(), PATIENT, BURSTS);
    let ask = |user: &str| {
        let body = json!({ "domain": "api", "attributes": { "user": user } }).to_string();
        http::post_json(node.http, "/v1/check", &body).json()
    };
    for user in ["one", "two", "three", "four"] {
        eventually("it is refused", PATIENCE, || ask(user)["allowed"] == false);
        let wait = ask(user)["retry_after_ms"].as_u64().unwrap();
        assert!((3_000_000..=3_600_000).contains(&wait), "{user}: {wait} ms");
    }
}

#[test]
fn what_another_request_only_holds_begins_no_penalty() {
    const RULES: &str = "\
- { name: per-user, key: [user], penalty: 1h, limits: [{ algorithm: fixed_window, limit: 1, window: 1d }] }
- { name: per-tenant, key: [tenant], limits: [{ algorithm: fixed_window, limit: 1, window: 1d }] }
";
    let redis = ShardedRedis::start(2);
    let [slow, quick] = [PATIENT, DEFAULT].map(|timeout| Node::ready(&redis.url(), timeout, RULES));
    let holds = |shard: &Redis, rule: &str| !shard.cmd(&["KEYS", &format!("*{rule}*")]).array().is_empty();
    let spend = |node: &Node, attributes: &[(&str, &str)]| check(&mut node.client(), attributes, 1).allowed;
    // A user on the first shard and a tenant on the second who has spent all, found by trying.
    let user = (0..64).map(|number| format!("u{number}")).find(|user| {
        redis.nodes().iter().for_each(|shard| drop(shard.cmd(&["FLUSHALL"])));
        spend(&slow, &[("user", user)]) && holds(&redis.nodes()[0], "per-user")
    });
    redis.nodes().iter().for_each(|shard| drop(shard.cmd(&["FLUSHALL"])));
    let tenants = (0..64).map(|number| format!("t{number}"));
    let tenant = tenants
        .into_iter()
        .find(|tenant| spend(&slow, &[("tenant", tenant)]) && holds(&redis.nodes()[1], "per-tenant"));
    let (user, tenant) = (user.unwrap(), tenant.unwrap());
    redis.nodes()[1].pause();
    std::thread::scope(|scope| {
        // Takes the user's only hit, until it hears that the tenant has none.
        let held = scope.spawn(|| spend(&slow, &[("user", &user), ("tenant", &tenant)]));
        eventually("the user's hit is held", PATIENCE, || holds(&redis.nodes()[0], "per-user"));
        let refused = check(&mut quick.client(), &[("user", &user)], 1);
        assert!(!refused.allowed, "{refused:?}");
        redis.nodes()[1].resume();
        assert!(!held.join().unwrap());
    });
    eventually("the user has its hit back", PATIENCE, || spend(&quick, &[("user", &user)]));
}
