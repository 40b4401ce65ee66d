//! Nothing fails, and every deadline is long: each decision is the store's, and exact.

use tidegate_testkit::{RedisCluster, ShardedRedis};

use super::{acts, attack_with};
use crate::acts::{any_act, give_all_back};
use crate::attack::Attack;
use crate::plan::{BRIEF, Plan, Taste};
use crate::random::Random;
use crate::world::{PATIENT, Store};

const PLAIN: Taste =
    Taste { policies: &["local", "open", "closed"], windows: BRIEF, leases: true, count_refused: false };

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

#[test]
fn random_rules_hold_on_sharded_servers() {
    attack_with(&[1, 2], |random| attack(Store::Sharded(ShardedRedis::start(3)), random, &PLAIN));
}

#[test]
fn random_rules_hold_on_a_cluster() {
    attack_with(&[1], |random| attack(Store::Cluster(RedisCluster::start()), random, &PLAIN));
}
