//! The clock of a node that steps back: deadlines are measured by its uptime.

use tidegate_core::Micros;

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
