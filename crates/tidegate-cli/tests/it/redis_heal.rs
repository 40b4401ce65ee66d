//! What one node changes, the others honour: a refund, a raised limit; and what is asked together goes in one call.

use std::time::Duration;

use tidegate_testkit::{Redis, RedisCluster, eventually, http, in_three_tries};

use crate::redis_world::{Node, PATIENCE, PATIENT, alone, check, left, now, tell};

fn rules(limit: usize) -> String {
    format!(
        "- {{ name: a, key: [user], limits: [{{ algorithm: fixed_window, limit: {limit}, window: 1d }}] }}"
    )
}

/// Floods `node` with a caller who is over its limit until it passes again: a refusal is remembered for a second at most. A
/// busy machine takes a moment more.
fn passes_again(what: &str, node: &Node, user: &str, since: std::time::Instant) -> Result<(), String> {
    let mut client = node.client();
    eventually("the caller passes again", PATIENCE, || check(&mut client, &[("user", user)], 1).allowed);
    let took = since.elapsed();
    tell!("{what} through one node is honoured by the other after {took:?}");
    if took <= Duration::from_millis(1_250) { Ok(()) } else { Err(format!("{what} only after {took:?}")) }
}

#[test]
fn a_refund_and_a_raised_limit_through_one_node_are_honoured_by_the_other_within_a_second() {
    let _alone = alone();
    let redis = Redis::start();
    let mut nodes = Node::pair(&redis.url(), PATIENT, &rules(5));
    let spend = |node: &Node, user: &str| {
        let mut client = node.client();
        let admitted = (0..20).filter(|_| check(&mut client, &[("user", user)], 1).allowed).count();
        assert_eq!(check(&mut client, &[("user", user)], 1).source, "deny_cache");
        admitted
    };
    let mut tries = 0;
    in_three_tries(|| {
        tries += 1;
        let user = format!("refunded-{tries}");
        assert_eq!(spend(&nodes[1], &user), 5);
        let refund = format!(r#"{{"domain":"api","attributes":{{"user":"{user}"}},"amount":1}}"#);
        let since = now();
        assert_eq!(http::post_json(nodes[0].http, "/v1/refund", &refund).status, 200);
        passes_again("a refund", &nodes[1], &user, since)
    });
    let mut limit = 5;
    in_three_tries(|| {
        let user = format!("raised-{limit}");
        assert_eq!(spend(&nodes[1], &user), limit);
        limit += 1;
        nodes[0].change_rules(&rules(limit));
        let since = now();
        nodes[1].change_rules(&rules(limit));
        let again = passes_again("a raised limit", &nodes[1], &user, since);
        assert_eq!(left(&mut nodes[0].client(), &user), 0, "all but one were spent before, and one now");
        again
    });
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
    let checks = (0..count)
        .map(|user| format!(r#"{{"domain":"api","attributes":{{"user":"batch-{round}-{user}"}}}}"#));
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
    let calls_of = |users: &str, ask: fn(&Node, usize, usize)| {
        // The scripts of this many cells must be known before calls are counted.
        ask(&node, 0, 50);
        let lines = redis.commands_during(|| (1..=10).for_each(|round| ask(&node, round, 50)));
        // A node asks for itself too (heartbeats, who has which duty in the fleet): these calls name no user.
        let calls = |round| lines.iter().filter(|line| line.contains(&format!("{users}-{round}-"))).count();
        (1..=10).map(calls).collect::<Vec<_>>()
    };
    assert_eq!(calls_of("batch", ask_together), [1; 10], "/v1/check/batch: calls for each request");
    assert_eq!(calls_of("rls", ask_as_envoy), [1; 10], "RLS: calls for each request");
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
    let (began, before, scripts) = (now(), reads(), scripts_run(&masters));
    (1..=10).for_each(|round| ask_together(&node, round, 50));
    let (after, scripts_after) = (reads(), scripts_run(&masters));
    for place in 0..3 {
        let (read, run) = (after[place] - before[place], scripts_after[place] - scripts[place]);
        tell!("Cluster, 10 batches of 50 checks: a master ran {run} scripts, one per slot, in {read} reads");
        assert!(run > 50, "the checks are not spread: {run}");
        // Ten batches, what this test itself asks, now and then one that is read in two parts, probes and heartbeats.
        let background = 15 * (1 + began.elapsed().as_secs());
        assert!(read <= 10 + 20 + background, "{read} reads for ten batches");
    }
}
