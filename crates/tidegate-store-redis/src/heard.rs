//! Records when each server last answered decisions, and the witness.
//!
//! A decision over several servers takes several calls. If it is late as a whole although every call was answered, the cause
//! is overload, and no server is at fault.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::Micros;
use tidegate_store::{LastHeard, WitnessReport};
use tokio::time::Instant;

use crate::witness::Answers;

/// The longest that a call occupies a server: batches are sized for it.
const LONGEST_CALL: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Heard {
    /// The bound for an answer in time.
    in_time: Duration,
    since: Instant,
    nodes: Box<[HeardNode]>,
}

/// Times in us since `since`; 0 means never.
#[derive(Debug, Default)]
struct HeardNode {
    in_time: AtomicU64,
    late: AtomicU64,
    /// Its last prompt answer to the witness.
    prompt: AtomicU64,
    /// Since when the witness has had no answer, and no prompt answer; 0 if it has one or does not ask.
    silent_since: AtomicU64,
    late_since: AtomicU64,
    /// Roughly the longest recent wait of the witness for an answer, in us.
    answers_within: AtomicU64,
    /// Calls in flight to it.
    under_way: AtomicUsize,
}

impl Heard {
    pub(crate) fn new(nodes: usize, in_time: Duration) -> Self {
        Heard { in_time, since: Instant::now(), nodes: (0..nodes).map(|_| HeardNode::default()).collect() }
    }

    pub(crate) fn in_time(&self) -> Duration {
        self.in_time
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX).max(1)
    }

    /// Counts a call to `node` as in flight until it is dropped.
    pub(crate) fn under_way(&self, node: usize) -> impl Drop + use<'_> {
        struct UnderWay<'h>(&'h AtomicUsize);
        impl Drop for UnderWay<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let calls = &self.nodes[node].under_way;
        calls.fetch_add(1, Ordering::Relaxed);
        UnderWay(calls)
    }

    /// How long the calls in flight to `node` may delay its answer.
    pub(crate) fn explained(&self, node: usize) -> Duration {
        let calls = self.nodes[node].under_way.load(Ordering::Relaxed);
        LONGEST_CALL * u32::try_from(calls).unwrap_or(u32::MAX)
    }

    /// `node` answered a call after `took`.
    pub(crate) fn answered(&self, node: usize, took: Duration) {
        // With a single server, the caller already knows this.
        if self.nodes.len() == 1 {
            return;
        }
        let node = &self.nodes[node];
        let heard = if took <= self.in_time { &node.in_time } else { &node.late };
        heard.store(self.now(), Ordering::Relaxed);
    }

    /// The witness pings `node` now or soon.
    pub(crate) fn is_asked(&self, node: usize) {
        let now = self.now();
        // Only the first unanswered ping marks the start of the silence.
        for since in [&self.nodes[node].silent_since, &self.nodes[node].late_since] {
            let _ = since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The witness stops pinging `node`.
    pub(crate) fn is_not_asked(&self, node: usize) {
        self.nodes[node].silent_since.store(0, Ordering::Relaxed);
        self.nodes[node].late_since.store(0, Ordering::Relaxed);
    }

    /// `node` answered the witness after `took`.
    pub(crate) fn answers_the_witness(&self, node: usize, how: Answers, took: Duration) {
        let (now, node) = (self.now(), &self.nodes[node]);
        node.silent_since.store(0, Ordering::Relaxed);
        match how {
            Answers::Promptly => {
                node.late_since.store(0, Ordering::Relaxed);
                node.prompt.store(now, Ordering::Relaxed);
            }
            Answers::Late => node.late.store(now, Ordering::Relaxed),
        }
        // The maximum, decaying over a few answers.
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let longest = node.answers_within.load(Ordering::Relaxed);
        node.answers_within.store(took.max(longest - longest / 8), Ordering::Relaxed);
    }

    pub(crate) fn last(&self, node: usize) -> LastHeard {
        let (now, node) = (self.now(), &self.nodes[node]);
        let ago = |at: &AtomicU64| match at.load(Ordering::Relaxed) {
            0 => None,
            at => Some(Micros::new(now.saturating_sub(at))),
        };
        let witness = WitnessReport {
            prompt: ago(&node.prompt),
            silent_for: ago(&node.silent_since).unwrap_or_default(),
            late_for: ago(&node.late_since).unwrap_or_default(),
            answers_within: Micros::new(node.answers_within.load(Ordering::Relaxed)),
        };
        LastHeard { in_time: ago(&node.in_time), late: ago(&node.late), witness: Some(witness) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard() -> Heard {
        Heard::new(3, Duration::from_millis(10))
    }

    fn report(heard: &Heard, node: usize) -> WitnessReport {
        heard.last(node).witness.unwrap()
    }

    /// Waits for the next microsecond.
    fn pass(heard: &Heard) {
        let now = heard.now();
        while heard.now() == now {}
    }

    #[test]
    fn an_answer_is_heard_in_time_or_late() {
        let heard = heard();
        heard.answered(0, Duration::from_millis(10));
        heard.answered(1, Duration::from_millis(11));
        let told =
            [0, 1, 2].map(|node| heard.last(node)).map(|last| (last.in_time.is_some(), last.late.is_some()));
        assert_eq!(told, [(true, false), (false, true), (false, false)]);
    }

    #[test]
    fn any_answer_ends_a_silence_and_only_a_prompt_one_ends_lateness() {
        let heard = heard();
        assert_eq!(report(&heard, 0), WitnessReport::default(), "nobody has doubts");
        for node in [0, 1, 2] {
            heard.is_asked(node);
        }
        pass(&heard);
        heard.answers_the_witness(0, Answers::Promptly, Duration::from_millis(1));
        heard.answers_the_witness(1, Answers::Late, Duration::from_millis(40));
        let told = [0, 1, 2].map(|node| report(&heard, node));
        assert_eq!(told.map(|report| report.silent_for > Micros::ZERO), [false, false, true]);
        assert_eq!(told.map(|report| report.late_for > Micros::ZERO), [false, true, true]);
        assert_eq!(told.map(|report| report.prompt.is_some()), [true, false, false]);
        heard.is_not_asked(2);
        assert_eq!(report(&heard, 2), WitnessReport::default());
    }

    #[test]
    fn a_silence_lasts_from_the_first_question_that_was_not_answered() {
        let heard = heard();
        heard.is_asked(0);
        let first = heard.nodes[0].silent_since.load(Ordering::Relaxed);
        pass(&heard);
        heard.is_asked(0);
        assert_eq!(heard.nodes[0].silent_since.load(Ordering::Relaxed), first);
    }

    #[test]
    fn the_longest_wait_for_an_answer_is_forgotten_little_by_little() {
        let heard = heard();
        let mut told = Vec::new();
        for millis in [80, 1, 1, 100] {
            heard.answers_the_witness(0, Answers::Late, Duration::from_millis(millis));
            told.push(report(&heard, 0).answers_within);
        }
        assert_eq!(told, [80_000, 70_000, 61_250, 100_000].map(Micros::new));
    }

    #[test]
    fn what_is_under_way_explains_a_late_answer() {
        let heard = heard();
        let calls = [heard.under_way(0), heard.under_way(0)];
        assert_eq!(heard.explained(0), Duration::from_millis(2));
        drop(calls);
        assert_eq!(heard.explained(0), Duration::ZERO);
    }
}
