//! Fifty thousand requests at once.

use std::time::Duration;

use tidegate_testkit::{RedisCluster, ShardedRedis};

use super::attack_with;
use crate::acts::flood;
use crate::attack::{Attack, Pipeline};
use crate::limit::Limit;
use crate::plan::Plan;
use crate::random::Random;
use crate::world::{DEFAULT, PATIENT, Store};

const HOUR: Duration = Duration::from_secs(3_600);

fn hundred_an_hour() -> Limit {
    Limit::FixedWindow { limit: 100, window: HOUR }
}

fn on_one_key(policy: &'static str) -> Attack {
    let mut attack = Attack::start(Store::single(), 1, DEFAULT, Plan::of(hundred_an_hour(), policy, 1));
    flood(&mut attack, 0, 50, 1_000);
    attack
}

#[test]
fn fifty_thousand_at_once_on_one_key_admit_its_limit_under_local() {
    attack_with(&[0], |_| on_one_key("local"));
}

#[test]
fn fifty_thousand_at_once_on_one_key_admit_its_limit_under_open() {
    attack_with(&[0], |_| on_one_key("open"));
}

#[test]
fn fifty_thousand_at_once_on_one_key_are_not_refused_for_want_of_a_store_under_closed() {
    attack_with(&[0], |_| on_one_key("closed"));
}

#[test]
fn forty_connections_of_128_pipelined_admit_the_limit_once_however_often_they_come() {
    attack_with(&[0], |_| {
        let mut attack = Attack::start(Store::single(), 1, DEFAULT, Plan::of(hundred_an_hour(), "local", 1));
        for _ in 0..8 {
            flood(&mut attack, 0, 40, 128);
            crate::world::pass(Duration::from_millis(1_100));
        }
        attack
    });
}

/// Requests of a thousand users, spread over all connections.
fn on_many_keys(timeout: &str, random: &mut Random) -> Attack {
    let limit =
        Limit::SlidingLog { limit: 20, window: HOUR, min_interval: Duration::ZERO, count_refused: false };
    let mut attack = Attack::start(Store::single(), 2, timeout, Plan::of(limit, "local", 2_000));
    let pipelines: Vec<Pipeline> = (0..50)
        .map(|connection| Pipeline {
            node: connection % 2,
            requests: (0..1_000).map(|_| (random.below(2_000), 1)).collect(),
        })
        .collect();
    attack.burst(&pipelines);
    attack
}

#[test]
fn fifty_thousand_at_once_on_two_thousand_keys_are_exact() {
    attack_with(&[1], |random| {
        let mut attack = on_many_keys(PATIENT, random);
        attack.history.must_be_exact = true;
        attack
    });
}

#[test]
fn fifty_thousand_at_once_on_two_thousand_keys_never_look_like_a_failure() {
    attack_with(&[1], |random| on_many_keys(DEFAULT, random));
}

/// Users of one tenant, whose counters live on different servers: each request needs two of them.
#[test]
fn fifty_thousand_at_once_over_several_servers_admit_the_limit_and_lose_none_of_it() {
    attack_with(&[2], |random| {
        let hourly = |limit| vec![Limit::FixedWindow { limit, window: HOUR }];
        let mut plan = Plan::default();
        plan.add("case", "local", hourly(20), Some(hourly(2_000)), 200);
        let mut attack = Attack::start(Store::Sharded(ShardedRedis::start(3)), 2, DEFAULT, plan);
        let mut requests = |count| (0..count).map(|_| (random.below(200), 1)).collect();
        let flood: Vec<Pipeline> =
            (0..50).map(|connection| Pipeline { node: connection % 2, requests: requests(1_000) }).collect();
        attack.burst(&flood);
        // What was late is over by then: who is refused now is refused by what others have.
        crate::world::pass(Duration::from_secs(6));
        for _ in 0..25 {
            attack.burst(&[Pipeline { node: 0, requests: requests(100) }]);
        }
        attack
    });
}

/// Each request needs two servers, and all of them one: for a few seconds everything is late.
#[test]
fn bursts_again_and_again_over_a_cluster_never_look_like_a_failure() {
    attack_with(&[3], |random| {
        let hourly = |limit| vec![Limit::FixedWindow { limit, window: HOUR }];
        let mut plan = Plan::default();
        plan.add("case", "local", hourly(30), Some(hourly(700)), 40);
        let mut attack = Attack::start(Store::Cluster(RedisCluster::start()), 2, DEFAULT, plan);
        for (connections, each) in [(40, 750), (10, 200), (10, 200), (10, 200), (10, 200), (10, 200)] {
            let mut requests = || (0..each).map(|_| (random.below(40), 1)).collect();
            let burst: Vec<Pipeline> =
                (0..connections).map(|node| Pipeline { node: node % 2, requests: requests() }).collect();
            attack.burst(&burst);
            crate::world::pass(Duration::from_millis(200));
        }
        attack
    });
}

#[test]
fn fifty_thousand_at_once_on_one_concurrency_limit_give_its_leases_once() {
    attack_with(&[0], |_| {
        let limit = Limit::Concurrency { limit: 100, ttl: HOUR, count_refused: false };
        let mut attack = Attack::start(Store::single(), 2, DEFAULT, Plan::of(limit, "local", 1));
        let pipelines: Vec<Pipeline> =
            (0..50).map(|number| Pipeline { node: number % 2, requests: vec![(0, 1); 1_000] }).collect();
        attack.burst(&pipelines);
        attack
    });
}
