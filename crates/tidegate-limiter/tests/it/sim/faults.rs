//! Whatever gets lost on the way: every request is answered in time, nothing is sent twice, and the bounds hold.

use std::sync::atomic::Ordering;

use tidegate_core::Micros;
use tidegate_limiter::{BreakerConfig, Source};

use super::store::Weather;
use super::{Fleet, Setting};

fn rules(policy: &str) -> String {
    format!(
        "- {{ name: a, key: [user], on_store_failure: {policy}, limits: [{{ algorithm: fixed_window, limit: 300, window: 1h }}] }}"
    )
}

/// Asks for `requests` on one key through all nodes, one after the other or side by side as it comes.
fn storm(fleet: &Fleet, requests: usize) -> (Vec<super::Checked>, u64) {
    let mut waiting = vec![];
    for _ in 0..requests {
        let node = &fleet.nodes[fleet.executor.below(fleet.nodes.len() as u64) as usize];
        waiting.push(node.start("one"));
        fleet.executor.run_for(Micros::new(fleet.executor.below(800)));
    }
    let checked: Vec<_> = waiting.into_iter().map(|one| one.wait()).collect();
    let admitted = checked.iter().filter(|one| one.decision.allowed).count() as u64;
    (checked, admitted)
}

#[test]
fn in_any_weather_every_request_is_answered_within_its_deadline() {
    for seed in 0..30 {
        for policy in ["open", "closed", "local"] {
            let fleet = Fleet::running(&rules(policy), Setting { seed, nodes: 3, ..Setting::default() });
            fleet.set(Weather::Changing { fine: 60 });
            let (checked, _) = storm(&fleet, 300);
            let longest = checked.iter().map(|one| one.took).max().unwrap();
            assert!(longest <= Micros::from_millis(10), "seed {seed}, {policy}: {longest}");
            fleet.set(Weather::Fine);
            fleet.run_for_millis(3_000);
            fleet.nodes.iter().for_each(|node| node.assert_idle());
        }
    }
}

#[test]
fn a_closed_rule_never_admits_more_than_the_limit() {
    for seed in 0..30 {
        let fleet = Fleet::running(&rules("closed"), Setting { seed, nodes: 3, ..Setting::default() });
        fleet.set(Weather::Changing { fine: 80 });
        let (_, admitted) = storm(&fleet, 900);
        assert!(admitted <= 300, "seed {seed}: {admitted}");
    }
}

#[test]
fn a_local_rule_never_admits_more_than_the_limit_again_and_one_per_node() {
    for seed in 0..30 {
        let fleet = Fleet::running(&rules("local"), Setting { seed, nodes: 3, ..Setting::default() });
        fleet.set(Weather::Changing { fine: 70 });
        let (checked, admitted) = storm(&fleet, 900);
        let alone = checked.iter().filter(|one| {
            let here = matches!(one.decision.source, Source::FallbackLocal | Source::OverloadLocal);
            one.decision.allowed && here
        });
        let alone = alone.count() as u64;
        assert!(admitted - alone <= 300, "seed {seed}: the store admitted {}", admitted - alone);
        // What was spent alone is charged as soon as the store answers, and may then be spent again: once per outage.
        assert!(admitted <= 300 + 300 + 3, "seed {seed}: {admitted}");
    }
}

#[test]
fn what_may_have_been_applied_is_never_sent_again() {
    for weather in [Weather::LosesReplies, Weather::Cuts, Weather::Slow(Micros::from_millis(8))] {
        let fleet = Fleet::running(&rules("closed"), Setting::default());
        let before = fleet.truth.asked_hits.load(Ordering::Relaxed);
        fleet.nodes[0].link.set(weather);
        let without = fleet.nodes[0].check("one").source;
        assert!(matches!(without, Source::FallbackClosed | Source::OverloadClosed));
        fleet.run_for_millis(100);
        fleet.nodes[0].link.set(Weather::Fine);
        fleet.run_for_millis(5_000);
        let asked = fleet.truth.asked_hits.load(Ordering::Relaxed) - before;
        assert_eq!(asked, 1, "{weather:?}");
    }
}

#[test]
fn those_who_wait_behind_a_call_that_opens_the_breaker_fail_with_it() {
    let setting = Setting {
        change: |remote| remote.breaker.failures = std::num::NonZeroU32::MIN,
        ..Setting::default()
    };
    let fleet = Fleet::new(&rules("closed"), setting);
    let node = &fleet.nodes[0];
    node.link.set(Weather::Hangs);
    let first = node.start("one");
    fleet.run_for_millis(4);
    let behind: Vec<_> = (0..10).map(|_| node.start("one")).collect();
    assert_eq!(first.wait().took, Micros::from_millis(10));
    for one in behind {
        assert_eq!(one.wait().took, Micros::from_millis(6));
    }
    assert_eq!(node.link.calls(), 1);
}

#[test]
fn a_late_answer_serves_those_who_came_later_and_are_still_in_time() {
    let fleet = Fleet::new(&rules("closed"), Setting { latency: (3_000, 3_000), ..Setting::default() });
    let node = &fleet.nodes[0];
    let first = node.start("one");
    fleet.run_for_millis(1);
    let (early, late) = (node.start("one"), {
        fleet.run_for_millis(4);
        node.start("one")
    });
    // The second call leaves at 6 ms and is back at 12: too late for who came at 1, as is clear then, not for who came at 5.
    assert_eq!(first.wait().decision.source, Source::Store);
    let early = early.wait();
    assert_eq!((early.decision.source, early.took), (Source::OverloadClosed, Micros::from_millis(5)));
    let late = late.wait();
    assert_eq!((late.decision.source, late.took), (Source::Store, Micros::from_millis(7)));
}

#[test]
fn thresholds_are_those_of_the_configuration() {
    let setting = Setting {
        change: |remote| {
            remote.timeout = Micros::from_millis(2);
            let failures = std::num::NonZeroU32::MIN;
            remote.breaker = BreakerConfig::new(failures, Micros::from_secs(1));
        },
        ..Setting::default()
    };
    let fleet = Fleet::new(&rules("closed"), setting);
    let node = &fleet.nodes[0];
    node.link.set(Weather::Hangs);
    assert_eq!(node.start("one").wait().took, Micros::from_millis(2));
    node.link.set(Weather::Refuses);
    let _ = node.check("one");
    node.link.forget_calls();
    let _ = node.check("one");
    assert_eq!(node.link.calls(), 0);
    node.link.set(Weather::Fine);
    fleet.run_for_millis(1_000);
    assert_eq!(node.check("one").source, Source::Store);
}
