//! A shadow rule on a remote store: what it counts is what enforcing it would refuse.

use super::{Fleet, Setting};

/// Which of the requests of one caller, one every 100 ms, the rule refuses or would refuse.
fn refused(rule: &str, mode: &str) -> Vec<bool> {
    let rules = format!("- {{ name: a, key: [user], {rule}, {mode} }}");
    let fleet = Fleet::running(&rules, Setting { latency: (100, 100), ..Setting::default() });
    (0..300)
        .map(|_| {
            let decision = fleet.nodes[0].check("42");
            fleet.run_for_millis(100);
            decision.reports().iter().any(|report| report.is_refusal())
        })
        .collect()
}

#[test]
fn a_shadow_rule_with_several_limits_counts_what_enforcing_it_would_refuse() {
    let rule = "limits: [{ algorithm: fixed_window, limit: 5, window: 2s }, { algorithm: fixed_window, limit: 100, window: 1h }]";
    let enforced = refused(rule, "shadow: false");
    let count = |refused: &[bool]| refused.iter().filter(|refused| **refused).count();
    let shadow = refused(rule, "shadow: true");
    // A refusal that is repeated for a second may move one of them.
    assert!(count(&shadow).abs_diff(count(&enforced)) <= 2, "{} and {}", count(&shadow), count(&enforced));
}

#[test]
fn a_flood_that_a_shadow_rule_would_refuse_costs_no_refunds() {
    let rule = "- { name: a, key: [user], shadow: true, limits: [1/s, 1000000/h] }";
    let fleet = Fleet::running(rule, Setting::default());
    let floods: Vec<_> = (0..2_000).map(|_| fleet.nodes[0].start("42")).collect();
    floods.into_iter().for_each(|flood| drop(flood.wait()));
    fleet.run_for_millis(100);
    let seen = fleet.nodes[0].link.seen.lock().unwrap();
    assert!(seen.others.iter().all(|(_, name)| *name != "refund"), "nothing is corrected afterwards");
    assert!(seen.decides.len() <= 50, "equal requests are one item: {}", seen.decides.len());
}
