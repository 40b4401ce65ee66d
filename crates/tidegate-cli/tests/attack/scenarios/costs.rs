//! What a caller can make Redis do: no script holds it for more than two milliseconds.

use std::time::Duration;

use super::attack_with;
use crate::acts::{flood, give_all_back};
use crate::attack::{Attack, Pipeline};
use crate::history::LeaseWhat;
use crate::limit::Limit;
use crate::plan::Plan;
use crate::random::Random;
use crate::world::{PATIENT, Store};

const HOUR: Duration = Duration::from_secs(3_600);

/// Fills a concurrency limit, then takes and gives back at its edge.
fn leases(limit: u64, count_refused: bool) -> Attack {
    let limit = Limit::Concurrency { limit, ttl: Duration::from_secs(600), count_refused };
    let most = limit.capacity() as usize;
    let mut attack = Attack::start(Store::single(), 1, PATIENT, Plan::of(limit, "local", 1));
    attack.history.must_be_exact = true;
    flood(&mut attack, 0, 20, most / 20);
    for _ in 0..20 {
        let given_back: Vec<String> = (0..5).filter_map(|_| attack.held.pop()).collect();
        attack.call(0, LeaseWhat::Release, &given_back);
        flood(&mut attack, 0, 4, 25);
    }
    give_all_back(&mut attack);
    attack
}

/// Two thousand checks that each must pass `rules` rules of `limits` limits, of which the first admits thirty.
fn many_limits(rules: usize, limits: usize, random: &mut Random) -> Attack {
    let limit = |number: usize| {
        let (limit, window) = (30 + 10 * number as u64, HOUR + Duration::from_secs(60) * number as u32);
        match number % 2 {
            0 => Limit::FixedWindow { limit, window },
            _ => Limit::SlidingWindow { limit, window },
        }
    };
    let of_a_rule: Vec<Limit> = (0..limits).map(limit).collect();
    let plan = Plan::of_rules(&vec![of_a_rule; rules], 50);
    let mut attack = Attack::start(Store::single(), 1, PATIENT, plan);
    attack.history.must_be_exact = true;
    let mut requests = || (0..250).map(|_| (random.below(50), 1)).collect();
    let pipelines: Vec<Pipeline> = (0..8).map(|_| Pipeline { node: 0, requests: requests() }).collect();
    attack.burst(&pipelines);
    attack
}

#[test]
fn a_rule_of_thirty_limits_is_the_stores_and_costs_redis_little() {
    attack_with(&[1], |random| many_limits(1, 30, random));
}

/// As many as a rule may have.
#[test]
fn three_rules_of_thirty_two_limits_are_the_stores_and_cost_redis_little() {
    attack_with(&[1], |random| many_limits(3, 32, random));
}

#[test]
fn a_full_concurrency_limit_of_500_costs_redis_little() {
    attack_with(&[0], |_| leases(500, false));
}

#[test]
fn a_full_concurrency_limit_of_5000_costs_redis_little() {
    attack_with(&[0], |_| leases(5_000, false));
}

#[test]
fn a_full_concurrency_limit_that_counts_refusals_costs_redis_little() {
    attack_with(&[0], |_| leases(500, true));
}

#[test]
fn a_long_log_that_counts_refusals_costs_redis_little() {
    attack_with(&[0], |_| {
        let limit = Limit::SlidingLog {
            limit: 50_000,
            window: HOUR,
            min_interval: Duration::ZERO,
            count_refused: true,
        };
        let mut attack = Attack::start(Store::single(), 1, PATIENT, Plan::of(limit, "local", 1));
        attack.history.must_be_exact = true;
        // Full by a few large requests, then hammered.
        let fill = [Pipeline { node: 0, requests: vec![(0, 5_000); 10] }];
        attack.burst(&fill);
        flood(&mut attack, 0, 8, 100);
        attack
    });
}
