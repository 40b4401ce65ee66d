//! Nodes of two key layouts on one Redis, as during a release that changes the layout. A prefix is part of what a key begins
//! with, as the layout's number is, so two prefixes show what two layouts cost.

use std::fs;

use tidegate_testkit::{Redis, TidegateServer, resp};

use crate::redis_world::{BINARY, check};

#[test]
fn nodes_of_two_layouts_admit_at_most_the_limit_each_and_every_key_ends_by_itself() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("rules.yaml");
    fs::write(&rules, "{ domain: api, rules: [{ name: a, key: [user], limits: [5/h] }] }").unwrap();
    let (url, any) = (redis.url(), "127.0.0.1:0");
    let args = [
        "--rules",
        rules.to_str().unwrap(),
        "--store",
        &url,
        "--resp",
        any,
        "--http",
        any,
        "--grpc",
        "off",
        "--admin",
        "off",
    ];
    let node = |layout| {
        let env = [("TIDEGATE_STORE__KEY_PREFIX", layout), ("TIDEGATE_STORE__TIMEOUT", "5s")];
        TidegateServer::start_with_env(BINARY, &args, &env)
    };
    let mut nodes = [node("old"), node("new"), node("new")];
    let mut clients = nodes.each_mut().map(|node| resp::Client::connect(node.addr("resp")));
    let mut admitted = [0; 3];
    for asked in 0..30 {
        let answer = check(&mut clients[asked % 3], &[("user", "42")], 1);
        assert!(answer.is_exact(), "{answer:?}");
        admitted[asked % 3] += usize::from(answer.allowed);
    }
    assert_eq!((admitted[0], admitted[1] + admitted[2]), (5, 5), "{admitted:?}");
    let resp::Value::Array(keys) = redis.cmd(&["KEYS", "*"]) else { panic!("KEYS lists keys") };
    for key in keys.iter().map(resp::Value::text) {
        assert!(redis.cmd(&["PTTL", &key]).int() > 0, "{key} never ends");
    }
}
