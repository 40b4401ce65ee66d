//! Calls that are answered after their requests have stopped waiting.
//!
//! A call that was sent spends, whether or not a request still waits, unless it reaches the store so late that the store
//! discards it. So it is awaited to its end, and what was spent for requests decided without it is refunded. The count and
//! duration of such calls are bounded; what the others spent stays spent.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;
use tidegate_core::Micros;
use tidegate_store::{BatchOutcomes, Clock, MOST_LAG, Request, StoreError};

use super::carry::{CallEnd, CallSlot};
use super::judge::Judge;
use super::lag::Arrival;
use super::queue::Item;
use super::{NodeStats, Remote};
use crate::observer::{LateCall, StoreCall};
use crate::runtime::within;

/// The most late calls of one core at once.
const MOST_LATE: usize = 64;
/// How long after its deadline a call is still awaited, if the store itself waits as long.
pub const LATE_CALLS_HEARD_FOR: Micros = MOST_LAG;

/// The pause between two tries of background work that was not applied.
const LATE_RETRY_EVERY: Micros = Micros::from_millis(50);

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

/// A late call that some nodes have yet to answer, until it is dropped.
struct Behind<'r>(SmallVec<[&'r NodeStats; 2]>);

impl<'r> Behind<'r> {
    fn new(ways: impl Iterator<Item = &'r NodeStats>, uptime: Micros) -> Self {
        let ways: SmallVec<[&NodeStats; 2]> = ways.collect();
        for way in &ways {
            way.late_calls.fetch_add(1, Ordering::Relaxed);
            way.late_since.store(uptime.get(), Ordering::Relaxed);
        }
        Behind(ways)
    }
}

impl Drop for Behind<'_> {
    fn drop(&mut self) {
        for way in &self.0 {
            way.late_calls.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Remote {
    /// `call` was not answered in time: ends every wait for it, frees its slot for the next call, and awaits this one to its
    /// end.
    pub(super) async fn after_its_time(
        self: &Arc<Self>,
        slot: &CallSlot,
        sent: Sent<'_>,
        mut call: Pin<&mut impl Future<Output = Result<BatchOutcomes, StoreError>>>,
    ) -> CallEnd {
        let nodes = &slot.id.nodes;
        let too_late = self.timed_out(nodes, self.timeout);
        let end = self.note(StoreCall::Decide, nodes, sent.at, Some(&too_late));
        // Leases that it takes are released by name: now, and again if it answers later.
        self.lose(sent.items, nodes, &too_late, end);
        let Some(_place) = self.late.enter() else {
            self.observer.late_call(LateCall::Lost);
            return end;
        };
        let behind = Behind::new(self.still_to_answer(nodes), self.clock.uptime());
        slot.pass_on(end);
        // By then the server has answered, or has failed.
        let soon = Judge::silence(self.timeout).min(LATE_CALLS_HEARD_FOR);
        let mut answer = within(&*self.runtime, soon, call.as_mut()).await;
        drop(behind);
        if answer.is_none() {
            answer = within(&*self.runtime, LATE_CALLS_HEARD_FOR.saturating_sub(soon), call).await;
        }
        let answer = answer.unwrap_or(Err(too_late));
        match answer.and_then(|told| self.complete(told, sent.requests)) {
            Ok(told) => {
                let given_back = self.answer_all(&sent, &told);
                self.observer.late_call(LateCall::Answered { given_back });
            }
            Err(StoreError::TooLate { .. }) => {
                self.observer.late_call(LateCall::Answered { given_back: 0 });
            }
            Err(error) => {
                if !error.is_late() {
                    self.blame(nodes, &error, sent.at.uptime);
                }
                self.observer.late_call(LateCall::Lost);
            }
        }
        end
    }

    /// Whether a call may go to `nodes` now. If one of them has as many unanswered late calls as calls may be in flight, what
    /// is sent would be late too, and delay the next further; requests whose deadline passes meanwhile have spent nothing.
    /// One trial call at a time goes out, in case those late calls were lost.
    pub(super) fn may_send(&self, nodes: &[usize]) -> bool {
        let is_behind = |node: &&usize| {
            let way = self.stats_of(**node);
            let late_since = Micros::new(way.late_since.load(Ordering::Relaxed));
            way.late_calls.load(Ordering::Relaxed) >= self.queues.bounds().calls
                && !self.has_answered_since(**node, late_since)
        };
        let behind = || nodes.iter().filter(is_behind).map(|node| self.stats_of(*node));
        let uptime = self.clock.uptime();
        // A call takes the turns only if it may try all of them.
        behind().all(|way| way.next_try.is_due(uptime))
            && behind().all(|way| way.next_try.take(uptime, self.timeout))
    }

    /// Does background work within the time for which late calls are awaited, again while it certainly was not applied: after a
    /// pause the connection may have to be made anew. Its result says nothing about the store's health: many of these come
    /// exactly when the store is overloaded.
    pub(crate) async fn call_late<T, W>(&self, call: StoreCall, work: impl Fn() -> W)
    where
        W: Future<Output = Result<T, StoreError>>,
    {
        let began = self.clock.uptime();
        loop {
            let sent = self.clock.uptime();
            let left = LATE_CALLS_HEARD_FOR.saturating_sub(sent.saturating_sub(began));
            let answer = within(&*self.runtime, left, work()).await;
            self.observer.store_called(call, self.clock.uptime().saturating_sub(sent));
            let Some(Err(error)) = answer else { return };
            self.observer.store_failed(&error);
            if left == Micros::ZERO || !error.is_certainly_not_applied() {
                return;
            }
            self.runtime.sleep(LATE_RETRY_EVERY).await;
        }
    }
}
