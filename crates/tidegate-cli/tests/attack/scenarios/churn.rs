//! Rules change and nodes die while requests are on their way.

use tidegate_testkit::ShardedRedis;

use super::{acts, attack_with};
use crate::acts::{any_act, give_all_back, other_numbers, pipelines};
use crate::attack::Attack;
use crate::plan::{BRIEF, Plan, Taste};
use crate::random::Random;
use crate::world::{PATIENT, Store};

const PLAIN: Taste =
    Taste { policies: &["local", "open", "closed"], windows: BRIEF, leases: true, count_refused: false };

#[test]
fn random_rules_hold_while_their_numbers_change() {
    attack_with(&[1, 2], |random| {
        let mut attack = Attack::start(Store::single(), 2, PATIENT, Plan::random(random, &PLAIN));
        attack.history.must_be_exact = true;
        for act in 0..acts() {
            any_act(&mut attack, random);
            if act % 4 == 2 {
                let (pipelines, plan) = (pipelines(&attack, random, 300, 8), other_numbers(&attack, random));
                attack.change_rules(plan, &pipelines);
            }
        }
        give_all_back(&mut attack);
        attack
    });
}

fn nodes_die(store: Store, random: &mut Random) -> Attack {
    let mut attack = Attack::start(store, 3, PATIENT, Plan::random(random, &PLAIN));
    attack.history.must_be_exact = true;
    for act in 0..acts() {
        any_act(&mut attack, random);
        if act % 4 == 2 {
            let pipelines = pipelines(&attack, random, 300, 12);
            attack.kill_node(random.below(3), &pipelines);
        }
    }
    give_all_back(&mut attack);
    attack
}

#[test]
fn random_rules_hold_while_nodes_die_and_come_back() {
    attack_with(&[1, 2], |random| nodes_die(Store::single(), random));
}

/// A node that dies may have reserved on one server what another refused, and not put it back.
#[test]
fn random_rules_hold_on_sharded_servers_while_nodes_die_and_come_back() {
    attack_with(&[1, 2], |random| nodes_die(Store::Sharded(ShardedRedis::start(3)), random));
}
