//! What is promised of a fleet whose store fails, each promise by its name and its number of nodes.

use std::num::NonZeroU64;

use tidegate_core::Micros;
use tidegate_limiter::Source;

use super::store::Weather;
use super::{Fleet, Node, Setting};
use crate::world::compile;

fn admitted(node: &Node, user: &str, requests: usize) -> usize {
    (0..requests).filter(|_| node.check(user).allowed).count()
}

/// The store hangs, every node is asked, and the store is back.
fn stall(fleet: &Fleet, user: &str, requests: usize) -> usize {
    fleet.set(Weather::Hangs);
    // Until the prober has found that out, leases wait.
    fleet.run_for_millis(320);
    let admitted = fleet.nodes.iter().map(|node| admitted(node, user, requests)).sum();
    fleet.set(Weather::Fine);
    fleet.run_for_millis(2_000);
    admitted
}

const FIVE: &str = "- { name: a, key: [user], limits: [{ algorithm: fixed_window, limit: 5, window: 1h }] }";

#[test]
fn local_fallback_gives_nothing_to_who_has_spent_all_however_often_the_store_stalls() {
    for nodes in [1, 3] {
        let fleet = Fleet::running(FIVE, Setting { nodes, ..Setting::default() });
        assert_eq!(admitted(&fleet.nodes[0], "one", 10), 5);
        // Every node has seen that nothing is left.
        fleet.nodes.iter().for_each(|node| assert!(!node.check("one").allowed));
        let during: usize = (0..8).map(|_| stall(&fleet, "one", 10)).sum();
        assert_eq!(during, 0, "{nodes} nodes");
    }
}

#[test]
fn local_fallback_gives_what_a_raised_limit_adds_and_nothing_anew_after_other_rules_changed() {
    let other = "- { name: other, key: [tenant], limits: [1/s] }";
    let eight = FIVE.replace("limit: 5", "limit: 8");
    for nodes in [1, 3] {
        for (rules, more) in [(format!("{FIVE}\n{other}"), 0), (eight.clone(), 3)] {
            let fleet = Fleet::running(FIVE, Setting { nodes, ..Setting::default() });
            assert_eq!(admitted(&fleet.nodes[0], "one", 10), 5);
            fleet.nodes.iter().for_each(|node| assert!(!node.check("one").allowed));
            for node in &fleet.nodes {
                node.limiter.use_rules(compile(&rules));
            }
            let during: usize = (0..8).map(|_| stall(&fleet, "one", 10)).sum();
            assert_eq!(during, more, "{nodes} nodes: {rules}");
        }
    }
}

#[test]
fn local_fallback_gives_nothing_anew_after_hits_went_back() {
    let limits = [
        "algorithm: fixed_window, limit: 50, window: 1h",
        "algorithm: sliding_log, limit: 50, window: 1h",
        "algorithm: sliding_window, limit: 50, window: 30d",
        "algorithm: token_bucket, rate: 1/day, burst: 50",
    ];
    for limit in limits {
        let fleet = Fleet::running(
            &format!("- {{ name: a, key: [user], limits: [{{ {limit} }}] }}"),
            Setting::default(),
        );
        for (user, spent) in [("some", 40), ("all", 50)] {
            assert_eq!(admitted(&fleet.nodes[0], user, spent), spent);
            fleet.nodes[0].refund(user, 1);
            // A bucket's part of a hit may be on its way.
            let left = 50 - spent + 1;
            let during = stall(&fleet, user, 60);
            assert!((left - 1..=left).contains(&during), "{limit}, {user}: {during} of {left}");
        }
    }
}

#[test]
fn local_fallback_remembers_who_has_spent_most_longest() {
    let setting = Setting { change: |remote| remote.remembered_cells = 4_096, ..Setting::default() };
    let fleet = Fleet::running(FIVE, setting);
    let node = &fleet.nodes[0];
    let spent: Vec<String> = (0..100).map(|number| format!("spent {number}")).collect();
    spent.iter().for_each(|user| drop(node.check_cost(user, 5)));
    // Ten times as many as are remembered, each once.
    (0..40_960).for_each(|number| drop(node.check(&format!("other {number}"))));
    fleet.set(Weather::Refuses);
    (0..3).for_each(|_| drop(node.check("nobody")));
    let again = spent.iter().filter(|user| node.check(user).allowed).count();
    assert_eq!(again, 0, "of {}", spent.len());
}

