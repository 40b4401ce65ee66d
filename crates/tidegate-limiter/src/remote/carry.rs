//! One call from start to end: takes what waits, calls the store, answers every request in it.
//!
//! A runtime task does it, so dropping one request does not lose the answers of others. Nothing that may have been applied is
//! sent again.

use std::num::NonZeroU32;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use tidegate_core::{Hits, Micros, Outcome, Stance, Timestamp};
use tidegate_store::{BatchOutcomes, Clock, Outcomes, Request, RequestOutcomes, Slice, Spend, StoreError};

use super::lag::Arrival;
use super::late::Sent;
use super::queue::{IsFirst, Item, QueueId};
use super::{Overload, Remote, StoreReply, StoreTicket};
use crate::answer::Answer;
use crate::cell::{KeptAsk, Refunds};
use crate::deny_cache::{AnswerTimes, Certainty};
use crate::lease::pending::TakenLeases;
use crate::observer::{BreakerState, StoreCall};
use crate::runtime::Task;
use crate::source::Source;

/// Carries what gathers to the store, call after call, until nothing waits.
async fn drive(mut slot: CallSlot) {
    let (remote, id) = (slot.remote.clone(), slot.id.clone());
    remote.note_late_start(slot.started);
    while let Some((items, another)) = remote.queues.next(&id, slot.is_first) {
        (slot.items, slot.taken, slot.is_first) = (items, remote.arrival(), IsFirst::No);
        if another {
            remote.start_call(id.clone());
        }
        remote.still_to_ask(&mut slot.items, remote.expected_call(&id.nodes));
        while slot.is_wanted() && !remote.may_send(&id.nodes) && !remote.is_away(&id.nodes) {
            remote.for_a_slice(remote.timeout, std::future::pending::<()>()).await;
            remote.still_to_ask(&mut slot.items, remote.timeout);
        }
        let end = remote.carry(&slot).await;
        if !slot.is_open() {
            return;
        }
        remote.queues.is_back(&id, &std::mem::take(&mut slot.items));
        if slot.ends_the_queue(end) {
            return;
        }
    }
    slot.is_open.store(false, Ordering::Relaxed);
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEnd {
    /// The store answered, or is overloaded.
    NotFailed,
    /// It failed at once: the next call may succeed.
    Failed,
    /// No answer before every request had stopped waiting.
    Silence,
}

/// One of the few call slots to some store nodes. Dropping it while open, even unrun because its runtime ended, ends every
/// wait behind it without an answer.
pub(super) struct CallSlot {
    remote: Arc<Remote>,
    pub(super) id: QueueId,
    /// What is in flight.
    items: Vec<Item>,
    /// Since when: equal requests wait for these items from then on.
    taken: Arrival,
    /// The uptime at its start.
    started: Micros,
    is_first: IsFirst,
    is_open: AtomicBool,
}

impl CallSlot {
    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Whether any request waits for what it carries.
    fn is_wanted(&self) -> bool {
        self.items.iter().any(|item| !item.waiters.is_empty())
    }

    /// Requests behind a call that was not answered would only wait for the next one to fail.
    fn ends_the_queue(&self, end: CallEnd) -> bool {
        end == CallEnd::Silence && self.remote.is_away(&self.id.nodes)
    }

    /// Frees the slot for the next call: for its waiters, this one ended with `end`.
    pub(super) fn pass_on(&self, end: CallEnd) {
        self.is_open.store(false, Ordering::Relaxed);
        let queues = &self.remote.queues;
        queues.is_back(&self.id, &self.items);
        if self.ends_the_queue(end) {
            drop(queues.end(&self.id, self.is_first));
        } else if queues.pass_on(&self.id) {
            self.remote.start_call(self.id.clone());
        }
    }
}

impl Drop for CallSlot {
    fn drop(&mut self) {
        if self.is_open() {
            self.remote.queues.is_back(&self.id, &self.items);
            drop(self.remote.queues.end(&self.id, self.is_first));
        }
    }
}

impl Remote {
    /// Starts a task that carries what waits for `id`.
    pub(super) fn start_call(self: &Arc<Self>, id: QueueId) {
        let (items, taken, is_first) = (Vec::new(), self.arrival(), IsFirst::Yes);
        let (started, is_open) = (taken.uptime, AtomicBool::new(true));
        let slot = CallSlot { remote: self.clone(), id, items, taken, started, is_first, is_open };
        let task: Task = Box::pin(drive(slot));
        self.runtime.spawn(task);
    }

    /// Records the lag of a task that was started at `started` and runs only now.
    fn note_late_start(&self, started: Micros) {
        let runs = self.clock.uptime();
        self.lag.note(runs, Slice::of(self.timeout).lag(Micros::ZERO, runs.saturating_sub(started)));
    }

    /// Keeps in `items` only the waiters that still need the store, and drops cancelled ones. A waiter refused by a result
    /// that arrived meanwhile is answered; one whose answer would come too late is overloaded now.
    fn still_to_ask(&self, items: &mut [Item], expected: Micros) {
        let now = self.clock.now();
        // Half its timeout is always enough to be sent: one slow call must not keep later ones from measuring again.
        let needs = expected.min(Micros::new(self.timeout.get() / 2));
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

    /// Answers the waiters of `item` if the store has refused an equal request since they arrived.
    fn refuse_meanwhile(&self, item: &mut Item, now: Timestamp) {
        if !item.repeats_refusals {
            return;
        }
        let Some(last) = item.waiters.iter().map(|ticket| ticket.question().at).max() else { return };
        let cells = item.asks.iter().map(KeptAsk::borrow);
        let Some(refusal) = self.deny_cache.refusal(cells, (now, Certainty::KnownSince(last))) else {
            return;
        };
        for ticket in item.waiters.drain(..) {
            self.observer.deny_cache_hit();
            ticket.fill(StoreReply::Answered(refusal.clone(), None));
        }
    }

    /// Carries those items of `slot` that still have waiters to the store, and answers every request in them.
    async fn carry(self: &Arc<Self>, slot: &CallSlot) -> CallEnd {
        let id = &slot.id;
        let items: Vec<&Item> = slot.items.iter().filter(|item| !item.waiters.is_empty()).collect();
        if items.is_empty() {
            return CallEnd::NotFailed;
        }
        let spends: Vec<SmallVec<[Spend<'_>; 1]>> =
            items.iter().map(|item| item.asks.iter().map(KeptAsk::spend).collect()).collect();
        let requests: Vec<Request<'_>> = items
            .iter()
            .zip(&spends)
            .map(|(item, spends)| Request { spends, count: count_of(&item.waiters) })
            .collect();
        let sent = Sent { items: &items, requests: &requests, at: self.arrival() };
        self.observer.batch_sent(items.iter().map(|item| item.waiters.len()).sum());
        let mut call = pin!(self.store.decide(&requests).answer());
        let Some(answer) = self.in_time(&sent, slot, call.as_mut()).await else {
            return self.after_its_time(slot, sent, call).await;
        };
        let answer = answer.and_then(|told| self.complete(told, &requests));
        let end = self.note(StoreCall::Decide, &id.nodes, sent.at, answer.as_ref().err());
        match answer {
            Ok(told) => drop(self.answer_all(&sent, &told)),
            Err(error) => self.lose(&items, &id.nodes, &error, end),
        }
        end
    }

    /// Awaits `call` for as long as the store may take; `None` if that is not enough. Its waiters have their own deadlines.
    async fn in_time<T>(
        &self,
        sent: &Sent<'_>,
        slot: &CallSlot,
        mut call: Pin<&mut impl Future<Output = T>>,
    ) -> Option<T> {
        loop {
            let left = self.time_left(slot.taken);
            if left == Micros::ZERO {
                return None;
            }
            let first = self.give_up_late(sent.items, &slot.id).unwrap_or(left);
            if let Some(answer) = self.for_a_slice(left.min(first), call.as_mut()).await {
                return Some(answer);
            }
        }
    }

    /// Ends the waits whose deadline has passed, and returns the shortest time left of the others.
    fn give_up_late(&self, items: &[&Item], id: &QueueId) -> Option<Micros> {
        let mut first: Option<Micros> = None;
        let mut late = 0;
        let waiters = items.iter().flat_map(|item| item.waiters.iter().map(move |ticket| (item, ticket)));
        for (item, ticket) in waiters.filter(|(_, ticket)| !ticket.is_over()) {
            let left = self.time_left(*ticket.question());
            if left > Micros::ZERO {
                first = Some(first.map_or(left, |first| first.min(left)));
            } else {
                item.late.fetch_add(1, Ordering::Relaxed);
                if self.is_away(&id.nodes) {
                    ticket.give_up();
                } else {
                    late += 1;
                    ticket.fill(StoreReply::Overloaded);
                }
            }
        }
        if late > 0 {
            self.observer.overloaded(Overload::Deadline, late);
        }
        first
    }

    /// Answers every request in a call, refunds what was spent for those that had stopped waiting, and returns their count.
    pub(super) fn answer_all(self: &Arc<Self>, sent: &Sent<'_>, told: &BatchOutcomes) -> u64 {
        let (mut requests, mut given_back) = (0, Refunds::new());
        let when = AnswerTimes { sent: sent.at.at, received: self.clock.now(), decided: told.decided_at };
        let all: u32 = sent.requests.iter().map(|request| request.count.get()).sum();
        let mut first = (all > 1).then_some(0);
        let mut too_large = told.too_large.iter().peekable();
        for (number, (item, told)) in sent.items.iter().zip(told.per_request(sent.requests)).enumerate() {
            if let Some((_, why)) = too_large.next_if(|(large, _)| *large == number) {
                self.refuse_too_large(item, why);
                continue;
            }
            let for_nobody = self.answer(item, &told, when, first);
            first = first.map(|first| first + count_of(&item.waiters).get());
            requests += for_nobody;
            self.give_back(item, &told, for_nobody, sent.at.at, &mut given_back);
        }
        if !given_back.is_empty() {
            self.refund_late(given_back);
        }
        requests
    }

    /// The store has no room for what `item` asks of one key: its rules' policies decide. The others of the call have their answers.
    fn refuse_too_large(&self, item: &Item, why: &str) {
        let node = item.asks.first().map_or(0, |ask| self.store.node_of(ask.spend().cell.tag));
        let (endpoint, source) = (self.store.endpoint(node), why.to_owned().into());
        self.observer.store_failed(&StoreError::TooLarge { endpoint, source });
        self.let_go(&[item], &[node], CallEnd::Failed);
    }

    /// Answers every request in `item`, each by its position, including those that are gone. `first` is the position of its
    /// first request in the call, if that has several. Returns how many of those spent that had stopped waiting and were
    /// decided without the store.
    fn answer(&self, item: &Item, told: &RequestOutcomes<'_>, when: AnswerTimes, first: Option<u32>) -> u64 {
        let count = count_of(&item.waiters).get();
        self.note_late_answers(item);
        // The last outcome is the current state of the cells.
        for (ask, outcome) in item.asks.iter().zip(told.at(count - 1)) {
            self.learn(ask, outcome, when);
        }
        // Equal requests have no order: waiters still present take the first positions, before those that are gone.
        let (here, gone): (Vec<&StoreTicket>, Vec<&StoreTicket>) =
            item.waiters.iter().partition(|ticket| !ticket.is_over());
        let mut spent_for_nobody = 0;
        for (place, ticket) in (0..count).zip(here.iter().chain(&gone)) {
            let outcomes: Outcomes = told.at(place).collect();
            let passes = passes(item, &outcomes);
            spent_for_nobody += u64::from(is_spent(item, &outcomes) && place as usize >= here.len());
            let leases = if passes { TakenLeases::of(&item.asks, &self.orphans) } else { None };
            let (decided_at, nth) = (when.decided, first.map(|first| first + place));
            let answer = Answer { outcomes, source: Source::Store, decided_at, nth };
            ticket.fill(StoreReply::Answered(answer, leases));
        }
        spent_for_nobody.min(item.late.load(Ordering::Relaxed) as u64)
    }

    /// Collects what the last `requests` that were counted have spent, for a refund.
    fn give_back(
        &self,
        item: &Item,
        told: &RequestOutcomes<'_>,
        requests: u64,
        sent: Timestamp,
        to: &mut Refunds,
    ) {
        if requests == 0 {
            return;
        }
        let (now, spent) = (self.clock.now(), told.spent());
        let mut hits: SmallVec<[u64; 2]> = SmallVec::from_elem(0, item.asks.len());
        for place in (0..spent).rev().take(usize::try_from(requests).unwrap_or(usize::MAX)) {
            let outcomes: Outcomes = told.at(place).collect();
            let rules = || item.asks.iter().map(|ask| ask.group).zip(&outcomes);
            for (hits, (ask, outcome)) in hits.iter_mut().zip(item.asks.iter().zip(&outcomes)) {
                // A shadow rule that refuses has spent nothing.
                if ask.group.is_spent_with(rules().map(|(group, told)| (group, told.is_spent()))) {
                    *hits = hits.saturating_add(outcome.spent_of(ask.ask.hits).get());
                }
            }
        }
        for (KeptAsk { cell, .. }, hits) in item.asks.iter().zip(hits) {
            let hits = if cell.limit().takes_lease() { Hits::ZERO } else { Hits::new(hits) };
            if hits > Hits::ZERO {
                to.push((cell.clone(), hits, now.since(sent)));
            }
            self.deny_cache.gave_back(cell.hash(), hits, now);
        }
    }

    /// Counts requests answered after their deadline because this core did not run.
    fn note_late_answers(&self, item: &Item) {
        let uptime = self.clock.uptime();
        let waited = |ticket: &StoreTicket| uptime.saturating_sub(ticket.question().uptime);
        let is_late = |ticket: &&StoreTicket| waited(ticket) > self.timeout;
        let late = item.waiters.iter().filter(is_late).filter(|ticket| !ticket.is_over()).count();
        if late > 0 {
            self.observer.overloaded(Overload::OwnLag, late);
        }
    }

    /// Records one answer of the store.
    pub(super) fn learn(&self, ask: &KeptAsk, outcome: Outcome, when: AnswerTimes) {
        let ask = ask.borrow();
        self.deny_cache.remember(&ask, outcome, when);
        if ask.is_approximate() {
            self.local.hear(&ask, &outcome, when.received);
        }
    }

    /// Whether one of `nodes` has failed. One unanswered call is not a failure: until a breaker opens, it is overload.
    fn is_away(&self, nodes: &[usize]) -> bool {
        nodes.iter().any(|node| self.breakers.state(*node) != BreakerState::Closed)
    }

    /// No request in `items` is answered. Leases that may have been taken anyway are released by name.
    pub(super) fn lose(&self, items: &[&Item], nodes: &[usize], error: &StoreError, end: CallEnd) {
        if !error.is_certainly_not_applied() {
            items.iter().for_each(|item| drop(TakenLeases::of(&item.asks, &self.orphans)));
        }
        self.let_go(items, nodes, end);
    }

    /// Ends every remaining wait for a call that ended with `end`: these requests are decided without the store.
    fn let_go(&self, items: &[&Item], nodes: &[usize], end: CallEnd) {
        let failed = end == CallEnd::Failed || (end == CallEnd::Silence && self.is_away(nodes));
        let mut late = 0;
        let waiters = items.iter().flat_map(|item| item.waiters.iter().map(move |ticket| (item, ticket)));
        for (item, ticket) in waiters.filter(|(_, ticket)| !ticket.is_over()) {
            item.late.fetch_add(1, Ordering::Relaxed);
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

    /// Reports the result of a call to breakers and observer.
    pub(super) fn note(
        self: &Arc<Self>,
        call: StoreCall,
        nodes: &[usize],
        sent: Arrival,
        error: Option<&StoreError>,
    ) -> CallEnd {
        let uptime = self.clock.uptime();
        let took = uptime.saturating_sub(sent.uptime);
        self.observer.store_called(call, took);
        let Some(error) = error else {
            for node in nodes {
                let way = self.stats_of(*node);
                way.took(self.lag.waited(sent, uptime));
                // Not one that is in time only without this core's own lag: the prober knows better.
                if took <= self.timeout {
                    way.answered_in_time(uptime);
                }
                self.answers_again(*node);
            }
            return CallEnd::NotFailed;
        };
        if error.is_late() {
            let waited = self.lag.waited(sent, uptime);
            self.still_to_answer(nodes).for_each(|way| way.took(waited));
            nodes.iter().for_each(|node| self.was_late(*node));
            if !self.is_away(nodes) {
                return CallEnd::NotFailed;
            }
            self.observer.store_failed(error);
            return CallEnd::Silence;
        }
        self.observer.store_failed(error);
        self.blame(nodes, error, sent.uptime);
        CallEnd::Failed
    }

    /// Reports the refusal of a call to the breaker of the node that refused. If a call over several does not say which, the
    /// prober will.
    pub(super) fn blame(&self, nodes: &[usize], error: &StoreError, sent: Micros) {
        // One key has more than the store keeps of one: the others there must not suffer for it.
        if matches!(error, StoreError::TooLarge { .. }) {
            return;
        }
        let uptime = self.clock.uptime();
        let is_named = |node: &&usize| nodes.len() == 1 || self.store.endpoint(**node) == error.endpoint();
        for &node in nodes.iter().filter(is_named) {
            self.tell(self.breakers.failed(node, sent, uptime));
        }
    }

    /// A store that returns more or fewer outcomes than asked for is broken: what it did is unknown.
    pub(super) fn complete(
        &self,
        told: BatchOutcomes,
        requests: &[Request<'_>],
    ) -> Result<BatchOutcomes, StoreError> {
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
    let told = item.asks.iter().zip(outcomes);
    Stance::is_satisfied(told.map(|(ask, outcome)| (ask.group, outcome.is_admitted())))
}

/// Whether it spent: it passes, or a limit went into debt for it.
fn is_spent(item: &Item, outcomes: &[Outcome]) -> bool {
    let told = item.asks.iter().zip(outcomes);
    Stance::is_satisfied(told.map(|(ask, outcome)| (ask.group, outcome.is_spent())))
}

fn count_of(waiters: &[StoreTicket]) -> NonZeroU32 {
    u32::try_from(waiters.len()).ok().and_then(NonZeroU32::new).expect("an item has waiters")
}
