//! While the store is away each node goes on with its share, and pays for it afterwards.

use tidegate_core::Micros;
use tidegate_limiter::{LeaseError, Source};

use super::store::Weather;
use super::{Fleet, Node, Setting};

const TWENTY: &str =
    "- { name: a, key: [user], limits: [{ algorithm: fixed_window, limit: 20, window: 1h }] }";

fn admitted(node: &Node, user: &str, requests: usize) -> usize {
    let decisions = (0..requests).map(|_| node.check(user));
    decisions.filter(|decision| decision.allowed && decision.source == Source::FallbackLocal).count()
}

fn lose_the_store(fleet: &Fleet) {
    fleet.set(Weather::Refuses);
    for node in &fleet.nodes {
        (0..3).for_each(|_| drop(node.check("nobody")));
    }
}

#[test]
fn each_of_three_nodes_admits_a_third_of_the_limit_rounded_up() {
    let fleet = Fleet::running(TWENTY, Setting { nodes: 3, ..Setting::default() });
    lose_the_store(&fleet);
    for node in &fleet.nodes {
        assert_eq!(admitted(node, "one", 30), 7);
    }
}

#[test]
fn a_node_that_has_left_is_no_longer_counted() {
    let fleet = Fleet::running(TWENTY, Setting { nodes: 2, ..Setting::default() });
    // Its heartbeats no longer arrive, and five seconds later it is gone.
    fleet.nodes[1].link.set(Weather::Hangs);
    fleet.run_for_millis(6_500);
    fleet.set(Weather::Refuses);
    assert_eq!(admitted(&fleet.nodes[0], "one", 30), 20);
}

#[test]
fn a_node_goes_on_from_what_the_store_had_left() {
    let fleet = Fleet::running(TWENTY, Setting { nodes: 2, ..Setting::default() });
    let _ = fleet.nodes[0].check_cost("one", 14);
    let _ = fleet.nodes[0].check_cost("full", 20);
    lose_the_store(&fleet);
    // Six were left: three each.
    assert_eq!(admitted(&fleet.nodes[0], "one", 30), 3);
    assert_eq!(admitted(&fleet.nodes[0], "full", 30), 0);
    // This one never saw the key.
    assert_eq!(admitted(&fleet.nodes[1], "one", 30), 10);
}

#[test]
fn what_was_spent_alone_is_charged_once_when_the_store_is_back() {
    let fleet = Fleet::running(TWENTY, Setting { nodes: 2, ..Setting::default() });
    lose_the_store(&fleet);
    assert_eq!(admitted(&fleet.nodes[0], "one", 4), 4);
    assert_eq!(admitted(&fleet.nodes[1], "one", 3), 3);
    fleet.set(Weather::Fine);
    fleet.run_for_millis(2_000);
    let look = fleet.nodes[0].check_cost("one", 0);
    assert_eq!(look.source, Source::Store);
    assert_eq!(look.governing().unwrap().limit().unwrap().outcome.remaining, 13);
    let paid: Vec<u64> = fleet
        .nodes
        .iter()
        .map(|node| node.heard.debts.lock().unwrap().iter().map(|(_, hits)| hits).sum())
        .collect();
    // One hit for `nobody` on each node's way into the outage.
    assert_eq!(paid, [4 + 3, 3 + 3]);
    fleet.run_for_millis(10_000);
    let look = fleet.nodes[0].check_cost("one", 0);
    assert_eq!(look.governing().unwrap().limit().unwrap().outcome.remaining, 13, "charged again");
    fleet.nodes.iter().for_each(|node| node.assert_idle());
}

#[test]
fn what_has_left_its_window_is_not_charged() {
    let fleet = Fleet::running(
        "- { name: a, key: [user], limits: [{ algorithm: fixed_window, limit: 20, window: 1s }] }",
        Setting::default(),
    );
    lose_the_store(&fleet);
    for _ in 0..5 {
        assert_eq!(admitted(&fleet.nodes[0], "one", 10), 10);
        fleet.run_for_millis(1_000);
    }
    fleet.set(Weather::Fine);
    fleet.run_for_millis(2_000);
    assert!(fleet.nodes[0].check_cost("one", 20).allowed);
}

#[test]
fn a_second_outage_starts_from_what_the_store_said_last_not_from_the_first_one() {
    let fleet = Fleet::running(TWENTY, Setting::default());
    lose_the_store(&fleet);
    assert_eq!(admitted(&fleet.nodes[0], "one", 5), 5);
    fleet.set(Weather::Fine);
    fleet.run_for_millis(2_000);
    let _ = fleet.nodes[0].check("one");
    lose_the_store(&fleet);
    assert_eq!(admitted(&fleet.nodes[0], "one", 30), 14);
}