#[test]
fn local_fallback_gives_each_node_its_part_of_what_it_last_saw() {
    let twenty = FIVE.replace("limit: 5", "limit: 20");
    let fleet = Fleet::running(&twenty, Setting { nodes: 3, ..Setting::default() });
    // They saw 19, 16 and 9 left, in this order; then the first, unseen by the others, spent the rest.
    for (node, cost) in [(1, 1), (2, 3), (0, 7), (0, 9)] {
        assert!(fleet.nodes[node].check_cost("one", cost).allowed);
    }
    fleet.set(Weather::Hangs);
    let during: Vec<usize> = fleet.nodes.iter().map(|node| admitted(node, "one", 30)).collect();
    assert_eq!(during, [0, 19_usize.div_ceil(3), 16_usize.div_ceil(3)]);
    assert!(20 + during.iter().sum::<usize>() < 2 * 20 + 3, "as the table of bounds says");
}

#[test]
fn local_fallback_gives_a_share_once_per_window_however_often_the_store_stalls() {
    for nodes in [1, 3, 6] {
        let fleet = Fleet::running(FIVE, Setting { nodes, ..Setting::default() });
        let during: usize = (0..8).map(|_| stall(&fleet, "one", 10)).sum();
        let share = 5_usize.div_ceil(nodes);
        assert!(during >= 5 && during <= share * nodes, "{nodes} nodes: {during}");
        let after: usize = fleet.nodes.iter().map(|node| admitted(node, "one", 10)).sum();
        assert_eq!(after, 0, "what was admitted meanwhile was charged");
        fleet.executor.run_for(Micros::from_secs(3_600));
        assert!(stall(&fleet, "one", 10) >= 5, "the next window has shares of its own");
    }
}

#[test]
fn concurrency_fallback_gives_no_more_than_its_part_of_what_was_last_seen() {
    let rules = "- { name: a, key: [user], limits: [{ algorithm: concurrency, limit: 10, ttl: 60s }] }";
    for (nodes, held, more) in [(1, 10, 0), (1, 6, 4), (3, 10, 0), (3, 4, 6)] {
        let fleet = Fleet::running(rules, Setting { nodes, ..Setting::default() });
        assert_eq!(admitted(&fleet.nodes[0], "one", held), held);
        // Each node has seen how many are left.
        fleet.nodes.iter().for_each(|node| drop(node.check_cost("one", 0)));
        let during: usize = (0..3).map(|_| stall(&fleet, "one", 20)).sum();
        assert_eq!(during, more, "{nodes} nodes, {held} of ten held");
    }
}

/// Two failures open no breaker.
#[test]
fn what_passed_without_the_store_before_a_breaker_opened_is_charged_with_its_next_answer() {
    let fleet = Fleet::running(FIVE, Setting::default());
    let node = &fleet.nodes[0];
    fleet.set(Weather::Refuses);
    assert_eq!(admitted(node, "one", 2), 2);
    fleet.set(Weather::Fine);
    assert!(node.check("other").allowed);
    fleet.run_for_millis(10);
    assert_eq!(admitted(node, "one", 10), 3, "two were given without the store");
}

#[test]
fn leases_that_were_given_without_the_store_are_known_to_it_when_it_is_back() {
    let rules = "- { name: a, key: [user], limits: [{ algorithm: concurrency, limit: 10, ttl: 60s }] }";
    for nodes in [1, 3] {
        let fleet = Fleet::running(rules, Setting { nodes, ..Setting::default() });
        assert!(fleet.nodes[0].check("one").allowed);
        fleet.nodes.iter().for_each(|node| drop(node.check_cost("one", 0)));
        let during = stall(&fleet, "one", 20);
        assert_eq!(during, 9, "{nodes} nodes");
        let after: usize = fleet.nodes.iter().map(|node| admitted(node, "one", 20)).sum();
        assert_eq!(after, 0, "{nodes} nodes: all ten are held");
        fleet.nodes.iter().for_each(|node| assert_eq!(node.limiter.remote_stats().unwrap().lent_leases, 0));
        fleet.executor.run_for(Micros::from_secs(61));
        assert_eq!(admitted(&fleet.nodes[0], "one", 20), 10, "{nodes} nodes: they end by their time to live");
    }
}

