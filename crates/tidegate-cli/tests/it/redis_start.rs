//! A server that listens is ready to decide by a healthy Redis: its scripts are there, and it is one of the fleet.

use std::time::{Duration, Instant};

use tidegate_testkit::resp::Client;
use tidegate_testkit::{Redis, ShardedRedis};

use crate::redis_world::{DEFAULT, Node, PATIENT, check};

/// A limit of each kind that has a script of its own.
const RULES: &str = "\
- { name: token, match: { kind: token }, key: [user], limits: [{ algorithm: token_bucket, rate: 1/h, burst: 5 }] }
- { name: fixed, match: { kind: fixed }, key: [user], limits: [{ algorithm: fixed_window, limit: 5, window: 1d }] }
- { name: window, match: { kind: window }, key: [user], limits: [{ algorithm: sliding_window, limit: 5, window: 1d }] }
- { name: log, match: { kind: log }, key: [user], limits: [{ algorithm: sliding_log, limit: 5, window: 1d }] }
- { name: leaky, match: { kind: leaky }, key: [user], limits: [{ algorithm: leaky_bucket, rate: 1/s, max_delay: 5s }] }
- { name: slots, match: { kind: slots }, key: [user], limits: [{ algorithm: concurrency, limit: 5, ttl: 60s }] }
";
const KINDS: [&str; 6] = ["token", "fixed", "window", "log", "leaky", "slots"];

/// Three of the rules at a time, with their kinds: the scripts of all combinations of six take a busy machine, or a debug build,
/// longer than a start waits for them.
fn halves() -> [(String, &'static [&'static str]); 2] {
    let rules: Vec<&str> = RULES.lines().collect();
    [(rules[..3].join("\n"), &KINDS[..3]), (rules[3..].join("\n"), &KINDS[3..])]
}

/// Limiters that Redis knows of: the members of its only sorted set, while nobody holds a lease.
fn fleet(client: &mut Client) -> i64 {
    let found = client.cmd(&["SCAN", "0", "COUNT", "1000", "TYPE", "zset"]);
    match found.array()[1].array() {
        [] => 0,
        [members] => client.cmd(&["ZCARD", &members.text()]).int(),
        more => panic!("one list of limiters, not {more:?}"),
    }
}

/// How many scripts that decide are loaded while `act` runs. What tells nodes of each other and of rules has its own.
fn loaded_during(redis: &Redis, act: impl FnOnce()) -> usize {
    let loads = |line: &&String| line.contains("\"LOAD\"") && line.contains("_decide(");
    redis.commands_during(act).iter().filter(loads).count()
}

/// The longest that a start waits for its store. Where a machine is too busy for that, the rest loads at first use.
const LONGEST_WARM_UP: Duration = Duration::from_secs(2);

#[expect(clippy::disallowed_methods, reason = "it measures how long a real start takes")]
fn now() -> Instant {
    Instant::now()
}

/// How often a start is tried that a busy machine made longer than that.
const TRIES: usize = 20;

/// A node, and how long its start took.
fn timed_start(url: &str, rules: &str) -> (Node, Duration) {
    let began = now();
    (Node::start(url, PATIENT, rules), began.elapsed())
}

/// What `start` makes where the start of its node took less time than that.
#[track_caller]
fn started_in_time<T>(start: impl Fn() -> (T, Duration)) -> T {
    let mut took = Vec::new();
    let made = (0..TRIES).find_map(|_| {
        let (made, this_took) = start();
        took.push(this_took);
        (this_took < LONGEST_WARM_UP).then_some(made)
    });
    made.unwrap_or_else(|| panic!("no start took less than {LONGEST_WARM_UP:?}: {took:?}"))
}

/// Promise 15.
#[test]
fn the_scripts_of_its_rules_are_loaded_before_a_server_listens_and_not_at_its_first_checks() {
    for (rules, kinds) in halves() {
        let (redis, node, at_the_start) = started_in_time(|| {
            let (redis, mut node) = (Redis::start(), None);
            let loaded = loaded_during(&redis, || node = Some(timed_start(&redis.url(), &rules)));
            let (node, took) = node.unwrap();
            ((redis, node, loaded), took)
        });
        assert!(at_the_start >= kinds.len(), "{at_the_start}");
        let at_first_checks = loaded_during(&redis, || {
            for kind in kinds {
                let answer = check(&mut node.client(), &[("kind", kind), ("user", "42")], 1);
                assert_eq!(answer.source, "store", "{kind}");
            }
        });
        assert_eq!(at_first_checks, 0);
    }
}

/// Promise 15, for requests that several rules count, and for requests that share a call.
#[test]
fn scripts_of_rules_that_count_together_are_loaded_before_a_server_listens() {
    let rules = "\
- { name: user, key: [user], limits: [{ algorithm: token_bucket, rate: 1/h, burst: 50 }] }
- { name: ip, key: [ip], limits: [{ algorithm: token_bucket, rate: 1/h, burst: 50 }] }
- { name: day, match: { kind: day }, key: [user], limits: [{ algorithm: fixed_window, limit: 50, window: 1d }] }
- { name: slots, match: { kind: slots }, key: [ip], limits: [{ algorithm: concurrency, limit: 50, ttl: 60s }] }
";
    let (redis, node) = started_in_time(|| {
        let redis = Redis::start();
        let (node, took) = timed_start(&redis.url(), rules);
        ((redis, node), took)
    });
    let at_first_checks = loaded_during(&redis, || {
        for kind in ["none", "day", "slots"] {
            let asked = [("kind", kind), ("user", "42"), ("ip", "7")];
            assert_eq!(check(&mut node.client(), &asked, 1).source, "store", "{kind}");
        }
    });
    assert_eq!(at_first_checks, 0);
}

/// How many scripts that decide are loaded on each of two shards while `act` runs.
fn loaded_on_both(shards: &ShardedRedis, act: impl FnOnce()) -> [usize; 2] {
    let [one, other] = shards.nodes() else { panic!("two shards") };
    let mut by_other = 0;
    let by_one = loaded_during(one, || by_other = loaded_during(other, act));
    [by_one, by_other]
}

/// Promise 15, for each server of several.
#[test]
fn the_scripts_of_its_rules_are_loaded_on_every_shard_before_a_server_listens() {
    for (rules, kinds) in halves() {
        let (shards, node, at_the_start) = started_in_time(|| {
            let (shards, mut node) = (ShardedRedis::start(2), None);
            let loaded = loaded_on_both(&shards, || node = Some(timed_start(&shards.url(), &rules)));
            let (node, took) = node.unwrap();
            ((shards, node, loaded), took)
        });
        assert!(at_the_start.iter().all(|scripts| *scripts >= kinds.len()), "{at_the_start:?}");
        let at_first_checks = loaded_on_both(&shards, || {
            let mut client = node.client();
            for (kind, user) in
                kinds.iter().flat_map(|kind| (0..20).map(move |user| (*kind, user.to_string())))
            {
                assert_eq!(
                    check(&mut client, &[("kind", kind), ("user", &user)], 1).source,
                    "store",
                    "{kind}"
                );
            }
        });
        assert_eq!(at_first_checks, [0, 0]);
    }
}

/// Promise 15: six times, for one cold start in five was wrong.
#[test]
fn a_server_is_one_of_the_fleet_before_it_listens() {
    let redis = Redis::start();
    let mut client = redis.client();
    let mut nodes = Vec::new();
    for number in 1..=6 {
        nodes.push(Node::start(&redis.url(), DEFAULT, RULES));
        assert_eq!(fleet(&mut client), number, "when node {number} listens");
    }
}
