//! The clock of a node that steps back: spans on the node are measured by its uptime.

use tidegate_core::Micros;
use tidegate_limiter::{BreakerState, Source};

use super::store::Weather;
use super::{Fleet, Setting};

const RULES: &str = "- { name: a, key: [user], on_store_failure: closed, limits: [{ algorithm: fixed_window, limit: 100, window: 1h }] }";
const HOUR: Micros = Micros::from_secs(3_600);

#[test]
fn a_waiting_request_keeps_its_deadline_when_the_clock_steps_back() {
    let fleet = Fleet::new(RULES, Setting::default());
    let node = &fleet.nodes[0];
    node.link.set(Weather::Hangs);
    let one = node.start("one");
    fleet.run_for_millis(4);
    node.set_back(HOUR);
    assert_eq!(one.wait().took, Micros::from_millis(10));
}

#[test]
fn a_breaker_closes_when_its_server_is_back_though_the_clock_stepped_back() {
    let fleet = Fleet::running(RULES, Setting::default());
    let node = &fleet.nodes[0];
    node.link.set(Weather::Hangs);
    // A probe each 100 ms, and 200 ms of silence.
    fleet.run_for_millis(400);
    let last = || node.heard.breaker.lock().unwrap().last().map(|(_, state)| *state);
    assert_eq!(last(), Some(BreakerState::Open));
    node.set_back(HOUR);
    node.link.set(Weather::Fine);
    fleet.run_for_millis(2_000);
    assert_eq!(last(), Some(BreakerState::Closed), "and no request tried");
}

#[test]
fn refusals_are_repeated_after_the_clock_stepped_back() {
    let rules = "- { name: a, key: [user], limits: [{ algorithm: fixed_window, limit: 1, window: 1h }] }";
    let fleet = Fleet::new(rules, Setting::default());
    let node = &fleet.nodes[0];
    let sources = |checks: usize| (0..checks).map(|_| node.check("one").source).collect::<Vec<_>>();
    assert_eq!(sources(3), [Source::Store, Source::Store, Source::DenyCache]);
    node.set_back(HOUR);
    assert_eq!(sources(2), [Source::Store, Source::DenyCache], "one call too many is the safe mistake");
}
