//! Circuit breakers, one per store node: once the prober says that the node has failed, or a few consecutive calls were refused,
//! no request waits for that node until it answers. Consecutive means in time: calls that were in flight together fail together,
//! and count once.
//!
//! A breaker is given events with the node's uptime, so that no step of a clock holds it open; it makes no calls and reads no
//! clock. Late failures of calls that were in flight when it opened prolong nothing, and one genuine answer closes it.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tidegate_core::Micros;

use crate::observer::BreakerState;

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakerConfig {
    /// Consecutive failures that open it.
    pub failures: NonZeroU32,
    /// After this long one request tries again, unless a health probe has closed it before.
    pub open_for: Micros,
}

impl BreakerConfig {
    /// A breaker that opens for `open_for` after `failures` consecutive failures.
    #[must_use]
    pub const fn new(failures: NonZeroU32, open_for: Micros) -> Self {
        BreakerConfig { failures, open_for }
    }
}

impl Default for BreakerConfig {
    fn default() -> Self {
        BreakerConfig {
            failures: NonZeroU32::new(3).expect("three is not zero"),
            open_for: Micros::from_secs(30),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Condition {
    Closed {
        failures: u32,
        /// When the last of them was recorded: a call in flight at that time is part of the same stall.
        noted: Micros,
    },
    Open {
        since: Micros,
    },
    /// A trial request is in flight; if it is not sent after all, the breaker reopens as of `opened`.
    Trying {
        since: Micros,
        opened: Micros,
    },
}

const CLOSED: Condition = Condition::Closed { failures: 0, noted: Micros::ZERO };

/// The breaker of one node.
#[derive(Debug)]
struct Breaker {
    condition: Condition,
    config: BreakerConfig,
}

/// A trial request without a result (its caller left before it was sent) is replaced after this.
const PATIENCE: Micros = Micros::from_secs(1);

impl Breaker {
    fn state(&self) -> BreakerState {
        match self.condition {
            Condition::Closed { .. } => BreakerState::Closed,
            Condition::Open { .. } => BreakerState::Open,
            Condition::Trying { .. } => BreakerState::HalfOpen,
        }
    }

    /// Whether one more request may go to this node. Changes nothing.
    fn lets_pass(&self, now: Micros) -> bool {
        match self.condition {
            Condition::Closed { .. } => true,
            Condition::Open { since } => has_passed(since, self.config.open_for, now),
            Condition::Trying { since, .. } => has_passed(since, PATIENCE, now),
        }
    }

    /// Sends one more request to this node, if allowed. Once the time is up, the first to claim is the trial.
    fn claim(&mut self, now: Micros) -> bool {
        let passes = self.lets_pass(now);
        match self.condition {
            Condition::Open { since: opened } | Condition::Trying { opened, .. } if passes => {
                self.condition = Condition::Trying { since: now, opened };
            }
            _ => {}
        }
        passes
    }

    /// The trial request was refused before it was sent: the next may try.
    fn unclaim(&mut self) {
        if let Condition::Trying { opened, .. } = self.condition {
            self.condition = Condition::Open { since: opened };
        }
    }

    fn answered(&mut self) {
        self.condition = CLOSED;
    }

    /// The node has failed, whatever its calls say.
    fn open(&mut self, now: Micros) {
        if !matches!(self.condition, Condition::Open { .. }) {
            self.condition = Condition::Open { since: now };
        }
    }

    /// Whether it has been open since before `when`.
    fn opened_before(&self, when: Micros) -> bool {
        match self.condition {
            Condition::Closed { .. } => false,
            Condition::Open { since: opened } | Condition::Trying { opened, .. } => opened < when,
        }
    }

    /// A call sent at `sent` failed. Calls in flight together that fail count as one failure.
    fn failed(&mut self, sent: Micros, now: Micros) {
        self.condition = match self.condition {
            same @ Condition::Closed { failures, noted } if failures > 0 && sent < noted => same,
            Condition::Closed { failures, .. } if failures + 1 < self.config.failures.get() => {
                Condition::Closed { failures: failures + 1, noted: now }
            }
            Condition::Closed { .. } | Condition::Trying { .. } => Condition::Open { since: now },
            open @ Condition::Open { .. } => open,
        };
    }
}

fn has_passed(since: Micros, span: Micros, now: Micros) -> bool {
    now.saturating_sub(since) >= span
}

/// The breakers of all nodes.
#[derive(Debug)]
pub(crate) struct Breakers {
    nodes: Box<[Mutex<Breaker>]>,
    /// How many are not closed: nearly always 0, and then passing takes no lock.
    not_closed: AtomicUsize,
}

/// A breaker's state change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) node: usize,
    pub(crate) state: BreakerState,
}

impl Breakers {
    pub(crate) fn new(nodes: usize, config: BreakerConfig) -> Self {
        let closed = || Mutex::new(Breaker { condition: CLOSED, config });
        Breakers { nodes: (0..nodes.max(1)).map(|_| closed()).collect(), not_closed: AtomicUsize::new(0) }
    }

    pub(crate) fn all_closed(&self) -> bool {
        self.not_closed.load(Ordering::Acquire) == 0
    }

    pub(crate) fn state(&self, node: usize) -> BreakerState {
        self.node(node).lock().state()
    }

    /// The nodes whose breakers are not closed.
    pub(crate) fn not_closed(&self) -> impl Iterator<Item = usize> {
        let none = self.all_closed();
        (0..self.nodes.len()).filter(move |node| !none && self.state(*node) != BreakerState::Closed)
    }

    /// Whether one more request may go to `node`. Changes nothing.
    pub(crate) fn lets_pass(&self, node: usize, now: Micros) -> bool {
        self.all_closed() || self.node(node).lock().lets_pass(now)
    }

    /// Sends one more request to `node`, if allowed; also returns the state change. Call once per request: the first to claim
    /// a node whose time is up is the only trial.
    pub(crate) fn claim(&self, node: usize, now: Micros) -> (bool, Option<Change>) {
        if self.all_closed() {
            return (true, None);
        }
        self.change(node, |breaker| breaker.claim(now))
    }

    /// A request that had claimed `node` was not sent.
    pub(crate) fn unclaim(&self, node: usize) -> Option<Change> {
        self.change(node, Breaker::unclaim).1
    }

    pub(crate) fn answered(&self, node: usize) -> Option<Change> {
        self.change(node, Breaker::answered).1
    }

    /// `node` has failed.
    pub(crate) fn open(&self, node: usize, now: Micros) -> Option<Change> {
        self.change(node, |breaker| breaker.open(now)).1
    }

    /// Whether the breaker of `node` has been open since before `when`.
    pub(crate) fn opened_before(&self, node: usize, when: Micros) -> bool {
        !self.all_closed() && self.node(node).lock().opened_before(when)
    }

    /// A call to `node` sent at `sent` failed.
    pub(crate) fn failed(&self, node: usize, sent: Micros, now: Micros) -> Option<Change> {
        self.change(node, |breaker| breaker.failed(sent, now)).1
    }

    fn change<T>(&self, node: usize, act: impl FnOnce(&mut Breaker) -> T) -> (T, Option<Change>) {
        let mut breaker = self.node(node).lock();
        let before = breaker.state();
        let told = act(&mut breaker);
        let state = breaker.state();
        match (before, state) {
            (BreakerState::Closed, BreakerState::Closed) => {}
            (BreakerState::Closed, _) => drop(self.not_closed.fetch_add(1, Ordering::AcqRel)),
            (_, BreakerState::Closed) => drop(self.not_closed.fetch_sub(1, Ordering::AcqRel)),
            _ => {}
        }
        (told, (before != state).then_some(Change { node, state }))
    }

    /// A store that grew may have nodes without a breaker of their own.
    fn node(&self, node: usize) -> &Mutex<Breaker> {
        &self.nodes[node % self.nodes.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: BreakerConfig =
        BreakerConfig { failures: NonZeroU32::new(3).unwrap(), open_for: Micros::from_secs(30) };

    fn at(seconds: u64) -> Micros {
        Micros::from_secs(1_000 + seconds)
    }

    fn open_at(now: Micros) -> Breakers {
        let breakers = Breakers::new(2, CONFIG);
        for _ in 0..3 {
            breakers.failed(0, now, now);
        }
        breakers
    }

    #[test]
    fn three_failures_in_a_row_open_it_and_an_answer_in_between_starts_the_count_anew() {
        let breakers = Breakers::new(1, CONFIG);
        for failures in [2, 2, 3] {
            for _ in 0..failures {
                assert!(breakers.claim(0, at(0)).0);
                breakers.failed(0, at(0), at(0));
            }
            if failures < 3 {
                assert_eq!(breakers.answered(0), None);
            }
        }
        assert_eq!(breakers.state(0), BreakerState::Open);
        assert!(!breakers.claim(0, at(0)).0);
    }

    #[test]
    fn a_node_that_has_failed_opens_it_at_once_and_a_late_trial_again() {
        let breakers = Breakers::new(1, CONFIG);
        let opened = Some(Change { node: 0, state: BreakerState::Open });
        assert_eq!(breakers.open(0, at(0)), opened);
        assert_eq!(breakers.open(0, at(20)), None);
        assert!(breakers.claim(0, at(30)).0, "that prolonged nothing");
        assert_eq!(breakers.open(0, at(30)), opened);
        assert!(!breakers.claim(0, at(59)).0);
        assert_eq!([30, 31].map(|second| breakers.opened_before(0, at(second))), [false, true]);
    }

    #[test]
    fn while_one_node_is_open_another_passes() {
        let breakers = open_at(at(0));
        assert!(!breakers.claim(0, at(1)).0);
        assert!(breakers.claim(1, at(1)).0);
        assert_eq!(breakers.not_closed().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn after_its_time_one_request_tries_and_the_others_do_not_wait() {
        let breakers = open_at(at(0));
        assert!(!breakers.claim(0, at(29)).0);
        let (passes, change) = breakers.claim(0, at(30));
        assert!(passes);
        assert_eq!(change, Some(Change { node: 0, state: BreakerState::HalfOpen }));
        assert!(!breakers.claim(0, at(30)).0);
        assert_eq!(breakers.failed(0, at(30), at(30)), Some(Change { node: 0, state: BreakerState::Open }));
        assert!(!breakers.claim(0, at(59)).0);
        assert!(breakers.claim(0, at(60)).0);
        assert_eq!(breakers.answered(0), Some(Change { node: 0, state: BreakerState::Closed }));
        assert!(breakers.all_closed());
    }

    #[test]
    fn a_request_that_went_to_see_and_was_lost_is_replaced() {
        let breakers = open_at(at(0));
        assert!(breakers.claim(0, at(30)).0);
        assert!(breakers.claim(0, at(31)).0);
    }

    #[test]
    fn failures_of_calls_that_were_under_way_do_not_prolong_it() {
        let breakers = open_at(at(0));
        breakers.failed(0, at(0), at(20));
        assert!(breakers.claim(0, at(30)).0);
    }

    #[test]
    fn to_ask_whether_a_request_may_pass_uses_up_nothing() {
        let breakers = open_at(at(0));
        assert!(breakers.lets_pass(0, at(30)) && breakers.lets_pass(0, at(30)));
        assert_eq!(breakers.state(0), BreakerState::Open);
    }

    #[test]
    fn a_trial_that_was_not_sent_is_the_next_ones() {
        let breakers = open_at(at(0));
        assert!(breakers.claim(0, at(30)).0);
        assert_eq!(breakers.unclaim(0), Some(Change { node: 0, state: BreakerState::Open }));
        assert!(breakers.claim(0, at(30)).0);
    }

    #[test]
    fn calls_that_fail_together_have_failed_once() {
        let breakers = Breakers::new(1, CONFIG);
        for _ in 0..100 {
            breakers.failed(0, at(0), at(1));
        }
        assert_eq!(breakers.state(0), BreakerState::Closed);
        breakers.failed(0, at(1), at(2));
        breakers.failed(0, at(1), at(3));
        assert_eq!(breakers.state(0), BreakerState::Closed);
        breakers.failed(0, at(2), at(3));
        assert_eq!(breakers.state(0), BreakerState::Open);
    }
}
