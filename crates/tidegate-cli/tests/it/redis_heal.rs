//! What one node changes, the others honour: a refund, a raised limit; and what is asked together goes in one call.

use std::time::Duration;

use tidegate_testkit::{Redis, RedisCluster, eventually, http};

use crate::redis_world::{Node, PATIENT, alone, check, left, now, tell};

fn rules(limit: u32) -> String {
    format!(
        "- {{ name: a, key: [user], limits: [{{ algorithm: fixed_window, limit: {limit}, window: 1d }}] }}"
    )
}

/// A refusal is remembered for a second at most; a busy machine takes a moment more.
const A_SECOND: Duration = Duration::from_millis(1_000);
const NOISE: Duration = Duration::from_millis(250);

/// Floods `node` with a caller who is over its limit until it passes again, and tells how long that took.
fn passes_again(node: &Node, user: &str, since: std::time::Instant) -> Duration {
    let mut client = node.client();
    eventually("the caller passes again", Duration::from_secs(5), || {
        check(&mut client, &[("user", user)], 1).allowed
    });
    since.elapsed()
}

#[test]
fn a_refund_and_a_raised_limit_through_one_node_are_honoured_by_the_other_within_a_second() {
    let _alone = alone();
    let redis = Redis::start();
    let mut nodes = Node::pair(&redis.url(), PATIENT, &rules(5));
    let spend = |node: &Node, user: &str| {
        let mut client = node.client();
        let admitted = (0..10).filter(|_| check(&mut client, &[("user", user)], 1).allowed).count();
        assert_eq!(check(&mut client, &[("user", user)], 1).source, "deny_cache");
        admitted
    };
    assert_eq!(spend(&nodes[1], "refunded"), 5);
    let refund = r#"{"domain":"api","attributes":{"user":"refunded"},"amount":1}"#;
    let since = now();
    assert_eq!(http::post_json(nodes[0].http, "/v1/refund", refund).status, 200);
    let took = passes_again(&nodes[1], "refunded", since);
    tell!("a refund through one node is honoured by the other after {took:?}");
    assert!(took <= A_SECOND + NOISE, "after {took:?}");

    assert_eq!(spend(&nodes[1], "raised"), 5);
    nodes[0].change_rules(&rules(6));
    let since = now();
    nodes[1].change_rules(&rules(6));
    let took = passes_again(&nodes[1], "raised", since);
    tell!("a raised limit is honoured after {took:?}");
    assert!(took <= A_SECOND + NOISE, "after {took:?}");
    assert_eq!(left(&mut nodes[0].client(), "raised"), 0, "five of six were spent before, and one now");
}

/// Scripts that these servers have run, by their own count.
fn scripts_run(servers: &[&Redis]) -> Vec<u64> {
    let run = |redis: &&Redis| {
        let stats = redis.cmd(&["INFO", "commandstats"]).text();
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    servers.iter().map(run).collect()
}

/// A batch of checks, and a question of Envoy's with as many descriptors, each for another user.
fn ask_together(node: &Node, round: usize, count: usize) {
    let checks =
        (0..count).map(|user| format!(r#"{{"domain":"api","attributes":{{"user":"{round}-{user}"}}}}"#));
    let body = format!(r#"{{"checks":[{}]}}"#, checks.collect::<Vec<_>>().join(","));
    let reply = http::post_json(node.http, "/v1/check/batch", &body);
    let decisions = reply.json()["decisions"].as_array().unwrap().clone();
    assert_eq!(decisions.len(), count);
    assert!(decisions.iter().all(|one| one["allowed"] == true && one["source"] == "store"), "{decisions:?}");
}

fn ask_as_envoy(node: &Node, round: usize, count: usize) {
    let descriptors =
        (0..count).map(|user| format!(r#"{{"entries":[{{"key":"user","value":"rls-{round}-{user}"}}]}}"#));
    let body = format!(r#"{{"domain":"api","descriptors":[{}]}}"#, descriptors.collect::<Vec<_>>().join(","));
    let reply = http::post_json(node.http, "/json", &body);
    assert_eq!((reply.status, reply.json()["statuses"].as_array().unwrap().len()), (200, count));
}

#[test]
fn what_is_asked_together_is_one_call_to_redis() {
    let _alone = alone();
    let redis = Redis::start();
    let node = Node::ready(&redis.url(), PATIENT, &rules(5));
    // The scripts of this many cells must be known before calls are counted.
    for ask in [ask_together, ask_as_envoy] {
        ask(&node, 0, 50);
    }
    for (name, ask) in [("/v1/check/batch", ask_together as fn(&Node, usize, usize)), ("RLS", ask_as_envoy)] {
        let before = scripts_run(&[&redis])[0];
        let beats = node.metric("tidegate_store_duration_seconds_count{op=\"heartbeat\"}");
        (1..=10).for_each(|round| ask(&node, round, 50));
        let beats = node.metric("tidegate_store_duration_seconds_count{op=\"heartbeat\"}") - beats;
        let calls = scripts_run(&[&redis])[0] - before;
        tell!(
            "{name}: 10 requests of 50 checks each made {calls} calls to Redis, {beats} of them heartbeats"
        );
        assert!((10..=11 + beats as u64).contains(&calls), "{name}: {calls} calls");
    }
}

#[test]
fn on_a_cluster_what_is_asked_together_is_one_round_trip_to_each_node() {
    let _alone = alone();
    let cluster = RedisCluster::start();
    let node = Node::ready(&cluster.url(), PATIENT, &rules(5));
    ask_together(&node, 0, 50);
    let masters: Vec<&Redis> = cluster.nodes()[..3].iter().collect();
    // How often a server found something to read: what one caller sends in one go is read at once.
    let reads = || -> Vec<u64> {
        let of = |redis: &&Redis| redis.info("total_reads_processed").unwrap().trim().parse().unwrap();
        masters.iter().map(of).collect()
    };
    let (before, scripts) = (reads(), scripts_run(&masters));
    (1..=10).for_each(|round| ask_together(&node, round, 50));
    let (after, scripts_after) = (reads(), scripts_run(&masters));
    for place in 0..3 {
        let (read, run) = (after[place] - before[place], scripts_after[place] - scripts[place]);
        tell!("Cluster, 10 batches of 50 checks: a master ran {run} scripts, one per slot, in {read} reads");
        assert!(run > 50, "the checks are not spread: {run}");
        // Ten batches, what this test itself asks, heartbeats, and now and then one that is read in two parts.
        assert!(read <= 10 + 20, "{read} reads for ten batches");
    }
}
