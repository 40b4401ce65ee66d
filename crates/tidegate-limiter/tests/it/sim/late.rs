//! Calls that are answered after everybody was let go: heard all the same, and what they spent comes back.

use tidegate_core::Micros;
use tidegate_limiter::{BreakerState, LateCall, Source};

use super::store::Weather;
use super::{Fleet, Setting};

fn rules(policy: &str) -> String {
    format!(
        "- {{ name: a, key: [user], on_store_failure: {policy}, limits: [{{ algorithm: fixed_window, limit: 20, window: 1h }}] }}"
    )
}

/// So long each way that every answer comes after the deadline of 10 ms.
const LATE: Weather = Weather::Slow(Micros::from_millis(8));

fn left(fleet: &Fleet, user: &str) -> u64 {
    let look = fleet.nodes[0].check_cost(user, 0);
    assert_eq!(look.source, Source::Store);
    look.governing().unwrap().limit().unwrap().outcome.remaining
}

#[test]
fn what_a_late_call_spent_for_those_who_were_let_go_comes_back() {
    for (policy, source, left_after) in [
        ("closed", Source::OverloadClosed, 20),
        ("local", Source::OverloadLocal, 13),
        ("open", Source::OverloadOpen, 13),
    ] {
        let fleet = Fleet::running(&rules(policy), Setting::default());
        let node = &fleet.nodes[0];
        node.link.set(LATE);
        let waiting: Vec<_> = (0..7).map(|_| node.start("one")).collect();
        for one in waiting {
            assert_eq!(one.wait().decision.source, source);
        }
        node.link.set(Weather::Fine);
        fleet.run_for_millis(2_000);
        let ends = node.heard.late_calls.lock().unwrap().clone();
        assert!(matches!(ends[..], [LateCall::Answered { given_back: 1.. }]), "{policy}: {ends:?}");
        assert_eq!(left(&fleet, "one"), left_after, "{policy}");
        node.assert_idle();
    }
}

#[test]
fn what_a_late_call_spent_comes_back_although_the_store_does_not_take_it_at_first() {
    let fleet = Fleet::running(&rules("closed"), Setting::default());
    let node = &fleet.nodes[0];
    node.link.set(LATE);
    let late = node.start("one");
    fleet.run_for_millis(12);
    // Its answer is on its way; what comes next is turned away, as by a connection that is being made anew.
    node.link.set(Weather::Refuses);
    assert_eq!(late.wait().decision.source, Source::OverloadClosed);
    fleet.run_for_millis(700);
    node.link.set(Weather::Fine);
    fleet.run_for_millis(2_000);
    assert_eq!(*node.heard.late_calls.lock().unwrap(), [LateCall::Answered { given_back: 1 }]);
    assert_eq!(left(&fleet, "one"), 20);
}

#[test]
fn what_was_spent_where_the_limit_refused_the_rest_comes_back_and_no_more() {
    let fleet = Fleet::running(&rules("closed"), Setting::default());
    let node = &fleet.nodes[0];
    let _ = node.check_cost("one", 19);
    node.link.set(LATE);
    let waiting: Vec<_> = (0..2).map(|_| node.start("one")).collect();
    assert!(waiting.into_iter().all(|one| !one.wait().decision.allowed));
    node.link.set(Weather::Fine);
    fleet.run_for_millis(2_000);
    assert_eq!(*node.heard.late_calls.lock().unwrap(), [LateCall::Answered { given_back: 1 }]);
    assert_eq!(left(&fleet, "one"), 1);
}

