//! When each server last answered.
//!
//! A decision over several servers takes several calls. Where it comes too late as a whole although each of them was answered,
//! there is too much to do, and no server is to blame.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::Micros;
use tidegate_store::LastHeard;
use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct Heard {
    /// What counts as in time.
    in_time: Duration,
    since: Instant,
    nodes: Box<[HeardNode]>,
}

/// In us since then; 0 for never.
#[derive(Debug, Default)]
struct HeardNode {
    in_time: AtomicU64,
    late: AtomicU64,
    alive: AtomicU64,
}

impl Heard {
    pub(crate) fn new(nodes: usize, in_time: Duration) -> Self {
        Heard { in_time, since: Instant::now(), nodes: (0..nodes).map(|_| HeardNode::default()).collect() }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// `node` answered after `took`.
    pub(crate) fn answered(&self, node: usize, took: Duration) {
        // With one server, who waits knows as much.
        if self.nodes.len() == 1 {
            return;
        }
        let (now, node) = (self.now().max(1), &self.nodes[node]);
        let heard = if took <= self.in_time { &node.in_time } else { &node.late };
        heard.store(now, Ordering::Relaxed);
    }

    /// `node`, which had missed a deadline, answered something small so long after it should have, what was under way before
    /// left aside.
    pub(crate) fn proved_alive(&self, node: usize, after: Duration) {
        let node = &self.nodes[node];
        let heard = if after <= self.in_time { &node.alive } else { &node.late };
        heard.store(self.now().max(1), Ordering::Relaxed);
    }

    pub(crate) fn last(&self, node: usize) -> LastHeard {
        let now = self.now();
        let ago = |at: &AtomicU64| match at.load(Ordering::Relaxed) {
            0 => None,
            at => Some(Micros::new(now.saturating_sub(at))),
        };
        let HeardNode { in_time, late, alive } = &self.nodes[node];
        LastHeard { in_time: ago(in_time), late: ago(late), alive: ago(alive) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_heard_in_time_or_late() {
        let heard = Heard::new(3, Duration::from_millis(10));
        heard.answered(0, Duration::from_millis(10));
        heard.answered(1, Duration::from_millis(11));
        let told =
            [0, 1, 2].map(|node| heard.last(node)).map(|last| (last.in_time.is_some(), last.late.is_some()));
        assert_eq!(told, [(true, false), (false, true), (false, false)]);
    }

    #[test]
    fn only_a_prompt_answer_proves_that_a_server_keeps_up() {
        let heard = Heard::new(2, Duration::from_millis(10));
        heard.proved_alive(0, Duration::from_millis(10));
        heard.proved_alive(1, Duration::from_millis(11));
        let told =
            [0, 1].map(|node| heard.last(node)).map(|last| (last.alive.is_some(), last.late.is_some()));
        assert_eq!(told, [(true, false), (false, true)]);
    }
}
