//! Requests whose parts are decided in different places pass as a whole or spend nothing.

use tidegate_limiter::{Decision, Source};
use tidegate_rules::Rule;

use super::store::Weather;
use super::{Fleet, Node, Setting};

const LOCAL_AND_EXACT: &str = "
- { name: here, coordination: local, limits: [{ algorithm: fixed_window, limit: 10, window: 1h }] }
- { name: there, key: [user], limits: [{ algorithm: fixed_window, limit: 3, window: 1h }] }";

fn remaining(decision: &Decision, rule: &str) -> u64 {
    let named = |index: usize| decision.rule_of(&decision.reports()[index]).map(Rule::name) == Some(rule);
    let report = (0..decision.reports().len()).find(|index| named(*index)).unwrap();
    decision.reports()[report].limit().unwrap().outcome.remaining
}

fn decisions(node: &Node, user: &str, times: usize) -> Vec<bool> {
    (0..times).map(|_| node.check(user).allowed).collect()
}

#[test]
fn what_the_store_refuses_is_given_back_here() {
    let fleet = Fleet::new(LOCAL_AND_EXACT, Setting::default());
    let node = &fleet.nodes[0];
    assert_eq!(decisions(node, "one", 5), [true, true, true, false, false]);
    let other = node.check("two");
    assert_eq!((remaining(&other, "here"), remaining(&other, "there")), (6, 2));
    assert_eq!(other.source, Source::Store);
}

#[test]
fn what_is_refused_here_never_reaches_the_store() {
    let fleet = Fleet::new(LOCAL_AND_EXACT, Setting::default());
    let node = &fleet.nodes[0];
    (0..10).for_each(|user| assert!(node.check(&user.to_string()).allowed));
    node.link.forget_calls();
    let refused = node.check("new");
    assert_eq!((refused.allowed, refused.source), (false, Source::Local));
    assert_eq!(node.link.calls(), 0);
}

#[test]
fn a_request_dropped_on_its_way_gives_back_what_it_took_here() {
    let fleet = Fleet::new(LOCAL_AND_EXACT, Setting::default());
    let node = &fleet.nodes[0];
    for _ in 0..20 {
        let request = node.start("one");
        fleet.executor.settle();
        request.abort();
        fleet.run_for_millis(2);
    }
    assert_eq!(remaining(&node.check_cost("two", 0), "here"), 10);
}

#[test]
fn a_local_rule_alone_never_asks_the_store_and_counts_on_each_node() {
    let fleet = Fleet::new(
        "- { name: a, key: [user], coordination: local, limits: [{ algorithm: fixed_window, limit: 3, window: 1h }] }",
        Setting { nodes: 2, ..Setting::default() },
    );
    fleet.set(Weather::Hangs);
    for node in &fleet.nodes {
        assert_eq!(decisions(node, "one", 4), [true, true, true, false]);
        assert_eq!(node.check("two").source, Source::Local);
    }
    assert_eq!(fleet.calls(), 0);
}

#[test]
fn a_closed_rule_without_its_store_spends_nothing_anywhere() {
    let fleet = Fleet::new(
        "- { name: here, coordination: local, limits: [{ algorithm: fixed_window, limit: 5, window: 1h }] }\n\
         - { name: there, key: [user], on_store_failure: closed, limits: [{ algorithm: fixed_window, limit: 3, window: 1h }] }",
        Setting::default(),
    );
    let node = &fleet.nodes[0];
    node.link.set(Weather::Refuses);
    for _ in 0..20 {
        let refused = node.check("one");
        assert_eq!((refused.allowed, refused.source), (false, Source::FallbackClosed));
    }
    assert_eq!(remaining(&node.check("one"), "here"), 5);
}

#[test]
fn a_missing_key_is_refused_without_asking_the_store() {
    let fleet = Fleet::new(
        "- { name: a, key: [user], on_missing_key: refuse, limits: [1/hour] }\n- { name: b, limits: [9/hour] }",
        Setting::default(),
    );
    let node = &fleet.nodes[0];
    let refused = fleet.executor.finish(node.checking(vec![], 1)).decision;
    assert_eq!((refused.allowed, refused.source), (false, Source::None));
    assert_eq!(node.link.calls(), 0);
}

#[test]
fn a_core_of_its_own_has_calls_of_its_own_and_the_same_memory() {
    let fleet = Fleet::new(LOCAL_AND_EXACT, Setting::default());
    let node = &fleet.nodes[0];
    let limiter = node.limiter.for_core(node.link.clone(), std::sync::Arc::new(fleet.executor.clone()));
    let second = Node { limiter: std::sync::Arc::new(limiter), ..node.clone() };
    let side_by_side = [node.start("one"), second.start("one")];
    assert!(side_by_side.into_iter().all(|one| one.wait().decision.allowed));
    assert_eq!(node.link.seen.lock().unwrap().most_at_once_per_lane, 2);
    let _ = node.check_cost("one", 1);
    assert_eq!(node.check("one").source, Source::Store);
    assert_eq!(second.check("one").source, Source::DenyCache);
    assert_eq!(remaining(&second.check_cost("two", 0), "here"), 7);
}
