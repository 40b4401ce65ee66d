use std::sync::Arc;

use tidegate_core::Limit;
use tidegate_limiter::Source;
use tidegate_store::{
    CellKey, LeaseRef, ManualClock, Outcomes, Refund, Reply, Request, Spend, Store, StoreError,
};

use crate::world::{START, World};

/// A store that nobody can reach.
struct Away;

fn away<T>() -> Reply<'static, T> {
    Reply::Now(Err(StoreError::NotApplied { endpoint: "nowhere".into(), source: "unplugged".into() }))
}

impl Store for Away {
    fn decide<'a>(&'a self, _: &'a [Request<'a>]) -> Reply<'a, Outcomes> {
        away()
    }
    fn refund<'a>(&'a self, _: &'a [Refund<'a>]) -> Reply<'a, ()> {
        away()
    }
    fn charge<'a>(&'a self, _: &'a [Spend<'a>]) -> Reply<'a, ()> {
        away()
    }
    fn reset<'a>(&'a self, _: CellKey<'a>, _: &'a Limit) -> Reply<'a, ()> {
        away()
    }
    fn renew<'a>(&'a self, _: LeaseRef<'a>) -> Reply<'a, bool> {
        away()
    }
    fn release<'a>(&'a self, _: LeaseRef<'a>) -> Reply<'a, bool> {
        away()
    }
}

fn world(policy: &str) -> World {
    let rules = format!("- {{ name: a, key: [user], on_store_failure: {policy}, limits: [2/hour] }}");
    World::on(Arc::new(Away), Arc::new(ManualClock::at(START)), &rules)
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
