//! The way to a store over a network: coalesced, within a deadline, past a circuit breaker, and safe to abandon.
//!
//! A request is handed to its lane; a task of the runtime's carries what has gathered there to the store, one call at a
//! time, and answers everybody in it. So a request that is dropped takes nobody else's answer along. Nothing that may
//! have been applied is sent again.

mod background;
pub(crate) mod breaker;
pub(crate) mod lanes;
mod orphans;
mod ticket;

pub use lanes::LaneBounds;
pub(crate) use orphans::{Orphans, TakenLeases};

use std::pin::pin;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Micros, Outcome, Stance, Timestamp};
use tidegate_store::{Clock, Outcomes, Request, Spend, Store, StoreError};

use crate::cell_hash::LaneId;
use crate::decision::Source;
use crate::deny_cache::{AnsweredCell, Certainty, DenyCache};
use crate::local::LocalCells;
use crate::node_clock::NodeClock;
use crate::observer::{Observer, StoreCall};
use crate::owned::{OwnedSpend, OwnedSpends};
use crate::runtime::{Runtime, Task, within};
use breaker::{BreakerConfig, Breakers, Change};
use lanes::{Batch, Joined, Lanes};
use ticket::{Ticket, TicketWaiter};

/// The way to the store from one core.
pub(crate) struct Remote {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    lanes: Lanes<StoreTicket>,
    timeout: Micros,
    /// Shared by all cores, as is all that follows.
    pub(crate) breakers: Arc<Breakers>,
    pub(crate) orphans: Arc<Orphans>,
    pub(crate) deny_cache: Arc<DenyCache>,
    pub(crate) local: Arc<LocalCells>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) clock: NodeClock,
}

/// What a way to the store is made of.
pub(crate) struct RemoteParts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) lanes: LaneBounds,
    pub(crate) timeout: Micros,
    pub(crate) breaker: BreakerConfig,
    pub(crate) most_orphans: usize,
    pub(crate) deny_cache: Arc<DenyCache>,
    pub(crate) local: Arc<LocalCells>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) clock: NodeClock,
}

/// What one request asks, and since when.
pub(crate) struct Question {
    spends: OwnedSpends,
    arrived: Timestamp,
}

type StoreTicket = Ticket<Question, StoreAnswer>;

/// Waits for what the store says to one request.
pub(crate) type StoreWaiter = TicketWaiter<Question, StoreAnswer>;

/// What the store said, or what it is known to say.
pub(crate) struct StoreAnswer {
    pub(crate) outcomes: Outcomes,
    pub(crate) source: Source,
    /// The leases it gave: back they go, unless somebody keeps them.
    pub(crate) leases: Option<TakenLeases>,
}

/// Nodes of the store, each once.
type Nodes = SmallVec<[usize; 2]>;

/// Nodes that a request has claimed and not yet been sent to. Dropped, it lets the next request go there.
pub(crate) struct Claims<'r> {
    remote: &'r Remote,
    nodes: Nodes,
}

impl Claims<'_> {
    /// Claims `node` if its breaker lets one more request pass; asked once per node and request.
    pub(crate) fn claim(&mut self, node: usize, now: Timestamp) -> bool {
        if self.remote.breakers.all_closed() || self.nodes.contains(&node) {
            return true;
        }
        let (passes, change) = self.remote.breakers.claim(node, now);
        self.remote.tell(change);
        if passes {
            self.nodes.push(node);
        }
        passes
    }

    /// The request is on its way there.
    pub(crate) fn sent(&mut self) {
        self.nodes.clear();
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        for node in self.nodes.drain(..) {
            self.remote.tell(self.remote.breakers.unclaim(node));
        }
    }
}

impl Remote {
    pub(crate) fn new(parts: RemoteParts) -> Self {
        Remote {
            breakers: Arc::new(Breakers::new(parts.store.nodes(), parts.breaker)),
            orphans: Arc::new(Orphans::new(parts.most_orphans)),
            lanes: Lanes::new(parts.lanes),
            store: parts.store,
            runtime: parts.runtime,
            timeout: parts.timeout,
            deny_cache: parts.deny_cache,
            local: parts.local,
            observer: parts.observer,
            clock: parts.clock,
        }
    }

    /// The same way for another core: with calls of its own.
    pub(crate) fn for_core(&self, store: Arc<dyn Store>, runtime: Arc<dyn Runtime>) -> Self {
        Remote {
            store,
            runtime,
            lanes: Lanes::new(self.lanes.bounds()),
            timeout: self.timeout,
            breakers: self.breakers.clone(),
            orphans: self.orphans.clone(),
            deny_cache: self.deny_cache.clone(),
            local: self.local.clone(),
            observer: self.observer.clone(),
            clock: self.clock.clone(),
        }
    }

