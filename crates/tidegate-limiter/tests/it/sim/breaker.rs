//! A store that does not answer is left alone until it does.

use tidegate_core::Micros;
use tidegate_limiter::{BreakerState, Health, Source};

use super::store::Weather;
use super::{Fleet, Node, Setting};

const CLOSED: &str = "- { name: a, key: [user], on_store_failure: closed, limits: [{ algorithm: fixed_window, limit: 1000, window: 1h }] }";

fn states(node: &Node) -> Vec<BreakerState> {
    node.heard.breaker.lock().unwrap().iter().map(|(_, state)| *state).collect()
}

fn probes(node: &Node) -> usize {
    node.link.seen.lock().unwrap().others.iter().filter(|(_, name)| *name == "probe").count()
}

/// Longer than it takes to find that a server is silent: a probe each 100 ms, and 200 ms of silence.
const JUDGED_MILLIS: u64 = 320;

#[test]
fn silent_store_has_failed_and_then_no_request_waits_or_reaches_it() {
    let fleet = Fleet::running(CLOSED, Setting::default());
    let node = &fleet.nodes[0];
    node.link.set(Weather::Hangs);
    // Until it opens nobody knows whether the store has failed or is only slow.
    let checked = node.start("a").wait();
    assert_eq!((checked.decision.source, checked.took), (Source::OverloadClosed, Micros::from_millis(10)));
    fleet.run_for_millis(JUDGED_MILLIS);
    assert_eq!(states(node), [BreakerState::Open; 2], "of each of its nodes");
    node.link.forget_calls();
    for user in 0..100 {
        let checked = node.start(&user.to_string()).wait();
        assert_eq!((checked.decision.source, checked.took), (Source::FallbackClosed, Micros::ZERO));
    }
    assert_eq!(node.link.calls(), 0);
}

#[test]
fn refused_calls_in_a_row_open_it_without_a_probe() {
    let fleet = Fleet::new(CLOSED, Setting::default());
    let node = &fleet.nodes[0];
    node.link.set(Weather::Refuses);
    for refused in 1..=3 {
        assert_eq!(node.check("a").source, Source::FallbackClosed);
        assert_eq!(states(node).len(), refused / 3);
    }
}

#[test]
fn request_whose_key_has_no_room_fails_alone_and_opens_nothing() {
    let fleet = Fleet::new(CLOSED, Setting { change: |remote| remote.queue.calls = 1, ..Setting::default() });
    let node = &fleet.nodes[0];
    *node.link.no_room.lock().unwrap() = Some(b'x');
    for _ in 0..5 {
        node.link.forget_calls();
        let asked = ["a", "x", "x", "b"].map(|user| node.start(user));
        let sources = asked.map(|one| one.wait().decision.source);
        let closed = Source::FallbackClosed;
        assert_eq!(sources, [Source::Store, closed, closed, Source::Store]);
        assert!(node.link.calls() <= 2, "it was carried with others");
    }
    assert_eq!(node.check("x").source, Source::FallbackClosed, "alone, too");
    assert_eq!(states(node), []);
    node.assert_idle();
}

#[test]
fn stalls_by_chance_open_it_only_if_they_last() {
    for seed in 0..10 {
        let fleet = Fleet::running(CLOSED, Setting { seed, ..Setting::default() });
        let node = &fleet.nodes[0];
        let set = |weather| {
            node.link.set(weather);
            *node.link.second_node.lock().unwrap() = Some((b'z', weather));
        };
        set(Weather::Fine);
        let ask_for = |millis: u64| {
            for tick in 0..millis / 5 {
                drop([node.start(&format!("a{tick}")), node.start(&format!("z{tick}"))]);
                fleet.run_for_millis(5);
            }
        };
        for _ in 0..10 {
            // What is sent meanwhile is lost, a probe among it.
            set(Weather::Hangs);
            ask_for(fleet.executor.below(180));
            set(Weather::Fine);
            ask_for(fleet.executor.below(100));
            fleet.executor.stand_still(Micros::from_millis(fleet.executor.below(400)));
            ask_for(600);
        }
        let opened = states(node).len();
        set(Weather::Hangs);
        fleet.run_for_millis(JUDGED_MILLIS);
        assert_eq!(node.check("a").source, Source::FallbackClosed, "seed {seed}");
        assert!(matches!(node.limiter.health(), Health::Degraded { .. }), "seed {seed}");
        set(Weather::Fine);
        fleet.run_for_millis(1_100);
        assert_eq!(node.check("a").source, Source::Store, "seed {seed}");
        assert_eq!(opened, 0, "seed {seed}: {:?}", states(node));
    }
}

#[test]
fn after_half_a_minute_one_request_tries() {
    let fleet = Fleet::new(CLOSED, Setting::default());
    let node = &fleet.nodes[0];
    node.link.set(Weather::Refuses);
    (0..3).for_each(|user| drop(node.check(&user.to_string())));
    fleet.run_for_millis(30_000);
    node.link.forget_calls();
    let herd: Vec<_> = (0..20).map(|user| node.start(&user.to_string())).collect();
    herd.into_iter().for_each(|one| assert!(!one.wait().decision.allowed));
    assert_eq!(node.link.calls(), 1);
    fleet.run_for_millis(30_000);
    node.link.set(Weather::Fine);
    assert!(node.check("x").allowed);
    use BreakerState::{Closed, HalfOpen, Open};
    assert_eq!(states(node), [Open, HalfOpen, Open, HalfOpen, Closed]);
    node.assert_idle();
}

