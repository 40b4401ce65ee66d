//! What a failover or a crash loses, and what it may cost: never more than was lost.

use tidegate_core::{Hits, Micros};
use tidegate_limiter::{CheckRequest, DescriptorAsk, Source, SpentAt};

use super::executor::Handle;
use super::store::Weather;
use super::{Checked, Fleet, Setting};

const LIMIT: u64 = 300;

fn rules(policy: &str) -> String {
    format!(
        "- {{ name: a, key: [user], on_store_failure: {policy}, limits: [{{ algorithm: fixed_window, limit: {LIMIT}, window: 1h }}] }}"
    )
}

/// Requests of one user and tenant through all nodes, side by side as it comes.
fn storm(fleet: &Fleet, requests: usize, attributes: &[(&str, &str)]) -> Vec<Handle<Checked>> {
    let attributes: Vec<(String, String)> =
        attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let start = |_| {
        let node = &fleet.nodes[fleet.executor.below(fleet.nodes.len() as u64) as usize];
        let handle = fleet.executor.start(node.checking(attributes.clone(), 1));
        fleet.executor.run_for(Micros::new(fleet.executor.below(400)));
        handle
    };
    (0..requests).map(start).collect()
}

fn admitted(checked: Vec<Handle<Checked>>) -> u64 {
    checked.into_iter().map(|one| u64::from(one.wait().decision.allowed)).sum()
}

#[test]
fn a_failover_gives_back_what_it_lost_and_no_more() {
    for seed in 0..8 {
        let fleet = Fleet::running(&rules("closed"), Setting { seed, nodes: 2, ..Setting::default() });
        let before = admitted(storm(&fleet, 200, &[("user", "one")]));
        // All of these are lost with the master.
        fleet.run_for_millis(100);
        let lost = admitted(storm(&fleet, 60, &[("user", "one")]));
        fleet.truth.memory.fail_over(Micros::from_millis(50));
        let after = admitted(storm(&fleet, 900, &[("user", "one")]));
        assert!(before + after <= LIMIT, "seed {seed}: {before} + {after} where only {lost} were lost");
        assert!(before + after + lost >= LIMIT, "seed {seed}: {before} + {lost} + {after}");
    }
}

#[test]
fn after_a_failover_whoever_was_refused_is_admitted_within_a_second() {
    let fleet = Fleet::running(&rules("closed"), Setting { nodes: 2, ..Setting::default() });
    let _ = fleet.nodes[0].check_cost("one", LIMIT - 1);
    fleet.run_for_millis(100);
    let _ = fleet.nodes[0].check("one");
    assert!(fleet.nodes.iter().all(|node| !node.check("one").allowed));
    fleet.truth.memory.fail_over(Micros::from_millis(50));
    fleet.run_for_millis(1_000);
    assert_eq!(fleet.nodes.iter().filter(|node| node.check("one").allowed).count(), 1);
}

/// A user and everybody of a tenant; the tenant's counters lie on the second node of the store.
const TWO: &str = "
- { name: user, key: [user], on_store_failure: closed, limits: [{ algorithm: fixed_window, limit: 40, window: 1h }, { algorithm: token_bucket, rate: 1/h, burst: 35 }] }
- { name: tenant, key: [tenant], on_store_failure: closed, limits: [{ algorithm: sliding_log, limit: 60, window: 1h }] }";

#[test]
fn with_two_limits_on_two_nodes_neither_is_exceeded_in_any_weather() {
    for seed in 0..8 {
        let fleet = Fleet::running(TWO, Setting { seed, nodes: 3, ..Setting::default() });
        for node in &fleet.nodes {
            node.link.set(Weather::Changing { fine: 85 });
            *node.link.second_node.lock().unwrap() = Some((b'z', Weather::Changing { fine: 85 }));
        }
        let users = ["a", "b", "c"].map(|user| storm(&fleet, 120, &[("user", user), ("tenant", "z")]));
        let users = users.map(admitted);
        assert!(users.iter().all(|admitted| *admitted <= 35), "seed {seed}: {users:?}");
        assert!(users.iter().sum::<u64>() <= 60, "seed {seed}: {users:?}");
    }
}

