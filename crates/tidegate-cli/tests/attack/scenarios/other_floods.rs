//! The floods on stores other than Redis, with fewer requests than there unless `ATTACK_FLOOD` says how many come over each of the
//! fifty connections.

use std::time::Duration;

use super::attack_with;
use crate::attack::{Attack, Pipeline};
use crate::limit::Limit;
use crate::plan::Plan;
use crate::random::Random;
use crate::world::{DEFAULT, Store, pass};

const CONNECTIONS: usize = 50;
/// Far from the end of any window: the clocks of some are estimates.
const DAY: Duration = Duration::from_secs(86_400);
/// What a node waits for its store where every decision must be the store's. An emulator makes about a hundred calls a second.
const AS_LONG_AS_IT_TAKES: &str = "20s";

fn each() -> usize {
    std::env::var("ATTACK_FLOOD").map_or(200, |each| each.parse().expect("a number"))
}

fn log(limit: u64) -> Limit {
    Limit::SlidingLog { limit, window: DAY, min_interval: Duration::ZERO, count_refused: false }
}

/// Requests of random shapes below `shapes`, over all connections and nodes.
fn flood(attack: &mut Attack, random: &mut Random, shapes: usize) {
    let nodes = attack.nodes.len();
    let mut requests = || (0..each()).map(|_| (random.below(shapes), 1)).collect();
    let pipelines: Vec<Pipeline> =
        (0..CONNECTIONS).map(|number| Pipeline { node: number % nodes, requests: requests() }).collect();
    attack.burst(&pipelines);
}

/// One key under each policy, twice: the second time all are refused.
fn on_a_key_of_each_policy(store: Store, timeout: &str, random: &mut Random) -> Attack {
    let mut plan = Plan::default();
    for policy in ["local", "open", "closed"] {
        plan.add(policy, policy, vec![Limit::FixedWindow { limit: 100, window: DAY }], None, 1);
    }
    let mut attack = Attack::start(store, 2, timeout, plan);
    for _ in 0..2 {
        flood(&mut attack, random, 3);
        pass(Duration::from_millis(1_100));
    }
    attack
}

#[test]
fn flood_on_a_key_of_each_policy_in_postgresql_admits_its_limit() {
    attack_with(&[1], |random| on_a_key_of_each_policy(Store::postgres(), DEFAULT, random));
}

#[test]
fn flood_on_a_key_of_each_policy_in_memcached_admits_its_limit() {
    attack_with(&[1], |random| on_a_key_of_each_policy(Store::memcached(), DEFAULT, random));
}

#[test]
fn flood_on_a_key_of_each_policy_in_dynamodb_admits_its_limit() {
    attack_with(&[1], |random| {
        let store = Store::dynamodb();
        exactly(on_a_key_of_each_policy(store, AS_LONG_AS_IT_TAKES, random))
    });
}

/// `users` of one tenant, who together may do a little less than each of them alone: a request is on two keys.
fn on_many_keys(store: Store, users: usize, random: &mut Random) -> Attack {
    let mut plan = Plan::default();
    let together = u64::try_from(users).expect("few") * 9;
    plan.add("case", "local", vec![log(10)], Some(vec![log(together)]), users);
    let mut attack = Attack::start(store, 2, AS_LONG_AS_IT_TAKES, plan);
    flood(&mut attack, random, users);
    attack
}

fn exactly(mut attack: Attack) -> Attack {
    attack.history.must_be_exact = true;
    attack
}

#[test]
fn flood_on_many_keys_in_postgresql_is_exact() {
    attack_with(&[1], |random| exactly(on_many_keys(Store::postgres(), 300, random)));
}

#[test]
fn flood_on_many_keys_in_memcached_is_exact() {
    attack_with(&[1], |random| exactly(on_many_keys(Store::memcached(), 300, random)));
}

#[test]
fn flood_on_many_keys_in_dynamodb_is_exact() {
    attack_with(&[1], |random| exactly(on_many_keys(Store::dynamodb(), 30, random)));
}

/// Leases are not folded: each request takes one of its own.
fn on_leases(store: Store) -> Attack {
    let limit = Limit::Concurrency { limit: 100, ttl: DAY, count_refused: false };
    let mut attack = Attack::start(store, 2, AS_LONG_AS_IT_TAKES, Plan::of(limit, "local", 1));
    let requests = vec![(0, 1); each()];
    let pipelines: Vec<Pipeline> =
        (0..CONNECTIONS).map(|number| Pipeline { node: number % 2, requests: requests.clone() }).collect();
    attack.burst(&pipelines);
    attack
}

#[test]
fn flood_on_a_concurrency_limit_in_postgresql_gives_its_leases_once() {
    attack_with(&[0], |_| exactly(on_leases(Store::postgres())));
}

#[test]
fn flood_on_a_concurrency_limit_in_memcached_gives_its_leases_once() {
    attack_with(&[0], |_| exactly(on_leases(Store::memcached())));
}

#[test]
fn flood_on_a_concurrency_limit_in_dynamodb_gives_its_leases_once() {
    attack_with(&[0], |_| exactly(on_leases(Store::dynamodb())));
}
