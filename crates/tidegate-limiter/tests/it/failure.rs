use std::sync::Arc;

use tidegate_core::{Ask, Group, Limit, Micros, Rate, Scope, TokenBucket, Touch};
use tidegate_limiter::Source;
use tidegate_store::conformance::Broken;
use tidegate_store::{CellKey, ManualClock, Request, Spend};

use crate::world::{START, World, at_once};

fn world(policy: &str) -> World {
    let rules = format!("- {{ name: a, key: [user], on_store_failure: {policy}, limits: [2/hour] }}");
    World::on(Arc::new(Broken::AWAY), Arc::new(ManualClock::at(START)), &rules)
}

fn decide(world: &World, times: usize) -> Vec<(bool, Source)> {
    (0..times)
        .map(|_| world.check(&[("user", "1")]))
        .map(|decision| (decision.allowed, decision.source))
        .collect()
}

#[test]
fn an_open_rule_lets_pass() {
    assert_eq!(decide(&world("open"), 3), [(true, Source::FallbackOpen); 3]);
}

#[test]
fn a_closed_rule_refuses() {
    assert_eq!(decide(&world("closed"), 2), [(false, Source::FallbackClosed); 2]);
}

#[test]
fn a_local_rule_decides_on_this_node() {
    let (yes, no) = ((true, Source::FallbackLocal), (false, Source::FallbackLocal));
    assert_eq!(decide(&world("local"), 3), [yes, yes, no]);
}

/// Three hits, one after another, on a bucket of two that no rule states.
fn decide_directly(world: &World) -> Vec<(bool, Source)> {
    let rate = Rate::new(1, Micros::from_secs(3_600)).unwrap();
    let limit = Limit::TokenBucket(TokenBucket::new(rate, 2).unwrap());
    let scope = Scope::new(&[b"direct"]);
    let cell = CellKey { scope: &scope, key: b"\x01k", tag: b"\x01k" };
    let touch = Touch { limit: &limit, ask: Ask::hits(1), group: Group::ENFORCED };
    let spend = [Spend { cell, touch }];
    let (outcomes, source) = at_once(world.limiter.decide_direct(&[Request::once(&spend); 3]).answer());
    outcomes.iter().map(|outcome| (outcome.is_admitted(), source)).collect()
}

#[test]
fn a_limit_that_no_rule_states_is_decided_by_the_store_or_else_on_this_node() {
    let decided = |source| [(true, source), (true, source), (false, source)];
    assert_eq!(decide_directly(&World::new("- { name: a, limits: [2/hour] }")), decided(Source::Store));
    assert_eq!(decide_directly(&world("closed")), decided(Source::FallbackLocal));
}