#[test]
fn nodes_that_start_without_the_store_divide_a_limit_by_how_many_are_expected() {
    for (nodes, limit) in [(3, 12), (6, 12)] {
        let rules = format!(
            "- {{ name: a, key: [user], limits: [{{ algorithm: fixed_window, limit: {limit}, window: 1h }}] }}"
        );
        let change = match nodes {
            3 => |remote: &mut tidegate_limiter::RemoteConfig| remote.expected_nodes = NonZeroU64::new(3),
            _ => |remote: &mut tidegate_limiter::RemoteConfig| remote.expected_nodes = NonZeroU64::new(6),
        };
        let fleet = Fleet::new(&rules, Setting { nodes, change, ..Setting::default() });
        fleet.set(Weather::Refuses);
        for node in &fleet.nodes {
            fleet.executor.start(node.limiter.maintain());
        }
        fleet.run_for_millis(3_000);
        let during: usize = fleet.nodes.iter().map(|node| admitted(node, "one", 20)).sum();
        assert!(during >= limit && during < limit + nodes, "{during} of {limit} on {nodes} nodes");
    }
}

#[test]
fn nodes_that_start_without_the_store_and_expect_no_others_give_the_limit_each() {
    let fleet = Fleet::new(FIVE, Setting { nodes: 3, ..Setting::default() });
    fleet.set(Weather::Refuses);
    for node in &fleet.nodes {
        fleet.executor.start(node.limiter.maintain());
    }
    fleet.run_for_millis(3_000);
    let during: usize = fleet.nodes.iter().map(|node| admitted(node, "one", 20)).sum();
    assert_eq!(during, 3 * 5);
}

#[test]
fn nodes_that_start_together_stay_within_the_bound_of_an_approximate_rule() {
    let rules = "- { name: a, key: [user], coordination: approximate, sync_every: 1s, \
                 limits: [{ algorithm: fixed_window, limit: 1000, window: 1h }] }";
    for (nodes, seed) in [(3, 1), (6, 1), (6, 2)] {
        let fleet = Fleet::new(rules, Setting { nodes, seed, ..Setting::default() });
        for node in &fleet.nodes {
            fleet.executor.start(node.limiter.maintain());
        }
        let mut all = 0;
        for _ in 0..1_000 {
            all += fleet.nodes.iter().map(|node| admitted(node, "one", 1)).sum::<usize>();
            fleet.executor.run_for(Micros::from_millis(2));
        }
        assert!(all >= 1_000 && all < 2 * 1_000 + nodes, "{all} on {nodes} nodes");
    }
}

#[test]
fn a_warm_start_knows_the_fleet_and_decides_by_the_store_from_the_first_request_on() {
    let fleet = Fleet::new(FIVE, Setting { nodes: 3, ..Setting::default() });
    for node in &fleet.nodes {
        let limiter = node.limiter.clone();
        assert!(fleet.executor.finish(async move { limiter.warm_up(Micros::from_secs(2)).await }));
    }
    assert_eq!(fleet.nodes[2].limiter.remote_stats().unwrap().fleet, 3);
    assert!(fleet.nodes.iter().all(|node| node.check("one").source == Source::Store));
}

#[test]
fn a_start_waits_for_a_store_that_does_not_answer_no_longer_than_it_says() {
    let fleet = Fleet::new(FIVE, Setting::default());
    for weather in [Weather::Hangs, Weather::Refuses] {
        fleet.set(weather);
        let (limiter, began) = (fleet.nodes[0].limiter.clone(), fleet.executor.now());
        assert!(!fleet.executor.finish(async move { limiter.warm_up(Micros::from_secs(2)).await }));
        let took = fleet.executor.now().since(began);
        assert!(took >= Micros::from_secs(2) && took <= Micros::from_millis(2_600), "{took}");
    }
}

#[test]
fn nobody_is_refused_by_an_approximate_rule_whose_limit_is_not_reached_however_seldom_it_reports() {
    let limits = [
        "fixed_window, limit: 50, window: 1s",
        "sliding_window, limit: 50, window: 1s",
        "sliding_log, limit: 50, window: 1s",
    ];
    for (limit, sync_every) in
        limits.into_iter().flat_map(|limit| ["100ms", "500ms", "1s", "2s"].map(|sync| (limit, sync)))
    {
        let rules = format!(
            "- {{ name: a, key: [user], coordination: approximate, sync_every: {sync_every}, limits: [{{ algorithm: {limit} }}] }}"
        );
        let fleet = Fleet::running(&rules, Setting { nodes: 2, ..Setting::default() });
        let mut refused = 0;
        // Forty a second over both nodes, for five seconds.
        for turn in 0..200 {
            refused += usize::from(!fleet.nodes[turn % 2].check("one").allowed);
            fleet.executor.run_for(Micros::from_millis(25));
        }
        assert_eq!(refused, 0, "{limit}, reported every {sync_every}");
    }
}
