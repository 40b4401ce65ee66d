//! One call from its start to its end: takes what waits, asks the store, answers everybody in it.
//!
//! A task of the runtime's does it, so a request that is dropped takes nobody else's answer along. Nothing that may have been
//! applied is sent again.

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tidegate_core::{Hits, Micros, Outcome, Stance, Timestamp};
use tidegate_store::{BatchOutcomes, Clock, Outcomes, Request, RequestOutcomes, Slice, Spend, StoreError};

use super::breaker::BreakerState;
use super::lag::Arrival;
use super::queue::{IsFirst, Item, QueueId};
use super::{Overload, Remote, StoreAnswer, StoreReply, StoreTicket, TakenLeases};
use crate::decision::Source;
use crate::deny_cache::{AnsweredCell, Certainty};
use crate::observer::StoreCall;
use crate::owned::OwnedSpend;
use crate::runtime::Task;

/// Carries what gathers to the store, call after call, until nobody waits.
async fn drive(mut slot: CallSlot) {
    let (remote, id) = (slot.remote.clone(), slot.id.clone());
    remote.note_late_start(slot.started);
    while let Some((items, another)) = remote.queues.next(&id, slot.is_first) {
        (slot.items, slot.is_first) = (items, IsFirst::No);
        if another {
            remote.start_call(id.clone());
        }
        remote.still_to_ask(&mut slot.items, &id);
        let end = remote.carry(&slot.items, &id).await;
        remote.queues.is_back(&id, &std::mem::take(&mut slot.items));
        if end == CallEnd::Silence && remote.is_away(&id.nodes) {
            // Who waits behind a call that nobody answered would only wait for the next to fail.
            return;
        }
    }
    slot.is_open = false;
}

/// A busy core takes a store for silent that has not answered for so many times as long as a call may take.
const BUSY_PATIENCE: u64 = 20;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEnd {
    /// The store answered, to this call or to another since.
    Answered,
    /// It failed at once: the next call may fare better.
    Failed,
    /// Nothing came of it until it was too late for everybody.
    Silence,
}

/// One of the few calls to some nodes of the store. Dropped while it is open, also because a runtime ends that never ran its
/// task, it lets everybody who waits go without an answer.
struct CallSlot {
    remote: Arc<Remote>,
    id: QueueId,
    /// What is under way.
    items: Vec<Item>,
    started: Timestamp,
    is_first: IsFirst,
    is_open: bool,
}

impl Drop for CallSlot {
    fn drop(&mut self) {
        if self.is_open {
            self.remote.queues.is_back(&self.id, &self.items);
            drop(self.remote.queues.end(&self.id, self.is_first));
        }
    }
}

impl Remote {
    /// Starts a task that carries what waits for `id`.
    pub(super) fn start_call(self: &Arc<Self>, id: QueueId) {
        let (items, started, is_first) = (Vec::new(), self.clock.now(), IsFirst::Yes);
        let slot = CallSlot { remote: self.clone(), id, items, started, is_first, is_open: true };
        let task: Task = Box::pin(drive(slot));
        self.runtime.spawn(task);
    }

    /// A task that was started at `started` runs now.
    fn note_late_start(&self, started: Timestamp) {
        let now = self.clock.now();
        self.lag.note(now, Slice::of(self.timeout).lag(Micros::ZERO, now.since(started)));
    }

    /// Leaves in `items` only the waiters for whom the store must still be asked: not who has left. Who is refused for a
    /// reason that has become known meanwhile is answered; who would have its answer too late is overloaded now.
    fn still_to_ask(&self, items: &mut [Item], id: &QueueId) {
        let now = self.clock.now();
        // Half of its time is always enough to be sent: one slow call must not keep others from finding out.
        let needs = self.expected_call(&id.nodes).min(Micros::new(self.timeout.get() / 2));
        let mut late = 0;
        for item in items {
            item.waiters.retain(|ticket| !ticket.is_over());
            self.refuse_meanwhile(item, now);
            item.waiters.retain(|ticket| {
                let left = self.time_left(*ticket.question());
                let is_late = left <= needs && left < self.timeout;
                if is_late {
                    late += 1;
                    ticket.fill(StoreReply::Overloaded);
                }
                !is_late
            });
        }
        if late > 0 {
            self.observer.overloaded(Overload::Deadline, late);
        }
    }

    /// Answers the waiters of `item` if the store has refused its like since they came.
    fn refuse_meanwhile(&self, item: &mut Item, now: Timestamp) {
        if item.spends.iter().any(|spend| spend.cell.limit.counts_refused()) {
            return;
        }
        let cells = item.spends.iter().map(OwnedSpend::cached);
        let Some(outcomes) = self.deny_cache.refusal(cells, (now, Certainty::Known)) else { return };
        for ticket in item.waiters.drain(..) {
            self.observer.deny_cache_hit();
            ticket.fill(StoreReply::known(outcomes.clone()));
        }
    }