#[test]
fn a_rule_with_two_limits_sends_its_trial_and_learns_that_the_store_is_back() {
    let rules = "- { name: a, key: [user], on_store_failure: closed, limits: [{ algorithm: fixed_window, limit: 1000, window: 1h }, { algorithm: token_bucket, rate: 10/s, burst: 50 }] }";
    let fleet = Fleet::new(rules, Setting::default());
    let node = &fleet.nodes[0];
    node.link.set(Weather::Refuses);
    (0..3).for_each(|user| drop(node.check(&user.to_string())));
    node.link.set(Weather::Fine);
    fleet.run_for_millis(30_000);
    let trial = node.check("x");
    assert_eq!((trial.allowed, trial.source), (true, Source::Store));
    assert_eq!(states(node), [BreakerState::Open, BreakerState::HalfOpen, BreakerState::Closed]);
}

#[test]
fn a_trial_that_another_limit_refuses_here_is_left_to_the_next_request() {
    let rules = "
- { name: here, key: [user], coordination: local, limits: [{ algorithm: fixed_window, limit: 1, window: 1h }] }
- { name: there, key: [user], on_store_failure: closed, limits: [{ algorithm: fixed_window, limit: 9, window: 1h }] }";
    let fleet = Fleet::new(rules, Setting::default());
    let node = &fleet.nodes[0];
    assert!(node.check("spent").allowed);
    node.link.set(Weather::Refuses);
    (0..3).for_each(|user| drop(node.check(&user.to_string())));
    node.link.set(Weather::Fine);
    fleet.run_for_millis(30_000);
    assert_eq!(node.check("spent").source, Source::Local);
    assert_eq!(node.check("fresh").source, Source::Store);
}

#[test]
fn a_probe_closes_it_within_half_a_second_of_the_store_answering_and_not_before() {
    let fleet = Fleet::running(CLOSED, Setting::default());
    let node = &fleet.nodes[0];
    node.link.set(Weather::Hangs);
    fleet.run_for_millis(5_000);
    // Of each node; a probe is awaited for half a second.
    assert!((15..=21).contains(&probes(node)), "{} probes in five seconds", probes(node));
    assert_eq!(states(node), [BreakerState::Open; 2]);
    // An answer that comes too late for a request is none.
    node.link.set(Weather::Slow(Micros::from_millis(100)));
    fleet.run_for_millis(2_000);
    assert_eq!(states(node), [BreakerState::Open; 2]);
    node.link.set(Weather::Fine);
    fleet.run_for_millis(520);
    assert_eq!(states(node)[2..], [BreakerState::Closed; 2]);
    assert_eq!(node.check("x").source, Source::Store);
}

#[test]
fn one_node_of_the_store_that_fails_takes_only_its_own_keys_along() {
    let fleet = Fleet::running(CLOSED, Setting::default());
    let node = &fleet.nodes[0];
    *node.link.second_node.lock().unwrap() = Some((b'z', Weather::Hangs));
    fleet.run_for_millis(JUDGED_MILLIS);
    assert_eq!(node.check("z9").source, Source::FallbackClosed);
    assert_eq!(node.check("a").source, Source::Store);
    assert_eq!(
        node.limiter.health(),
        Health::Degraded { reason: "the store does not answer at model-1".into() }
    );
}

#[test]
fn without_requests_probes_open_it_and_close_it() {
    let fleet = Fleet::running(CLOSED, Setting::default());
    let node = &fleet.nodes[0];
    let seen = || node.limiter.nodes().into_iter().map(|node| node.breaker).collect::<Vec<_>>();
    node.link.set(Weather::Refuses);
    fleet.run_for_millis(3_100);
    assert_eq!(
        (&states(node)[..], &seen()[..]),
        (&[BreakerState::Open; 2][..], &[BreakerState::Open; 2][..])
    );
    assert_eq!(*node.heard.heartbeats_lost.lock().unwrap(), 1, "told once");
    node.link.set(Weather::Fine);
    fleet.run_for_millis(1_100);
    assert_eq!(seen(), [BreakerState::Closed; 2]);
    assert_eq!(node.limiter.health(), Health::Healthy);
}

#[test]
fn health_tells_the_truth_also_when_nobody_asks() {
    let fleet = Fleet::running(CLOSED, Setting::default());
    let node = &fleet.nodes[0];
    assert_eq!(node.limiter.health(), Health::Healthy);
    node.link.set(Weather::Refuses);
    fleet.run_for_millis(1_100);
    assert!(matches!(node.limiter.health(), Health::Degraded { .. }));
    node.link.set(Weather::Fine);
    fleet.run_for_millis(1_100);
    assert_eq!(node.limiter.health(), Health::Healthy);
}
