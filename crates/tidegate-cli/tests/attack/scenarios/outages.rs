//! Redis stands still or is lost, and comes back.

use std::time::Duration;

use tidegate_testkit::{SentinelGroup, ShardedRedis};

use super::{acts, attack_with};
use crate::acts::{any_act, flood, give_all_back, insist, pipelines};
use crate::attack::{Attack, Pipeline};
use crate::history::Source;
use crate::limit::{Limit, Rate};
use crate::plan::{Plan, Taste};
use crate::world::{DEFAULT, Store, pass};

const HOUR: Duration = Duration::from_secs(3_600);
const LONG: &[Duration] = &[HOUR];
const ANY_POLICY: Taste =
    Taste { policies: &["local", "open", "closed"], windows: LONG, leases: true, count_refused: false };

#[test]
fn short_stalls_give_each_node_its_share_once() {
    attack_with(&[0], |_| {
        let limit = Limit::FixedWindow { limit: 5, window: HOUR };
        let mut attack = Attack::start(Store::single(), 1, DEFAULT, Plan::of(limit, "local", 1));
        flood(&mut attack, 0, 1, 20);
        attack.history.is_known_to_all = true;
        for _ in 0..8 {
            let asks: Vec<Pipeline> =
                (0..4).map(|_| Pipeline { node: 0, requests: vec![(0, 1); 20] }).collect();
            attack.stall(0, Duration::from_millis(300), &asks);
            pass(Duration::from_millis(1_500));
        }
        attack
    });
}

#[test]
fn a_stall_gives_no_more_leases_than_there_are() {
    attack_with(&[0], |_| {
        let limit = Limit::Concurrency { limit: 10, ttl: Duration::from_secs(600), count_refused: false };
        let mut attack = Attack::start(Store::single(), 1, DEFAULT, Plan::of(limit, "local", 1));
        flood(&mut attack, 0, 1, 15);
        attack.history.is_known_to_all = true;
        attack.stall_while(0, |attack| insist(attack, 0, Source::FallbackLocal, 20));
        pass(Duration::from_millis(1_500));
        give_all_back(&mut attack);
        attack
    });
}

#[test]
fn random_rules_hold_through_stalls_of_redis() {
    attack_with(&[1, 2], |random| {
        let mut attack = Attack::start(Store::single(), 2, DEFAULT, Plan::random(random, &ANY_POLICY));
        for _ in 0..acts() {
            match random.below(3) {
                0 => {
                    let pipelines = pipelines(&attack, random, 200, 8);
                    attack.stall(0, Duration::from_millis(5 + random.below(400) as u64), &pipelines);
                    pass(Duration::from_millis(200));
                }
                _ => any_act(&mut attack, random),
            }
        }
        attack
    });
}

#[test]
fn random_rules_hold_through_restarts_of_redis() {
    attack_with(&[1, 2], |random| {
        let mut attack = Attack::start(Store::single(), 2, DEFAULT, Plan::random(random, &ANY_POLICY));
        for act in 0..acts() {
            if act % 4 == 3 {
                let pipelines = pipelines(&attack, random, 200, 8);
                attack.restart(0, &pipelines);
            } else {
                any_act(&mut attack, random);
            }
        }
        attack
    });
}

#[test]
fn a_lost_shard_takes_no_other_along() {
    attack_with(&[1], |random| {
        // So many that some are left at the end: who is known to be refused needs no server.
        let limit = Limit::TokenBucket { burst: 100, rate: Rate { count: 1, period: HOUR } };
        let store = Store::Sharded(ShardedRedis::start(3));
        let mut attack = Attack::start(store, 1, DEFAULT, Plan::of(limit, "local", 60));
        // Everybody asks once, so that it shows where each lies.
        attack.burst(&[Pipeline { node: 0, requests: (0..60).map(|shape| (shape, 1)).collect() }]);
        for _ in 0..3 {
            let pipelines = pipelines(&attack, random, 300, 4);
            attack.stall(1, Duration::from_millis(500), &pipelines);
            pass(Duration::from_millis(1_000));
        }
        // Asked again and again, until nobody waits for the lost one any more: on a busy machine that takes longer. Then once
        // more: its breaker may have opened only after the others of that burst were on their way.
        let mut fell_back = false;
        attack.stall_while(1, |attack| {
            for _ in 0..200 {
                let (before, asked) = (fell_back, attack.history.asked.len());
                attack.burst(&[Pipeline { node: 0, requests: (0..60).map(|shape| (shape, 1)).collect() }]);
                let answers = &attack.history.asked[asked..];
                fell_back |= answers.iter().any(|one| one.source() == Some(Source::FallbackLocal));
                if before {
                    break;
                }
            }
        });
        assert!(fell_back, "nobody was answered without the lost shard");
        attack
    });
}

#[test]
fn a_failover_gives_at_most_the_limit_once_more() {
    attack_with(&[1], |random| {
        let limit = Limit::TokenBucket { burst: 20, rate: Rate { count: 1, period: HOUR } };
        let store = Store::Sentinel(SentinelGroup::start());
        let mut attack = Attack::start(store, 2, DEFAULT, Plan::of(limit, "local", 10));
        let before = pipelines(&attack, random, 150, 4);
        attack.burst(&before);
        let during = pipelines(&attack, random, 300, 4);
        attack.fail_over(&during);
        let after = pipelines(&attack, random, 300, 4);
        attack.burst(&after);
        attack
    });
}
