//! A request that is dropped takes nothing along: no batch, no answer of another, no lease.

use tidegate_core::Micros;
use tidegate_limiter::Source;

use super::store::Weather;
use super::{Fleet, Setting};

const HUNDRED: &str =
    "- { name: a, key: [user], limits: [{ algorithm: fixed_window, limit: 100, window: 1h }] }";
const LEASES: &str = "- { name: a, key: [user], limits: [{ algorithm: concurrency, limit: 3, ttl: 1h }] }";

#[test]
fn when_the_request_that_began_a_call_is_dropped_the_others_are_answered() {
    let fleet = Fleet::new(HUNDRED, Setting { latency: (500, 500), ..Setting::default() });
    let node = &fleet.nodes[0];
    let first = node.start("one");
    fleet.executor.run_for(Micros::new(100));
    let others: Vec<_> = (0..5).map(|_| node.start("one")).collect();
    fleet.executor.run_for(Micros::new(100));
    first.abort();
    for other in others {
        assert_eq!(other.wait().decision.source, Source::Store);
    }
    // The dropped one was under way and has spent; nobody else was charged for it.
    assert!(node.check_cost("one", 94).allowed);
    assert!(!node.check("one").allowed);
    node.assert_idle();
}

#[test]
fn a_request_dropped_before_its_call_is_never_asked() {
    let fleet = Fleet::new(HUNDRED, Setting { latency: (500, 500), ..Setting::default() });
    let node = &fleet.nodes[0];
    let first = node.start("one");
    fleet.executor.run_for(Micros::new(100));
    let queued: Vec<_> = (0..5).map(|_| node.start("one")).collect();
    fleet.executor.settle();
    queued.into_iter().for_each(|one| one.abort());
    first.wait();
    fleet.run_for_millis(5);
    assert!(node.check_cost("one", 99).allowed);
    node.assert_idle();
}

#[test]
fn dropping_requests_at_any_moment_leaks_nothing() {
    for seed in 0..60 {
        let fleet = Fleet::running(LEASES, Setting { seed, nodes: 2, ..Setting::default() });
        let mut held = vec![];
        for round in 0..40 {
            let node = &fleet.nodes[fleet.executor.below(2) as usize];
            if round == 15 {
                fleet.set(Weather::Changing { fine: 30 });
            }
            if round == 30 {
                fleet.set(Weather::Fine);
            }
            let request = node.start(&fleet.executor.below(3).to_string());
            fleet.executor.run_for(Micros::new(fleet.executor.below(1_200)));
            // Some go on, some leave: before the call, during it, or while others wait for the same.
            if fleet.executor.below(3) > 0 && !request.is_done() {
                request.abort();
            } else {
                held.push((node.clone(), request));
            }
        }
        for (node, request) in held {
            if let Some(lease) = request.wait().decision.lease {
                let limiter = node.limiter.clone();
                fleet.executor.finish(async move { limiter.release(&lease).await.unwrap() });
            }
        }
        // Long enough for breakers to close and for leases without a holder to be given back, not for them to end.
        fleet.run_for_millis(3_000);
        for node in &fleet.nodes {
            node.assert_idle();
            for user in ["0", "1", "2"] {
                let look = node.check_cost(user, 0);
                let left = look.governing().unwrap().limit().unwrap().outcome.remaining;
                assert_eq!(
                    (left, look.source),
                    (3, Source::Store),
                    "seed {seed}: a lease of user {user} leaked"
                );
            }
        }
    }
}

#[test]
fn a_lease_whose_answer_was_lost_is_given_back_when_the_store_answers_again() {
    let fleet = Fleet::running(LEASES, Setting::default());
    let node = &fleet.nodes[0];
    node.link.set(Weather::LosesReplies);
    let lost = node.check("one");
    assert_eq!(lost.source, Source::OverloadLocal);
    node.link.set(Weather::Fine);
    fleet.run_for_millis(1_500);
    let look = node.check_cost("one", 0);
    assert_eq!(look.governing().unwrap().limit().unwrap().outcome.remaining, 3);
}

#[test]
fn a_lease_released_again_and_again_while_the_store_is_away_waits_once_and_is_told_once() {
    let fleet = Fleet::running(LEASES, Setting::default());
    let node = &fleet.nodes[0];
    let lease = node.check("one").lease.unwrap();
    node.link.set(Weather::Hangs);
    let mut answers = Vec::new();
    // Across several rounds of the background, which takes the lease from the queue to try it.
    for _ in 0..40 {
        let (limiter, lease) = (node.limiter.clone(), lease.clone());
        answers.push(fleet.executor.finish(async move { limiter.release(&lease).await }).is_ok());
        fleet.run_for_millis(100);
        assert!(node.limiter.remote_stats().unwrap().orphans <= 1);
    }
    assert_eq!(answers.iter().filter(|ended| **ended).count(), 1, "{answers:?}");
    node.limiter.release_soon(&lease);
    assert_eq!((answers[0], *node.heard.released.lock().unwrap()), (true, 1));
    node.link.set(Weather::Fine);
    fleet.run_for_millis(1_500);
    let look = node.check_cost("one", 0);
    assert_eq!(look.governing().unwrap().limit().unwrap().outcome.remaining, 3);
}

#[test]
fn a_lease_released_while_the_store_is_away_is_given_back_later() {
    let fleet = Fleet::running(LEASES, Setting::default());
    let node = &fleet.nodes[0];
    let lease = node.check("one").lease.unwrap();
    node.link.set(Weather::Hangs);
    let limiter = node.limiter.clone();
    fleet.executor.finish(async move { limiter.release(&lease).await.unwrap() });
    node.link.set(Weather::Fine);
    fleet.run_for_millis(1_500);
    let look = node.check_cost("one", 0);
    assert_eq!(look.governing().unwrap().limit().unwrap().outcome.remaining, 3);
}