/// Asks for less than a second while every answer comes late: what the breaker did. What was not admitted is not spent.
fn a_late_while(fleet: &Fleet, is_busy: bool) -> Vec<BreakerState> {
    let node = &fleet.nodes[0];
    node.link.set(LATE);
    let mut waiting = vec![];
    for tick in 0..400 {
        if is_busy && tick == 3 {
            fleet.executor.stand_still(Micros::from_millis(30));
        }
        waiting.push(node.start(&format!("{}", tick % 50)));
        fleet.run_for_millis(2);
    }
    let mut admitted = [0; 50];
    for (tick, one) in waiting.into_iter().enumerate() {
        admitted[tick % 50] += u64::from(one.wait().decision.allowed);
    }
    node.link.set(Weather::Fine);
    fleet.run_for_millis(2_000);
    for (user, admitted) in admitted.into_iter().enumerate() {
        assert_eq!(left(fleet, &user.to_string()), 20 - admitted, "user {user}");
    }
    node.assert_idle();
    node.heard.breaker.lock().unwrap().iter().map(|(_, state)| *state).collect()
}

#[test]
fn late_store_has_not_failed_at_once_on_a_core_that_runs_late_or_in_time() {
    for is_busy in [true, false] {
        let fleet = Fleet::running(&rules("closed"), Setting::default());
        assert_eq!(a_late_while(&fleet, is_busy), [], "{is_busy}");
    }
}

#[test]
fn no_more_than_a_few_calls_are_waited_for_and_none_for_ever() {
    let fleet = Fleet::running(&rules("closed"), Setting::default());
    let node = &fleet.nodes[0];
    // Nothing is ever answered; the breaker is kept from opening by its bound on failures.
    node.link.set(Weather::LosesReplies);
    for tick in 0..2_000 {
        drop(node.start(&format!("{tick}")));
        fleet.executor.run_for(Micros::new(500));
        assert!(node.limiter.remote_stats().unwrap().late_calls <= 64);
    }
    assert!(node.heard.breaker.lock().unwrap().iter().any(|(_, state)| *state == BreakerState::Open));
    fleet.run_for_millis(2_100);
    assert_eq!(node.limiter.remote_stats().unwrap().late_calls, 0);
    assert!(node.heard.late_calls.lock().unwrap().iter().all(|end| *end == LateCall::Lost));
}

/// Asks for so long, many different callers at once, in this weather.
fn ask_for(fleet: &Fleet, millis: u64, weather: Weather) -> Vec<super::Checked> {
    let node = &fleet.nodes[0];
    node.link.set(weather);
    let mut waiting = vec![];
    for tick in 0..millis {
        waiting.extend((0..20).map(|caller| node.start(&format!("{tick}-{caller}"))));
        fleet.run_for_millis(1);
    }
    waiting.into_iter().map(|one| one.wait()).collect()
}

#[test]
fn a_store_whose_answers_all_come_late_is_overloaded_for_two_seconds_and_has_failed_then() {
    for (millis, opened) in [(1_500, false), (3_000, true)] {
        let fleet = Fleet::running(&rules("closed"), Setting::default());
        let node = &fleet.nodes[0];
        assert_eq!(node.check("calm").source, Source::Store);
        let told = ask_for(&fleet, millis, LATE);
        let is_open =
            node.heard.breaker.lock().unwrap().iter().any(|(_, state)| *state == BreakerState::Open);
        assert_eq!(is_open, opened, "after {millis} ms");
        let in_time = told.iter().all(|one| one.took <= Micros::from_millis(10));
        assert!(in_time, "after {millis} ms");
    }
}

#[test]
fn a_store_that_is_behind_is_sent_no_more_than_it_may_have_to_answer() {
    let fleet = Fleet::running(&rules("closed"), Setting::default());
    let node = &fleet.nodes[0];
    assert_eq!(node.check("calm").source, Source::Store);
    node.link.forget_calls();
    ask_for(&fleet, 200, Weather::Slow(Micros::from_millis(14)));
    // Four calls at a time, 28 ms each, and one every 10 ms that goes to see: not four every 10 ms, which are 80.
    let calls = node.link.seen.lock().unwrap().decides.len();
    assert!((30..=60).contains(&calls), "{calls} calls in 200 ms");
    node.link.set(Weather::Fine);
    fleet.run_for_millis(120);
    assert_eq!(node.check("again").source, Source::Store, "it ends with its cause");
}
