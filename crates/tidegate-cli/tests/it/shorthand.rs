//! `N/minute` means what people read in it: so many pass in a minute, no fewer and no more.

use std::fs;

use serde_json::Value as Json;
use tidegate_testkit::{Redis, SteppedClock};

use crate::redis_world::{Node, PATIENT, check};
use crate::tidegate;

/// Promise 17: an hour of Redis's clock in steps of six seconds. Nothing is refused, so the node, whose own clock stands, has no
/// refusal to repeat.
#[test]
fn an_hour_of_traffic_evenly_spaced_at_a_small_limit_passes_whole_and_not_one_more() {
    const STEP_S: i64 = 6;
    const STEPS: i64 = 600;
    const RULES: &str = "\
- { name: one, match: { plan: '1' }, key: [plan], on_store_failure: closed, limits: [1/minute] }
- { name: two, match: { plan: '2' }, key: [plan], on_store_failure: closed, limits: [2/minute] }
- { name: ten, match: { plan: '10' }, key: [plan], on_store_failure: closed, limits: [10/minute] }
";
    let clock = SteppedClock::new();
    let redis = Redis::builder().clock(&clock).start();
    let node = Node::ready(&redis.url(), PATIENT, RULES);
    let mut client = node.client();
    let plans = [("1", 10), ("2", 5), ("10", 1)];
    let mut passed = [0; 3];
    for step in 0..STEPS {
        clock.set_ahead_of_the_machine(step * STEP_S);
        for (passed, (plan, steps_apart)) in passed.iter_mut().zip(plans) {
            if step % steps_apart == 0 {
                *passed += usize::from(check(&mut client, &[("plan", plan)], 1).allowed);
            }
        }
    }
    assert_eq!(passed, [60, 120, 600]);
    // The last step is the last of a minute: 6 s before the next of each is due.
    for (plan, _) in plans {
        let reply = client.cmd(&["TG.CHECK", "api", "plan", plan]);
        let (allowed, retry_after_ms) = (reply.array()[0].int(), reply.array()[3].int());
        assert_eq!(allowed, 0, "{plan}/minute");
        assert!((1..=6_000).contains(&retry_after_ms), "{plan}/minute: {retry_after_ms} ms");
    }
}

/// Which algorithm `tidegate explain` names for a limit that is written so.
fn explained(written: &str) -> Json {
    let dir = tempfile::tempdir().unwrap();
    let rules = format!("{{ domain: api, rules: [{{ name: r, key: [user], limits: [{written}] }}] }}");
    fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    let args = ["explain", "--rules", "rules.yaml", "--domain", "api", "user=42", "--output", "json"];
    let output = tidegate(&args).current_dir(dir.path()).output().unwrap();
    let explained: Json = serde_json::from_slice(&output.stdout).unwrap();
    explained["rules"][0]["limits"][0]["algorithm"].clone()
}

#[test]
fn explain_names_the_log_up_to_a_hundred_hits_and_the_counter_above() {
    let algorithms = ["1/minute", "10/minute", "100/minute", "101/minute", "1000/h"].map(explained);
    assert_eq!(algorithms, ["sliding_log", "sliding_log", "sliding_log", "sliding_window", "sliding_window"]);
}
