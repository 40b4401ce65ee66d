//! A core that did not run for a while says nothing about the store: nobody falls back, nothing opens, and all is exact.

use tidegate_core::Micros;
use tidegate_limiter::{Overload, Source};

use super::store::Weather;
use super::{Checked, Fleet, Setting};

fn rules(policy: &str, limit: u64) -> String {
    format!(
        "- {{ name: a, key: [user], on_store_failure: {policy}, limits: [{{ algorithm: fixed_window, limit: {limit}, window: 1h }}] }}"
    )
}

const POLICIES: [&str; 3] = ["open", "closed", "local"];

#[test]
fn who_waits_on_a_core_that_stood_still_gets_the_answer_of_the_store() {
    for policy in POLICIES {
        let fleet = Fleet::new(&rules(policy, 100), Setting::default());
        let node = &fleet.nodes[0];
        let flood: Vec<_> = (0..300).map(|_| node.start("one")).collect();
        // Before the task ran that carries them, and again while the call is under way.
        fleet.executor.stand_still(Micros::from_millis(40));
        fleet.executor.settle();
        fleet.executor.stand_still(Micros::from_millis(150));
        let checked: Vec<Checked> = flood.into_iter().map(|one| one.wait()).collect();
        assert!(checked.iter().all(|one| one.decision.source == Source::Store), "{policy}");
        assert_eq!(checked.iter().filter(|one| one.decision.allowed).count(), 100, "{policy}");
        assert!(node.heard.breaker.lock().unwrap().is_empty());
        let heard = node.heard.overloaded.lock().unwrap();
        assert!(heard.iter().all(|(why, _)| *why == Overload::OwnLag), "{policy}: {heard:?}");
        assert_eq!(heard.iter().map(|(_, requests)| requests).sum::<usize>(), 300, "{policy}");
    }
}

/// They were decided without it, so what the store spent for them is somebody else's; what a share gave them is charged.
#[test]
fn what_the_store_spends_for_those_who_were_late_goes_back() {
    for (policy, allowed, left) in [("closed", false, 20), ("local", true, 11)] {
        let setting = Setting { change: |remote| remote.queue.calls = 1, ..Setting::default() };
        let fleet = Fleet::new(&rules(policy, 20), setting);
        let node = &fleet.nodes[0];
        (0..20).for_each(|_| drop(node.check("busy")));
        // One call of 6 ms, and those behind it have time for one as it was before; it takes 8.
        node.link.set(Weather::Slow(Micros::from_millis(3)));
        let busy = node.start("other");
        fleet.executor.settle();
        let late: Vec<_> = (0..9).map(|_| node.start("one")).collect();
        fleet.executor.settle();
        node.link.set(Weather::Slow(Micros::from_millis(4)));
        assert!(busy.wait().decision.allowed);
        for one in late {
            let Checked { decision, took } = one.wait();
            assert_eq!((decision.allowed, took), (allowed, Micros::from_millis(10)), "{policy}");
        }
        node.link.set(Weather::Fine);
        fleet.run_for_millis(100);
        let _ = node.check_cost("one", 0);
        fleet.run_for_millis(100);
        let look = node.check_cost("one", 0);
        assert_eq!(look.governing().unwrap().limit().unwrap().outcome.remaining, left, "{policy}");
    }
}

/// Requests over a few keys on two nodes whose cores stand still again and again.
#[test]
fn cores_that_stand_still_by_chance_fall_back_never_and_admit_no_more_than_the_limit() {
    for seed in 0..30 {
        for policy in POLICIES {
            let setting = Setting { seed, nodes: 2, ..Setting::default() };
            let fleet = Fleet::running(&rules(policy, 20), setting);
            let users = ["a", "b", "c", "d"];
            let mut waiting = vec![];
            for n in 0..600 {
                let user = users[fleet.executor.below(4) as usize];
                waiting.push((user, fleet.nodes[n % 2].start(user)));
                if fleet.executor.below(10) == 0 {
                    fleet.executor.stand_still(Micros::new(fleet.executor.below(200_000)));
                }
                fleet.executor.run_for(Micros::new(fleet.executor.below(1_000)));
            }
            let mut admitted = [0; 4];
            for (user, one) in waiting {
                let decision = one.wait().decision;
                let place = users.iter().position(|known| *known == user).unwrap();
                admitted[place] += u64::from(decision.allowed);
            }
            assert_eq!(admitted, [20; 4], "seed {seed}, {policy}");
            for node in &fleet.nodes {
                assert!(node.heard.fell_back.lock().unwrap().is_empty(), "seed {seed}, {policy}");
                assert!(node.heard.breaker.lock().unwrap().is_empty(), "seed {seed}, {policy}");
            }
        }
    }
}

#[test]
fn heartbeats_and_probes_of_a_core_that_stands_still_open_no_breaker() {
    let fleet = Fleet::running(&rules("closed", 100), Setting::default());
    let node = &fleet.nodes[0];
    for _ in 0..300 {
        // Shorter than the way to the store and back: no call is answered before its core stands still.
        fleet.executor.run_for(Micros::new(100));
        fleet.executor.stand_still(Micros::from_millis(100));
    }
    assert!(node.heard.breaker.lock().unwrap().is_empty());
    assert_eq!(*node.heard.heartbeats_lost.lock().unwrap(), 0);
}

#[test]
fn nobody_waits_for_a_silent_store_for_longer_than_two_seconds_however_busy_the_core() {
    let fleet = Fleet::new(&rules("closed", 100), Setting::default());
    let node = &fleet.nodes[0];
    node.link.set(Weather::Hangs);
    let one = node.start("one");
    let began = fleet.executor.now();
    while !one.is_done() {
        fleet.executor.run_for(Micros::from_millis(1));
        fleet.executor.stand_still(Micros::from_millis(90));
    }
    let took = fleet.executor.now().since(began);
    assert_eq!(one.wait().decision.source, Source::OverloadClosed);
    assert!(took <= Micros::from_millis(2_200), "{took}");
}
