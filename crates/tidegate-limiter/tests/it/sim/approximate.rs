//! Approximate rules: local decisions, few calls, and an overshoot that is stated and measured.

use tidegate_core::Micros;
use tidegate_limiter::Source;

use super::store::Weather;
use super::{Fleet, Setting};

fn rules(limit: u64) -> String {
    format!(
        "- {{ name: a, key: [user], coordination: approximate, sync_every: 1s, limits: [{{ algorithm: fixed_window, limit: {limit}, window: 1h }}] }}"
    )
}

#[test]
fn far_from_the_limit_no_request_waits_and_the_store_hears_once_a_second() {
    let fleet = Fleet::running(&rules(1_000_000), Setting { nodes: 2, ..Setting::default() });
    for _ in 0..5_000 {
        for node in &fleet.nodes {
            let checked = node.start("one").wait();
            assert_eq!((checked.decision.source, checked.took), (Source::Approximate, Micros::ZERO));
        }
        fleet.executor.run_for(Micros::from_millis(1));
    }
    fleet.run_for_millis(2_000);
    for node in &fleet.nodes {
        let calls = node.link.calls();
        assert!(calls <= 8, "{calls} looks in seven seconds");
    }
    // Both know of both.
    let look = fleet.nodes[0].check_cost("one", 0);
    let left = look.governing().unwrap().limit().unwrap().outcome.remaining;
    assert!((990_000..=990_100).contains(&left), "{left}");
}

#[test]
fn a_fleet_admits_less_than_twice_the_limit_and_one_per_node() {
    let mut worst = 0;
    for seed in 0..40 {
        for nodes in [2, 3, 8] {
            let fleet = Fleet::running(&rules(100), Setting { seed, nodes, ..Setting::default() });
            let mut admitted = 0;
            for _ in 0..400 {
                let node = &fleet.nodes[fleet.executor.below(nodes as u64) as usize];
                admitted += u64::from(node.check("one").allowed);
                fleet.executor.run_for(Micros::new(fleet.executor.below(2_000)));
            }
            worst = worst.max(admitted);
            assert!(admitted < 2 * 100 + nodes as u64, "seed {seed}, {nodes} nodes: {admitted}");
            assert!(admitted >= 100, "seed {seed}, {nodes} nodes: {admitted}");
            // Everybody hears in the end.
            fleet.run_for_millis(3_000);
            assert!(fleet.nodes.iter().all(|node| !node.check("one").allowed));
        }
    }
    println!("of a limit of 100, at most {worst} were admitted");
    assert!(worst > 100, "a bound that is never approached says nothing");
}

#[test]
fn a_node_that_has_all_the_traffic_gets_all_of_the_limit_at_once() {
    let fleet = Fleet::running(&rules(100), Setting { nodes: 4, ..Setting::default() });
    let admitted = (0..150).filter(|_| fleet.nodes[0].check("one").allowed).count();
    assert!((100..=126).contains(&admitted), "{admitted}");
}

#[test]
fn while_the_store_is_away_a_node_spends_its_share_and_no_more() {
    let fleet = Fleet::running(&rules(100), Setting { nodes: 2, ..Setting::default() });
    fleet.set(Weather::Refuses);
    let decisions: Vec<_> = (0..200).map(|_| fleet.nodes[0].check("one")).collect();
    let by = |source| decisions.iter().filter(|one| one.allowed && one.source == source).count();
    assert_eq!((by(Source::Approximate), by(Source::FallbackLocal)), (50, 0));
}

#[test]
fn what_was_admitted_here_reaches_the_store_once() {
    let fleet = Fleet::running(&rules(100), Setting::default());
    (0..30).for_each(|_| drop(fleet.nodes[0].check("one")));
    fleet.nodes[0].link.set(Weather::Refuses);
    fleet.run_for_millis(1_800);
    fleet.nodes[0].link.set(Weather::Fine);
    fleet.run_for_millis(3_000);
    let second = Fleet::running(&rules(100), Setting::default());
    drop(second);
    let exact = "- { name: a, key: [user], limits: [{ algorithm: fixed_window, limit: 100, window: 1h }] }";
    fleet.nodes[0].limiter.use_rules(crate::world::compile(exact));
    let look = fleet.nodes[0].check_cost("one", 0);
    assert_eq!(look.source, Source::Store);
    assert_eq!(look.governing().unwrap().limit().unwrap().outcome.remaining, 70);
}

#[test]
fn a_node_that_dies_takes_at_most_its_share_of_an_approximate_rule_along() {
    let mut fleet = Fleet::running(&rules(100), Setting { nodes: 2, ..Setting::default() });
    let mut admitted = 0;
    for _ in 0..6 {
        // It uses all of its share, reports it at once, and is dead before that has arrived.
        fleet.nodes[0].link.set(Weather::Hangs);
        admitted += (0..60).filter(|_| fleet.nodes[0].check("one").source == Source::Approximate).count();
        fleet.nodes[0].link.set(Weather::Fine);
        fleet.crash(0);
        fleet.run_for_millis(2_000);
    }
    // With the two shares of the nodes that live.
    let left = fleet.nodes.iter().map(|node| (0..60).filter(|_| node.check("one").allowed).count());
    let admitted = admitted + left.sum::<usize>();
    assert!(admitted > 202, "a bound that is never approached says nothing: {admitted}");
    assert!(admitted < 202 + 6 * 50, "{admitted}");
}
