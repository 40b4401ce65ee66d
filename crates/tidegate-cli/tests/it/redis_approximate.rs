//! `coordination: approximate` on two servers that share a real Redis: whom it refuses, and how much it may admit.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_testkit::Redis;

use crate::redis_world::{Node, PATIENT, check, now, pass};

const ALGORITHMS: [&str; 3] = ["fixed_window", "sliding_window", "sliding_log"];

/// Promise 11: 40 a second where 50 are allowed, evenly over both nodes. Hits that are reported after their window must not be
/// held against the next one.
#[test]
fn nobody_is_refused_below_an_approximate_limit_whose_nodes_report_as_seldom_as_its_window_or_more_seldom() {
    const APART: Duration = Duration::from_millis(25);
    let rules = ALGORITHMS.iter().flat_map(|algorithm| ["1s", "2s"].map(|sync| (*algorithm, sync)));
    let users: Vec<(&str, &str)> = rules.collect();
    let rule = |(algorithm, sync): &(&str, &str)| {
        format!(
            "- {{ name: {algorithm}-{sync}, match: {{ plan: {algorithm}-{sync} }}, key: [plan], coordination: approximate, sync_every: {sync}, limits: [{{ algorithm: {algorithm}, limit: 50, window: 1s }}] }}\n"
        )
    };
    let redis = Redis::start();
    let nodes = Node::pair(&redis.url(), PATIENT, &users.iter().map(rule).collect::<String>());
    let mut clients = nodes.each_ref().map(Node::client);
    let mut refused = BTreeMap::<String, usize>::new();
    for turn in 0..200 {
        let sent = now();
        for (algorithm, sync) in &users {
            let plan = format!("{algorithm}-{sync}");
            let answer = check(&mut clients[turn % 2], &[("plan", &plan)], 1);
            *refused.entry(plan).or_default() += usize::from(!answer.allowed);
        }
        // Never more than 40 a second: who is late does not catch up.
        pass(APART.saturating_sub(sent.elapsed()));
    }
    assert!(refused.values().all(|refused| *refused == 0), "of 200 each: {refused:?}");
}
