//! Calls that are answered after everybody was let go.
//!
//! A call that was sent spends, whoever still waits. So it is heard to its end: what was spent for requests that were decided
//! without it is given back, and where this core runs late its answer proves that the store lives. How many such calls there
//! are, and for how long, is bounded; what the others spent stays spent.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_core::{Micros, Timestamp};
use tidegate_store::{BatchOutcomes, Clock, MOST_LAG, Request, StoreError};

use super::Remote;
use super::carry::{CallEnd, CallSlot};
use super::lag::Arrival;
use super::queue::Item;
use crate::observer::{LateCall, StoreCall};
use crate::runtime::within;

/// So many calls of one core may be late at once.
const MOST_LATE: usize = 64;
/// So long after it was given up a call to the store is still heard, if the store itself waits as long.
pub const LATE_CALLS_HEARD_FOR: Micros = MOST_LAG;

/// The late calls of one core.
#[derive(Default)]
pub(super) struct LateCalls(AtomicUsize);

impl LateCalls {
    /// A place among them, until it is dropped.
    fn enter(&self) -> Option<impl Drop + use<'_>> {
        struct Place<'l>(&'l LateCalls);
        impl Drop for Place<'_> {
            fn drop(&mut self) {
                self.0.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let place = Place(self);
        (self.0.fetch_add(1, Ordering::Relaxed) < MOST_LATE).then_some(place)
    }

    pub(super) fn len(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// What was sent, and when.
pub(super) struct Sent<'c> {
    pub(super) items: &'c [&'c Item],
    pub(super) requests: &'c [Request<'c>],
    pub(super) at: Arrival,
}

impl Remote {
    /// Nothing came of `call` in time: lets everybody go who waits for it, lets the next call leave, and hears this one to its
    /// end.
    pub(super) async fn after_its_time(
        self: &Arc<Self>,
        slot: &CallSlot,
        sent: Sent<'_>,
        call: Pin<&mut impl Future<Output = Result<BatchOutcomes, StoreError>>>,
    ) -> CallEnd {
        let nodes = &slot.id.nodes;
        let too_late = self.timed_out(nodes, self.timeout);
        let end = self.note(StoreCall::Decide, nodes, sent.at, Some(&too_late));
        // Leases that it takes go back by their names: now, and again if it answers after that.
        self.lose(sent.items, nodes, &too_late, end);
        let Some(_place) = self.late.enter() else {
            self.observer.late_call(LateCall::Lost);
            return end;
        };
        slot.pass_on(end);
        let answer = within(&*self.runtime, LATE_CALLS_HEARD_FOR, call).await.unwrap_or(Err(too_late));
        match answer.and_then(|told| self.complete(told, sent.requests)) {
            Ok(told) => {
                self.lives(nodes, sent.at.at);
                let given_back = self.answer_all(&sent, &told);
                self.observer.late_call(LateCall::Answered { given_back });
            }
            Err(_) => self.observer.late_call(LateCall::Lost),
        }
        end
    }

    /// `nodes` have answered what was sent then, too late for everybody. That is as good as silence where this core keeps up,
    /// or after so long.
    fn lives(&self, nodes: &[usize], sent: Timestamp) {
        let now = self.clock.now();
        if !self.lag.is_busy(now) || now.since(sent) >= self.busy_patience() {
            return;
        }
        for node in nodes {
            self.way_to(*node).answered_at.store(now.as_micros(), Ordering::Relaxed);
            self.tell(self.breakers.answered(*node));
        }
    }
}