#[test]
fn within_two_seconds_of_the_store_being_back_decisions_are_exact_again() {
    let fleet = Fleet::running(TWENTY, Setting { nodes: 3, ..Setting::default() });
    lose_the_store(&fleet);
    fleet.run_for_millis(7_000);
    fleet.set(Weather::Fine);
    fleet.run_for_millis(2_000);
    for node in &fleet.nodes {
        assert_eq!(node.check("one").source, Source::Store);
    }
}

#[test]
fn leases_become_local_and_can_be_given_back_there() {
    let fleet = Fleet::running(
        "- { name: a, key: [user], limits: [{ algorithm: concurrency, limit: 4, ttl: 60s }] }",
        Setting { nodes: 2, ..Setting::default() },
    );
    lose_the_store(&fleet);
    let node = &fleet.nodes[0];
    let first = node.check("one").lease.unwrap();
    assert!(node.check("one").allowed);
    assert!(!node.check("one").allowed, "two of four are this node's share");
    let limiter = node.limiter.clone();
    let (renewed, released, again) = fleet.executor.finish(async move {
        (limiter.renew(&first).await, limiter.release(&first).await, limiter.release(&first).await)
    });
    renewed.unwrap();
    released.unwrap();
    assert!(node.check("one").allowed);
    // The store may hold it for all this node knows; it will be told.
    again.unwrap();
    fleet.set(Weather::Fine);
    fleet.run_for_millis(2_000);
    let limiter = node.limiter.clone();
    let unknown = node.check("two").lease.unwrap();
    let ended = fleet.executor.finish(async move {
        limiter.release(&unknown).await.unwrap();
        limiter.release(&unknown).await
    });
    assert!(matches!(ended, Err(LeaseError::Ended)));
}

#[test]
fn an_open_rule_lets_pass_and_tells_what_was_left() {
    let fleet = Fleet::running(
        "- { name: a, key: [user], on_store_failure: open, limits: [{ algorithm: fixed_window, limit: 20, window: 1h }] }",
        Setting::default(),
    );
    let _ = fleet.nodes[0].check_cost("one", 15);
    lose_the_store(&fleet);
    for _ in 0..30 {
        let decision = fleet.nodes[0].check("one");
        assert_eq!((decision.allowed, decision.source), (true, Source::FallbackOpen));
        assert_eq!(decision.governing().unwrap().limit().unwrap().outcome.remaining, 5);
    }
    assert!(
        fleet.nodes[0].heard.fell_back.lock().unwrap().iter().all(|source| *source == Source::FallbackOpen)
    );
}

#[test]
fn a_fast_bucket_is_divided_by_its_rate_too() {
    let fleet = Fleet::running(
        "- { name: a, key: [user], limits: [{ algorithm: token_bucket, rate: 10/s, burst: 10 }] }",
        Setting { nodes: 2, ..Setting::default() },
    );
    lose_the_store(&fleet);
    assert_eq!(admitted(&fleet.nodes[0], "one", 30), 5);
    fleet.executor.run_for(Micros::from_secs(1));
    assert_eq!(admitted(&fleet.nodes[0], "one", 30), 5);
}

#[test]
fn a_lease_is_known_on_every_node_also_by_those_that_started_without_the_store() {
    let rules = "- { name: a, key: [user], limits: [{ algorithm: concurrency, limit: 4, ttl: 60s }] }";
    let fleet = Fleet::new(rules, Setting { nodes: 2, ..Setting::default() });
    fleet.set(Weather::Refuses);
    for node in &fleet.nodes {
        fleet.executor.start(node.limiter.maintain());
    }
    fleet.run_for_millis(3_000);
    let [one, other] = [0, 1].map(|number| fleet.nodes[number].limiter.clone());
    let alone = fleet.nodes[0].check("one").lease.unwrap().to_string();
    assert!(one.read_lease(&alone).is_ok() && other.read_lease(&alone).is_err());
    fleet.set(Weather::Fine);
    fleet.run_for_millis(3_000);
    let together = fleet.nodes[0].check("two").lease.unwrap().to_string();
    assert!(other.read_lease(&together).is_ok());
    assert!(one.read_lease(&alone).is_ok(), "what was signed before is still known");
}

#[test]
fn a_lease_of_a_share_that_another_node_releases_keeps_its_place_until_its_time_to_live_is_over() {
    let rules = "- { name: a, key: [user], limits: [{ algorithm: concurrency, limit: 2, ttl: 10s }] }";
    let fleet = Fleet::running(rules, Setting { nodes: 2, ..Setting::default() });
    lose_the_store(&fleet);
    let lease = fleet.nodes[0].check("one").lease.unwrap();
    let other = fleet.nodes[1].limiter.clone();
    fleet.executor.finish(async move { other.release(&lease).await }).unwrap();
    assert!(!fleet.nodes[0].check("one").allowed, "its share of one is taken");
    assert!(fleet.nodes[1].check("one").allowed, "the other's is not");
    fleet.run_for_millis(10_000);
    assert!(fleet.nodes[0].check("one").allowed);
}