    /// Carries `items` for which anybody waits to the store, and answers everybody in them.
    async fn carry(self: &Arc<Self>, items: &[Item], id: &QueueId) -> CallEnd {
        let items: Vec<&Item> = items.iter().filter(|item| !item.waiters.is_empty()).collect();
        if items.is_empty() {
            return CallEnd::Answered;
        }
        let spends: Vec<SmallVec<[Spend<'_>; 1]>> =
            items.iter().map(|item| item.spends.iter().map(OwnedSpend::as_spend).collect()).collect();
        let requests: Vec<Request<'_>> = items
            .iter()
            .zip(&spends)
            .map(|(item, spends)| Request { spends, count: count_of(&item.waiters) })
            .collect();
        let sent = self.arrival();
        self.observer.batch_sent(items.iter().map(|item| item.waiters.len()).sum());
        let answer = self.in_time(&items, id, sent, self.store.decide(&requests).answer()).await;
        let answer = answer.and_then(|told| self.complete(told, &requests));
        let end = self.note(StoreCall::Decide, &id.nodes, sent, answer.as_ref().err());
        match answer {
            Ok(told) => {
                for (item, told) in items.iter().zip(told.per_request(&requests)) {
                    self.answer(item, &told, sent.at);
                }
            }
            Err(error) => self.lose(&items, &id.nodes, &error, end),
        }
        end
    }

    /// Awaits `call`, which was sent at `sent`, for as long as the store may take. Those who wait for it have deadlines of
    /// their own.
    async fn in_time<T>(
        &self,
        items: &[&Item],
        id: &QueueId,
        sent: Arrival,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut call = pin!(call);
        loop {
            let left = self.time_left(sent);
            if left == Micros::ZERO {
                return Err(self.timed_out(&id.nodes, self.timeout));
            }
            let first = self.give_up_late(items, id).unwrap_or(left);
            if let Some(answer) = self.for_a_slice(left.min(first), call.as_mut()).await {
                return answer;
            }
        }
    }

    /// Lets those go whose time is over, and says how much the first of the others has left.
    fn give_up_late(&self, items: &[&Item], id: &QueueId) -> Option<Micros> {
        let mut first: Option<Micros> = None;
        let mut late = 0;
        let waiters = items.iter().flat_map(|item| item.waiters.iter().map(move |ticket| (item, ticket)));
        for (item, ticket) in waiters.filter(|(_, ticket)| !ticket.is_over()) {
            let left = self.time_left(*ticket.question());
            if left > Micros::ZERO {
                first = Some(first.map_or(left, |first| first.min(left)));
            } else if self.is_away(&id.nodes) {
                ticket.give_up();
            } else {
                late += 1;
                ticket.fill(StoreReply::Overloaded);
                item.late.fetch_add(1, Ordering::Relaxed);
            }
        }
        if late > 0 {
            self.observer.overloaded(Overload::Deadline, late);
        }
        first
    }

    /// Answers everybody in `item`, each by its place, whether or not they are still there.
    fn answer(self: &Arc<Self>, item: &Item, told: &RequestOutcomes<'_>, sent: Timestamp) {
        let count = count_of(&item.waiters).get();
        self.note_late_answers(item);
        // What the last of them was told is what the cells say now.
        for (spend, outcome) in item.spends.iter().zip(told.at(count - 1)) {
            self.learn(spend, outcome, sent);
        }
        // Equal requests have no order among them: who has left takes nobody's place.
        let (here, gone): (Vec<&StoreTicket>, Vec<&StoreTicket>) =
            item.waiters.iter().partition(|ticket| !ticket.is_over());
        let mut spent_for_nobody = 0;
        for (place, ticket) in (0..count).zip(here.iter().chain(&gone)) {
            let outcomes: Outcomes = told.at(place).collect();
            let passes = passes(item, &outcomes);
            spent_for_nobody += u64::from(passes && place as usize >= here.len());
            let leases = if passes { TakenLeases::of(&item.spends, &self.orphans) } else { None };
            let answer = StoreAnswer { outcomes, source: Source::Store, leases };
            ticket.fill(StoreReply::Answered(answer));
        }
        let late = item.late.load(Ordering::Relaxed) as u64;
        self.give_back(item, spent_for_nobody.min(late), sent);
    }

    /// Gives back what the store spent for `requests` that were late, and were decided without it.
    fn give_back(self: &Arc<Self>, item: &Item, requests: u64, sent: Timestamp) {
        if requests == 0 {
            return;
        }
        let now = self.clock.now();
        let hits = |spend: &OwnedSpend| Hits::new(spend.ask.hits.get().saturating_mul(requests));
        let counted = item.spends.iter().filter(|spend| !spend.cell.limit.takes_lease());
        self.refund_soon(counted.map(|spend| (spend.cell.clone(), hits(spend), now.since(sent))).collect());
        item.spends.iter().for_each(|spend| self.deny_cache.forget(spend.hash, now));
    }

    /// Counts those who are answered after their deadline because this core did not run.
    fn note_late_answers(&self, item: &Item) {
        let now = self.clock.now();
        let is_late = |ticket: &&StoreTicket| now.since(ticket.question().at) > self.timeout;
        let late = item.waiters.iter().filter(is_late).filter(|ticket| !ticket.is_over()).count();
        if late > 0 {
            self.observer.overloaded(Overload::OwnLag, late);
        }
    }

    /// Remembers one answer of the store.
    fn learn(&self, spend: &OwnedSpend, outcome: Outcome, sent: Timestamp) {
        let (limit, version, hits) = (&spend.cell.limit, spend.version, spend.ask.hits);
        let received = self.clock.now();
        self.deny_cache.remember(spend.hash, &AnsweredCell { limit, version, hits, outcome, sent, received });
        if spend.approximate {
            self.local.hear(spend, &outcome, received);
        }
    }

    /// Whether one of `nodes` has failed. A call that was not answered is no failure yet: Redis pauses for tens of
    /// milliseconds when many keys expire, and so does a machine that is busy. Until a breaker says so it is overload.
    fn is_away(&self, nodes: &[usize]) -> bool {
        nodes.iter().any(|node| self.breakers.state(*node) != BreakerState::Closed)
    }

    /// Nobody in `items` is answered. Leases that may have been taken nevertheless go back by their names.
    fn lose(&self, items: &[&Item], nodes: &[usize], error: &StoreError, end: CallEnd) {
        if !error.is_certainly_not_applied() {
            items.iter().for_each(|item| drop(TakenLeases::of(&item.spends, &self.orphans)));
        }
        let failed = end == CallEnd::Failed || (end == CallEnd::Silence && self.is_away(nodes));
        let mut late = 0;
        for ticket in items.iter().flat_map(|item| &item.waiters).filter(|ticket| !ticket.is_over()) {
            if failed {
                ticket.give_up();
            } else {
                late += 1;
                ticket.fill(StoreReply::Overloaded);
            }
        }
        if late > 0 {
            self.observer.overloaded(Overload::Deadline, late);
        }
    }

    /// Tells breakers and observer how a call went.
    pub(super) fn note(
        self: &Arc<Self>,
        call: StoreCall,
        nodes: &[usize],
        sent: Arrival,
        error: Option<&StoreError>,
    ) -> CallEnd {
        let now = self.clock.now();
        self.observer.store_called(call, now.since(sent.at));
        let Some(error) = error else {
            for node in nodes {
                self.way_to(*node).answered(now, self.lag.waited(sent, now));
                self.tell(self.breakers.answered(*node));
            }
            return CallEnd::Answered;
        };
        let is_late = matches!(error, StoreError::TimedOut { .. });
        if is_late && (self.has_answered_since(nodes, sent.at) || self.may_be_a_pause(nodes, now)) {
            // It answers others, or did a moment ago: there is more to do than can be in time, which no breaker mends.
            return CallEnd::Answered;
        }
        self.observer.store_failed(error);
        self.blame(nodes, error, sent.at);
        if is_late { CallEnd::Silence } else { CallEnd::Failed }
    }

    /// Whether `nodes` have been silent for so short a time that this core, which runs late, may only be one of many on a
    /// machine that is busy.
    fn may_be_a_pause(&self, nodes: &[usize], now: Timestamp) -> bool {
        let since = now.back(Micros::new(self.timeout.get().saturating_mul(BUSY_PATIENCE)));
        self.lag.is_busy(now) && self.has_answered_since(nodes, since)
    }

    /// Tells the breaker of the node that failed. Where a call over several does not say which, each is asked.
    fn blame(self: &Arc<Self>, nodes: &[usize], error: &StoreError, sent: Timestamp) {
        let now = self.clock.now();
        let (StoreError::NotApplied { endpoint, .. }
        | StoreError::FateUnknown { endpoint, .. }
        | StoreError::TimedOut { endpoint, .. }) = error;
        for &node in nodes {
            if nodes.len() == 1 || self.store.endpoint(node) == *endpoint {
                self.tell(self.breakers.failed(node, sent, now));
            } else if !self.has_answered_since(&[node], sent) {
                self.probe_soon(node);
            }
        }
    }

    /// A store that answers more or less than it was asked is broken: what it did is unknown.
    fn complete(&self, told: BatchOutcomes, requests: &[Request<'_>]) -> Result<BatchOutcomes, StoreError> {
        let asked: usize = requests.iter().map(|request| request.spends.len()).sum();
        let folds = requests.iter().filter(|request| request.is_fold());
        let folded: usize = folds.map(|request| request.spends.len()).sum();
        if (told.outcomes.len(), told.folds.len()) == (asked, folded) {
            return Ok(told);
        }
        let source = format!(
            "{} outcomes and {} folds for {asked} spends, {folded} of them folded",
            told.outcomes.len(),
            told.folds.len()
        );
        Err(StoreError::FateUnknown { endpoint: self.store.endpoint(0), source: source.into() })
    }
}

fn passes(item: &Item, outcomes: &[Outcome]) -> bool {
    let mut told = item.spends.iter().zip(outcomes);
    told.all(|(spend, outcome)| outcome.is_admitted() || spend.stance == Stance::Advisory)
}

fn count_of(waiters: &[StoreTicket]) -> NonZeroU32 {
    u32::try_from(waiters.len()).ok().and_then(NonZeroU32::new).expect("an item has waiters")
}
