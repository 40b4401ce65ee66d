//! Costs above what is left, on a store over a network that may be away.

use tidegate_core::Micros;
use tidegate_limiter::Source;

use super::store::Weather;
use super::{Fleet, Setting};

const RULES: &str =
    "- { name: a, key: [user], over: debt, limits: [{ algorithm: token_bucket, rate: 10/h }] }";

fn fleet() -> Fleet {
    Fleet::running(RULES, Setting { latency: (250, 250), ..Setting::default() })
}

#[test]
fn a_charge_reaches_the_store_past_a_remembered_refusal() {
    let fleet = fleet();
    let node = &fleet.nodes[0];
    let _ = node.check_cost("one", 10);
    assert!(!node.check("one").allowed);
    assert_eq!(node.check("one").source, Source::DenyCache, "the refusal is remembered");
    assert_eq!(node.charge("one", 10).source, Source::Store);
    fleet.executor.run_for(Micros::from_secs(3_600));
    assert!(!node.check("one").allowed, "twenty were spent of ten an hour");
    fleet.executor.run_for(Micros::from_secs(400));
    assert!(node.check("one").allowed);
}

#[test]
fn charges_at_one_moment_all_count() {
    let fleet = fleet();
    let node = &fleet.nodes[0];
    for _ in 0..5 {
        let _ = node.charge("one", 4);
    }
    // Twenty of ten: a full bucket's worth is owed.
    fleet.executor.run_for(Micros::from_secs(3_599));
    assert!(!node.check("one").allowed);
    fleet.executor.run_for(Micros::from_secs(362));
    assert!(node.check("one").allowed);
}

#[test]
fn charges_without_the_store_are_owed_under_every_policy() {
    for policy in ["open", "closed", "local"] {
        let rules = format!(
            "- {{ name: a, key: [user], over: debt, on_store_failure: {policy}, limits: [{{ algorithm: token_bucket, rate: 10/h }}] }}"
        );
        let fleet = Fleet::running(&rules, Setting { latency: (250, 250), ..Setting::default() });
        let node = &fleet.nodes[0];
        fleet.set(Weather::Refuses);
        let _ = node.charge("one", 6);
        let _ = node.charge("one", 3);
        fleet.set(Weather::Fine);
        fleet.run_for_millis(60_000);
        node.assert_idle();
        let left = node.check_cost("one", 0).governing().unwrap().limit().unwrap().outcome.remaining;
        assert_eq!(left, 1, "{policy}: nine of ten are charged, once");
    }
}

#[test]
fn charges_while_the_store_is_away_count_here_and_are_settled_up_to_the_share() {
    let fleet = fleet();
    let node = &fleet.nodes[0];
    fleet.set(Weather::Refuses);
    for _ in 0..5 {
        let _ = node.charge("one", 6);
    }
    assert!(!node.check("one").allowed);
    fleet.set(Weather::Fine);
    fleet.run_for_millis(60_000);
    node.assert_idle();
    assert!(!node.check("one").allowed, "the store knows of it");
}