#[test]
fn in_fine_weather_two_limits_admit_all_that_both_allow_and_charge_no_more() {
    for seed in 0..4 {
        let fleet = Fleet::running(TWO, Setting { seed, nodes: 3, ..Setting::default() });
        let first = admitted(storm(&fleet, 80, &[("user", "a"), ("tenant", "z")]));
        let second = admitted(storm(&fleet, 80, &[("user", "b"), ("tenant", "z")]));
        assert_eq!((first, second), (35, 25), "seed {seed}");
        // What the tenant refused cost the user nothing.
        fleet.run_for_millis(1_000);
        assert_eq!(admitted(storm(&fleet, 80, &[("user", "b"), ("tenant", "other")])), 10, "seed {seed}");
    }
}

#[test]
fn nodes_that_die_in_a_storm_admit_no_more_than_the_limit_where_the_rule_is_closed() {
    for seed in 0..8 {
        let mut fleet = Fleet::running(&rules("closed"), Setting { seed, nodes: 3, ..Setting::default() });
        let mut waiting = Vec::new();
        for _ in 0..9 {
            waiting.extend(storm(&fleet, 100, &[("user", "one")]));
            let place = fleet.executor.below(3) as usize;
            fleet.crash(place);
        }
        let all = admitted(waiting);
        assert!(all <= LIMIT, "seed {seed}: {all}");
        assert!(all >= LIMIT - 60, "seed {seed}: only what was on its way is lost, and {all} passed");
    }
}

#[test]
fn a_node_that_died_without_its_store_takes_its_debts_along_and_its_successor_has_a_share_of_its_own() {
    let mut fleet = Fleet::running(&rules("local"), Setting { nodes: 3, ..Setting::default() });
    fleet.set(Weather::Refuses);
    let spend = |fleet: &Fleet| (0..LIMIT).filter(|_| fleet.nodes[0].check("one").allowed).count() as u64;
    assert_eq!(spend(&fleet), LIMIT / 3);
    fleet.crash(0);
    assert!(spend(&fleet) <= LIMIT, "a node that knows of no other may take it for its own");
    fleet.set(Weather::Fine);
    fleet.run_for_millis(5_000);
    assert!(fleet.nodes.iter().all(|node| node.check_cost("two", 0).source == Source::Store));
}

#[test]
fn a_debt_is_settled_at_the_node_that_holds_its_cell_and_waits_for_no_other() {
    let fleet = Fleet::running(&rules("local"), Setting::default());
    let node = &fleet.nodes[0];
    *node.link.second_node.lock().unwrap() = Some((b'z', Weather::Refuses));
    node.link.set(Weather::Refuses);
    assert_eq!(
        (node.check("a").source, node.check("z").source),
        (Source::FallbackLocal, Source::FallbackLocal)
    );
    // The first node is back, the second is not.
    node.link.set(Weather::Fine);
    fleet.run_for_millis(3_000);
    assert_eq!(node.limiter.remote_stats().unwrap().debts, 1);
    let left = node.check_cost("a", 0).governing().unwrap().limit().unwrap().outcome.remaining;
    assert_eq!(left, LIMIT - 1);
    *node.link.second_node.lock().unwrap() = Some((b'z', Weather::Fine));
    fleet.run_for_millis(3_000);
    assert_eq!(node.limiter.remote_stats().unwrap().debts, 0);
}

#[test]
fn what_approximate_rules_admitted_is_told_to_the_node_that_holds_its_cell_and_waits_for_no_other() {
    let rules = "- { name: a, key: [user], coordination: approximate, sync_every: 1s, limits: [{ algorithm: fixed_window, limit: 1000, window: 1h }] }";
    let fleet = Fleet::running(rules, Setting::default());
    let node = &fleet.nodes[0];
    let second = |weather| *node.link.second_node.lock().unwrap() = Some((b'z', weather));
    let left = |user: &str| {
        let look = fleet.nodes[0].check_cost(user, 0);
        look.governing().unwrap().limit().unwrap().outcome.remaining
    };
    second(Weather::Fine);
    (0..10).for_each(|_| ["a", "z"].into_iter().for_each(|user| drop(node.check(user))));
    second(Weather::Refuses);
    fleet.run_for_millis(2_000);
    second(Weather::Fine);
    // The next report hears what the store has counted.
    ["a", "z"].into_iter().for_each(|user| drop(node.check(user)));
    fleet.run_for_millis(3_000);
    assert_eq!((left("a"), left("z")), (989, 989));
}

