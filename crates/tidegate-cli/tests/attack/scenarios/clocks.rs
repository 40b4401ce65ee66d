//! Redis's clock is stepped, as by a failover to a server whose clock is wrong.

use std::time::Duration;

use tidegate_testkit::SteppedClock;

use super::{acts, attack_with};
use crate::acts::{any_act, flood, patient};
use crate::attack::Attack;
use crate::history::Answer;
use crate::limit::{Limit, Rate};
use crate::plan::{Plan, Taste};
use crate::world::{PATIENT, Store, pass};

const FIVE: Duration = Duration::from_secs(5);
const BRIEF: &[Duration] = &[Duration::from_secs(1), Duration::from_secs(3)];
const PLAIN: Taste = Taste { policies: &["local"], windows: BRIEF, leases: false, count_refused: false };

/// Spends everything, steps the clock back, and asks until the limit's own time is over.
fn step_back(limit: Limit) -> Attack {
    let clock = SteppedClock::new();
    let mut attack = Attack::start(Store::on_clock(&clock), 1, PATIENT, Plan::of(limit, "local", 1));
    attack.history.must_be_exact = true;
    flood(&mut attack, 0, 1, 20);
    attack.step_clock(&clock, 0, -30);
    // Refused, waits as told, and is admitted.
    for _ in 0..3 {
        match attack.ask(0, 0, 1) {
            Answer::Refused { retry_after: Some(wait), .. } => pass(wait.min(2 * FIVE)),
            _ => break,
        }
    }
    attack
}

#[test]
fn a_clock_that_steps_back_locks_nobody_out_of_a_token_bucket() {
    attack_with(&[0], |_| step_back(Limit::TokenBucket { burst: 5, rate: Rate { count: 5, period: FIVE } }));
}

#[test]
fn a_clock_that_steps_back_locks_nobody_out_of_a_fixed_window() {
    attack_with(&[0], |_| step_back(Limit::FixedWindow { limit: 5, window: FIVE }));
}

#[test]
fn a_clock_that_steps_back_locks_nobody_out_of_a_sliding_log() {
    let limit =
        || Limit::SlidingLog { limit: 5, window: FIVE, min_interval: Duration::ZERO, count_refused: false };
    attack_with(&[0], |_| step_back(limit()));
}

#[test]
fn a_clock_that_steps_back_locks_nobody_out_of_a_sliding_window() {
    attack_with(&[0], |_| step_back(Limit::SlidingWindow { limit: 5, window: FIVE }));
}

#[test]
fn random_rules_hold_while_the_clock_of_redis_is_stepped() {
    attack_with(&[1, 2], |random| {
        let clock = SteppedClock::new();
        let mut attack = Attack::start(Store::on_clock(&clock), 2, PATIENT, Plan::random(random, &PLAIN));
        attack.history.must_be_exact = true;
        let mut ahead = 0;
        for act in 0..acts() {
            if act % 4 == 3 {
                let next = random.pick(&[-3_600, -30, -1, 0, 2, 60]);
                attack.step_clock(&clock, ahead, next);
                ahead = next;
                patient(&mut attack, random);
            }
            any_act(&mut attack, random);
        }
        attack
    });
}