    /// Nothing claimed yet.
    pub(crate) fn claims(&self) -> Claims<'_> {
        Claims { remote: self, nodes: Nodes::new() }
    }

    /// Asks for `requests`, which share a call where that is possible. Each answer is nothing if none comes in time.
    pub(crate) fn ask(
        self: &Arc<Self>,
        lane: LaneId,
        requests: impl Iterator<Item = OwnedSpends>,
    ) -> SmallVec<[StoreWaiter; 1]> {
        let arrived = self.clock.now();
        let mut waiters = SmallVec::new();
        let asked: Batch<StoreTicket> = requests
            .map(|spends| {
                let (asked, waiter) = Ticket::new(Question { spends, arrived });
                waiters.push(waiter);
                asked
            })
            .collect();
        match self.lanes.join(lane, asked) {
            Joined::First(batch) => self.runtime.spawn(Box::pin(drive(self.clone(), lane, batch))),
            Joined::Queued => {}
            Joined::Full(turned_away) => self.turn_away(&turned_away),
        }
        waiters
    }

    /// There is no room to wait. Those that were refused a moment ago still are, as far as anybody knows: a flood must not
    /// win what an open rule gives to those whose store is away.
    fn turn_away(&self, requests: &[StoreTicket]) {
        self.observer.queue_full(requests.len());
        for asked in requests {
            if let Some(outcomes) = self.known_refusal(&asked.question().spends, Certainty::Likely) {
                asked.fill(StoreAnswer { outcomes, source: Source::DenyCache, leases: None });
            }
        }
    }

    /// Calls under way, and requests that wait for the next.
    pub(crate) fn load(&self) -> (usize, usize) {
        (self.lanes.open(), self.lanes.waiting())
    }

    /// Runs one operation that is not a decision to its end, within the deadline, also if nobody waits for it any more.
    ///
    /// # Errors
    /// When the store did not answer, or is known not to.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        call: StoreCall,
        nodes: Nodes,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.claim_all(&nodes)?;
        let (asked, waiter) = Ticket::new(());
        let remote = self.clone();
        self.runtime.spawn(Box::pin(async move {
            let answer = remote.call(call, &nodes, work).await;
            asked.fill(answer);
        }));
        match waiter.await {
            Some(answer) => answer,
            None => Err(StoreError::FateUnknown {
                endpoint: self.store.endpoint(0),
                source: "the runtime ended before the store answered".into(),
            }),
        }
    }

    fn claim_all(&self, nodes: &[usize]) -> Result<(), StoreError> {
        let (mut claims, now) = (self.claims(), self.clock.now());
        if let Some(away) = nodes.iter().find(|node| !claims.claim(**node, now)) {
            return Err(self.breaker_is_open(*away));
        }
        claims.sent();
        Ok(())
    }

    /// Awaits `work` within the deadline, and tells breakers and observer how it went.
    async fn call<T>(
        &self,
        call: StoreCall,
        nodes: &[usize],
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let sent = self.clock.now();
        let answer = match within(&*self.runtime, self.timeout, work).await {
            Some(answer) => answer,
            None => Err(self.timed_out(nodes, self.timeout)),
        };
        self.note(call, nodes, sent, answer.as_ref().err());
        answer
    }

    /// Carries one batch to the store and answers everybody in it; false if the store did not answer.
    async fn carry(self: &Arc<Self>, batch: &[StoreTicket]) -> bool {
        let spends: SmallVec<[SmallVec<[Spend<'_>; 2]>; 1]> = batch
            .iter()
            .map(|asked| asked.question().spends.iter().map(|spend| spend.as_spend()).collect())
            .collect();
        let requests: SmallVec<[Request<'_>; 1]> =
            spends.iter().map(|spends| Request::once(spends)).collect();
        let nodes = self.nodes_of(spends.iter().flatten().map(|spend| spend.cell.tag));
        let sent = self.clock.now();
        self.observer.batch_sent(batch.len());

        let mut call = pin!(self.store.decide(&requests).answer());
        // Each has its own deadline, and the next one to pass is that of the first who still waits.
        let mut waiting = batch;
        let answer = loop {
            let Some(next) = waiting.first() else { break Err(self.timed_out(&nodes, self.timeout)) };
            let now = self.clock.now();
            let left = self.timeout.saturating_sub(now.since(next.question().arrived));
            match within(&*self.runtime, left, call.as_mut()).await {
                Some(answer) => break answer,
                None => {
                    next.give_up();
                    waiting = &waiting[1..];
                }
            }
        };
        let answer = answer.and_then(|told| self.complete(told.outcomes, &spends));
        self.note(StoreCall::Decide, &nodes, sent, answer.as_ref().err());
        match answer {
            Ok(outcomes) => self.answer(batch, outcomes, sent),
            Err(error) => self.lose(batch, &error),
        }
    }

    /// Answers everybody in `batch`, whether or not they are still there.
    fn answer(self: &Arc<Self>, batch: &[StoreTicket], outcomes: Outcomes, sent: Timestamp) -> bool {
        let mut outcomes = outcomes.into_iter();
        for asked in batch {
            let outcomes: Outcomes = outcomes.by_ref().take(asked.question().spends.len()).collect();
            let mut passes = true;
            for (spend, outcome) in asked.question().spends.iter().zip(&outcomes) {
                passes &= outcome.is_admitted() || spend.stance == Stance::Advisory;
                self.learn(spend, *outcome, sent);
            }
            let leases = if passes { TakenLeases::of(&asked.question().spends, &self.orphans) } else { None };
            asked.fill(StoreAnswer { outcomes, source: Source::Store, leases });
        }
        true
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

    /// How a request with these spends is refused, where that is known already.
    fn known_refusal(&self, spends: &[OwnedSpend], how: Certainty) -> Option<Outcomes> {
        self.deny_cache.refusal(spends.iter().map(OwnedSpend::cached), (self.clock.now(), how))
    }

    /// Nobody in `batch` is answered. Leases that may have been taken nevertheless go back by their names.
    fn lose(&self, batch: &[StoreTicket], error: &StoreError) -> bool {
        if !error.is_certainly_not_applied() {
            for asked in batch {
                drop(TakenLeases::of(&asked.question().spends, &self.orphans));
            }
        }
        batch.iter().for_each(|asked| asked.give_up());
        false
    }

    /// Those of `batch` that must still be asked: not who has left or is too late, nor who is refused for a reason that
    /// has become known while they waited.
    fn still_to_ask(&self, batch: Batch<StoreTicket>) -> Batch<StoreTicket> {
        let now = self.clock.now();
        let must_be_asked = |asked: &StoreTicket| {
            if asked.is_over() || now.since(asked.question().arrived) >= self.timeout {
                return false;
            }
            let Some(outcomes) = self.known_refusal(&asked.question().spends, Certainty::Known) else {
                return true;
            };
            self.observer.deny_cache_hit();
            asked.fill(StoreAnswer { outcomes, source: Source::DenyCache, leases: None });
            false
        };
        batch.into_iter().filter(must_be_asked).collect()
    }

    /// A store that answers more or less than it was asked is broken: nobody knows what it did.
    fn complete(
        &self,
        outcomes: Outcomes,
        spends: &[SmallVec<[Spend<'_>; 2]>],
    ) -> Result<Outcomes, StoreError> {
        let asked: usize = spends.iter().map(SmallVec::len).sum();
        if outcomes.len() == asked {
            return Ok(outcomes);
        }
        let source = format!("{} outcomes for {asked} spends", outcomes.len()).into();
        Err(StoreError::FateUnknown { endpoint: self.store.endpoint(0), source })
    }

    /// Tells breakers and observer how a call went.
    fn note(&self, call: StoreCall, nodes: &[usize], sent: Timestamp, error: Option<&StoreError>) {
        let now = self.clock.now();
        self.observer.store_called(call, now.since(sent));
        if let Some(error) = error {
            self.observer.store_failed(error);
        }
        for node in nodes {
            self.tell(match error {
                None => self.breakers.answered(*node),
                Some(_) => self.breakers.failed(*node, now),
            });
        }
    }

    pub(crate) fn node_of(&self, tag: &[u8]) -> usize {
        self.store.node_of(tag)
    }

    pub(crate) fn nodes_of<'t>(&self, tags: impl Iterator<Item = &'t [u8]>) -> Nodes {
        let mut nodes = Nodes::new();
        for node in tags.map(|tag| self.store.node_of(tag)) {
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        nodes
    }

    pub(crate) fn nodes(&self) -> usize {
        self.store.nodes()
    }

    pub(crate) fn endpoint(&self, node: usize) -> String {
        self.store.endpoint(node)
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    pub(crate) fn spawn(&self, task: Task) {
        self.runtime.spawn(task);
    }

    fn tell(&self, change: Option<Change>) {
        if let Some(Change { node, state }) = change {
            self.observer.breaker_changed(&self.store.endpoint(node), state);
        }
    }

    fn timed_out(&self, nodes: &[usize], waited: Micros) -> StoreError {
        let node = nodes.first().copied().unwrap_or(0);
        let waited = std::time::Duration::from_micros(waited.get());
        StoreError::TimedOut { endpoint: self.store.endpoint(node), waited }
    }

    fn breaker_is_open(&self, node: usize) -> StoreError {
        let source = "it has not answered lately, and is not asked until it does".into();
        StoreError::NotApplied { endpoint: self.store.endpoint(node), source }
    }
}

/// Carries what gathers in `lane` to the store, call after call, until nobody waits.
async fn drive(remote: Arc<Remote>, lane: LaneId, first: Batch<StoreTicket>) {
    // A runtime that ends drops this task: those who wait must hear of it.
    let mut closing = CloseLane { remote: &remote, lane: Some(lane) };
    let mut batch = first;
    loop {
        if !batch.is_empty() && !remote.carry(&batch).await {
            // Who waits behind a call that failed would only wait for the next to fail.
            return;
        }
        match remote.lanes.next(lane) {
            Some(next) => batch = remote.still_to_ask(next),
            None => {
                closing.lane = None;
                return;
            }
        }
    }
}

/// Closes a lane that is still open, and lets everybody in it go without an answer.
struct CloseLane<'r> {
    remote: &'r Remote,
    lane: Option<LaneId>,
}

impl Drop for CloseLane<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane {
            drop(self.remote.lanes.close(lane));
        }
    }
}