#[test]
fn a_lease_goes_back_to_the_node_that_holds_its_cell() {
    let slots = "- { name: a, key: [user], limits: [{ algorithm: concurrency, limit: 1, ttl: 60s }] }";
    let fleet = Fleet::running(slots, Setting::default());
    let node = &fleet.nodes[0];
    *node.link.second_node.lock().unwrap() = Some((b'z', Weather::Fine));
    let taken = ["a", "z"].map(|user| node.check(user).lease.expect("a lease was taken"));
    *node.link.second_node.lock().unwrap() = Some((b'z', Weather::Refuses));
    for lease in taken {
        let limiter = node.limiter.clone();
        fleet.executor.finish(async move { limiter.release(&lease).await }).unwrap();
    }
    // Whose node does not answer is given back later.
    let orphans = || node.limiter.remote_stats().unwrap().orphans;
    assert_eq!((orphans(), node.check("a").allowed), (1, true));
    *node.link.second_node.lock().unwrap() = Some((b'z', Weather::Fine));
    fleet.run_for_millis(3_000);
    assert_eq!((orphans(), node.check("z").allowed), (0, true));
}

#[test]
fn a_refund_goes_to_the_node_that_holds_its_cell_and_waits_for_no_other() {
    let fleet = Fleet::running(&rules("closed"), Setting::default());
    let node = &fleet.nodes[0];
    let second = |weather| *node.link.second_node.lock().unwrap() = Some((b'z', weather));
    let left = |user: &str| {
        let look = node.check_cost(user, 0);
        look.governing().unwrap().limit().unwrap().outcome.remaining
    };
    let refund = |user: &'static str| {
        let limiter = node.limiter.clone();
        fleet.executor.finish(async move {
            let entries: [(&str, &[u8]); 1] = [("user", user.as_bytes())];
            let asks = [DescriptorAsk::one(&entries)];
            limiter.refund(&CheckRequest::new("api", &asks), Hits::new(10), SpentAt::Unknown).await.is_ok()
        })
    };
    second(Weather::Fine);
    ["a", "z"].into_iter().for_each(|user| drop(node.check_cost(user, 100)));
    second(Weather::Refuses);
    assert_eq!((refund("a"), refund("z")), (true, false));
    assert_eq!(left("a"), LIMIT - 90);
    second(Weather::Fine);
    fleet.run_for_millis(3_000);
    assert_eq!(left("z"), LIMIT - 100, "nobody was told that it went back");
}

#[test]
fn a_renewal_goes_to_the_node_that_holds_its_cell_and_waits_for_no_other() {
    let slots = "- { name: a, key: [user], limits: [{ algorithm: concurrency, limit: 1, ttl: 60s }] }";
    let fleet = Fleet::running(slots, Setting::default());
    let node = &fleet.nodes[0];
    let second = |weather| *node.link.second_node.lock().unwrap() = Some((b'z', weather));
    second(Weather::Fine);
    let taken = ["a", "z"].map(|user| node.check(user).lease.expect("a lease was taken"));
    fleet.run_for_millis(40_000);
    second(Weather::Refuses);
    let renewed = taken.map(|lease| {
        let limiter = node.limiter.clone();
        fleet.executor.finish(async move { limiter.renew(&lease).await.is_ok() })
    });
    assert_eq!(renewed, [true, false]);
    second(Weather::Fine);
    fleet.run_for_millis(40_000);
    // One has another time to live, the other's is over.
    assert_eq!((node.check("a").allowed, node.check("z").allowed), (false, true));
}

/// Both nodes are needed, and either may be the one that is lost.
#[test]
fn a_request_over_two_nodes_is_not_decided_while_either_is_lost() {
    for lost in [[Weather::Hangs, Weather::Fine], [Weather::Fine, Weather::Hangs]] {
        let fleet = Fleet::running(TWO, Setting::default());
        let node = &fleet.nodes[0];
        let second = |weather| *node.link.second_node.lock().unwrap() = Some((b'z', weather));
        second(lost[1]);
        node.link.set(lost[0]);
        assert_eq!(admitted(storm(&fleet, 5, &[("user", "a"), ("tenant", "z")])), 0, "{lost:?}");
        second(Weather::Fine);
        node.link.set(Weather::Fine);
        fleet.run_for_millis(3_000);
        // What the other node had taken by then is lost, and no more than that.
        let after = admitted(storm(&fleet, 80, &[("user", "a"), ("tenant", "z")]));
        assert!((30..=35).contains(&after), "{lost:?}: {after}");
    }
}
