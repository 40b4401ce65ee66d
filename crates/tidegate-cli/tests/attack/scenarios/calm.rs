//! Nothing fails, and every deadline is long: each decision is the store's, and exact.

use std::time::Duration;

use tidegate_testkit::{RedisCluster, ShardedRedis};

use super::{acts, attack_with};
use crate::acts::{any_act, give_all_back};
use crate::attack::{Attack, Pipeline};
use crate::history::Answer;
use crate::limit::Limit;
use crate::plan::{BRIEF, Plan, Taste};
use crate::random::Random;
use crate::world::{PATIENT, Store, pass};

const PLAIN: Taste =
    Taste { policies: &["local", "open", "closed"], windows: BRIEF, leases: true, count_refused: false };

/// Far from the end of any window.
const LONG: &[Duration] = &[Duration::from_secs(3_600)];

fn attack(store: Store, random: &mut Random, taste: &Taste) -> Attack {
    let plan = Plan::random(random, taste);
    let mut attack = Attack::start(store, 2, PATIENT, plan);
    attack.history.must_be_exact = true;
    for _ in 0..acts() {
        any_act(&mut attack, random);
    }
    give_all_back(&mut attack);
    attack
}

#[test]
fn random_rules_hold_under_random_bursts_over_two_nodes() {
    attack_with(&[1, 5, 7], |random| attack(Store::single(), random, &PLAIN));
}

#[test]
fn random_rules_that_count_refusals_hold_under_random_bursts() {
    attack_with(&[1, 2, 3], |random| {
        attack(Store::single(), random, &Taste { count_refused: true, ..PLAIN })
    });
}

/// Promise 3: who is refused is told to wait until its own refusal no longer counts.
#[test]
fn who_waits_as_told_is_admitted_where_refusals_count() {
    let ms = Duration::from_millis;
    let log = |limit, window, min_interval| Limit::SlidingLog {
        limit,
        window: ms(window),
        min_interval: ms(min_interval),
        count_refused: true,
    };
    let slots = Limit::Concurrency { limit: 1, ttl: ms(600), count_refused: true };
    attack_with(&[0], |_| {
        let mut plan = Plan::default();
        for (case, limit) in
            [("log", log(1, 600, 0)), ("interval", log(9, 5_000, 600)), ("slots", slots.clone())]
        {
            plan.add(case, "local", vec![limit], None, 1);
        }
        let mut attack = Attack::start(Store::single(), 1, PATIENT, plan);
        attack.history.must_be_exact = true;
        for shape in [0, 1, 2] {
            attack.ask(0, shape, 1);
            for _ in 0..2 {
                // Well after what it is refused by.
                pass(ms(200));
                if let Answer::Refused { retry_after: Some(wait), .. } = attack.ask(0, shape, 1) {
                    pass(wait);
                }
                attack.ask(0, shape, 1);
            }
        }
        attack
    });
}

#[test]
fn random_rules_hold_on_postgresql() {
    attack_with(&[1, 2], |random| attack(Store::postgres(), random, &PLAIN));
}

/// Its clock is an estimate, to hundredths of a second: the windows are long beside that.
#[test]
fn random_rules_hold_on_memcached() {
    attack_with(&[1, 2], |random| attack(Store::memcached(), random, &Taste { windows: LONG, ..PLAIN }));
}

#[test]
fn random_rules_hold_on_sharded_servers() {
    attack_with(&[1, 2], |random| attack(Store::Sharded(ShardedRedis::start(3)), random, &PLAIN));
}

/// Users of one tenant whose limits add up to the tenant's: what one server takes for a request that another refuses goes
/// back, or somebody else is refused for it.
#[test]
fn who_is_refused_on_one_server_takes_nothing_on_another() {
    attack_with(&[1], |random| {
        let hourly = |limit| vec![Limit::FixedWindow { limit, window: Duration::from_secs(3_600) }];
        let mut plan = Plan::default();
        plan.add("case", "local", hourly(5), Some(hourly(500)), 100);
        let mut attack = Attack::start(Store::Sharded(ShardedRedis::start(3)), 2, PATIENT, plan);
        attack.history.must_be_exact = true;
        for _ in 0..2 {
            let mut requests = || (0..200).map(|_| (random.below(100), 1)).collect();
            let pipelines: Vec<Pipeline> =
                (0..10).map(|connection| Pipeline { node: connection % 2, requests: requests() }).collect();
            attack.burst(&pipelines);
        }
        attack
    });
}

#[test]
fn random_rules_hold_on_a_cluster() {
    attack_with(&[1], |random| attack(Store::Cluster(RedisCluster::start()), random, &PLAIN));
}
