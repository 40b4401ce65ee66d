//! The path to a store over a network: coalesced, within a deadline, behind a circuit breaker, and safe to cancel.
//!
//! A request joins the queue of the store nodes it touches; a runtime task carries what has gathered there to the store and
//! answers every request in it. Whether a server has failed is the prober's to say (`prober.rs`, by the rule in `judge.rs`);
//! calls that are refused in a row say it too. A full queue, or a deadline that passes before that, is overload. Time in which
//! this core did not run counts as neither.

mod background;
pub(crate) mod breaker;
mod carry;
mod judge;
mod lag;
mod late;
mod prober;
mod queue;
mod refunds;
mod request_names;
mod settle;
mod shutdown;
mod take;
mod ticket;
mod warm_up;

pub(crate) use background::LARGEST_BATCH;
pub use late::LATE_CALLS_HEARD_FOR;
pub(crate) use queue::Question;
pub use queue::QueueBounds;
pub(crate) use request_names::{
    ANSWERED, Fingerprint, KEPT, NameInFlight, NameUse, RecordState, RequestNames, Unwritten, read_record,
};
pub(crate) use take::Funded;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::Micros;
use tidegate_store::{Clock, Slice, Store, StoreError};

use crate::answer::Answer;
use crate::deny_cache::DenyCache;
use crate::lease::pending::{Orphans, TakenLeases};
use crate::local::LocalCells;
use crate::node_clock::NodeClock;
use crate::observer::{Observer, Overload, StoreCall};
use crate::runtime::{Runtime, Task, within};
use breaker::{BreakerConfig, Breakers, Change};
use judge::ServerState;
use lag::{Arrival, Lag};
use late::LateCalls;
use queue::{QueueId, Queues};
use take::Takes;
use ticket::{Ticket, TicketWaiter};

/// The path to the store from one core.
pub(crate) struct Remote {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    /// Where the prober runs.
    prober: Arc<dyn Runtime>,
    queues: Queues,
    late: LateCalls,
    lag: Lag,
    timeout: Micros,
    /// What was observed of each store node. Shared by all cores, as are the fields below.
    stats: Arc<[NodeStats]>,
    pub(crate) breakers: Arc<Breakers>,
    takes: Arc<Takes>,
    pub(crate) orphans: Arc<Orphans>,
    pub(crate) deny_cache: Arc<DenyCache>,
    pub(crate) local: Arc<LocalCells>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) clock: NodeClock,
}

/// The parts of a `Remote`.
pub(crate) struct RemoteParts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) prober: Arc<dyn Runtime>,
    pub(crate) queue: QueueBounds,
    pub(crate) timeout: Micros,
    pub(crate) breaker: BreakerConfig,
    pub(crate) most_orphans: usize,
    pub(crate) deny_cache: Arc<DenyCache>,
    pub(crate) local: Arc<LocalCells>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) clock: NodeClock,
}

/// What the cores of this process have observed of one store node.
#[derive(Default)]
struct NodeStats {
    /// What the prober says of it.
    state: Mutex<ServerState>,
    /// The uptime at which the last probe was sent that it decided in time.
    proved_alive: AtomicU64,
    /// The uptime at which it last answered a call in time.
    answered_at: AtomicU64,
    /// Its late calls, except those late for so long that they may never return.
    late_calls: AtomicUsize,
    /// The uptime at which the last of them became late.
    late_since: AtomicU64,
    /// No trial call goes to it before then.
    next_try: NotBefore,
    /// Nor does a settlement that its answers cause.
    next_settlement: NotBefore,
    /// The average duration of its calls.
    call_takes: AtomicU64,
    /// Whether it is being settled with, so that its breaker can close.
    is_settled_with: AtomicBool,
}

/// The uptime before which something is not done again.
#[derive(Default)]
struct NotBefore(AtomicU64);

impl NotBefore {
    fn is_due(&self, uptime: Micros) -> bool {
        uptime.get() >= self.0.load(Ordering::Relaxed)
    }

    /// Whether it is due and this caller does it: then nobody else does for `pause`.
    fn take(&self, uptime: Micros, pause: Micros) -> bool {
        let next = self.0.load(Ordering::Relaxed);
        let then = uptime.get().saturating_add(pause.get());
        uptime.get() >= next
            && self.0.compare_exchange(next, then, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn put_off(&self, uptime: Micros, pause: Micros) {
        self.0.store(uptime.get().saturating_add(pause.get()), Ordering::Relaxed);
    }
}

impl NodeStats {
    fn answered_in_time(&self, uptime: Micros) {
        self.answered_at.store(uptime.get(), Ordering::Relaxed);
    }

    fn took(&self, took: Micros) {
        let old = self.call_takes.load(Ordering::Relaxed);
        let new = if old == 0 { took.get() } else { (old * 7 + took.get()) / 8 };
        self.call_takes.store(new, Ordering::Relaxed);
    }
}

/// A request that waits for the store, with its arrival time.
type StoreTicket = Ticket<Arrival, StoreReply>;

/// Waits for the store's reply to one request; `None` if the store failed.
pub(crate) type StoreWaiter = TicketWaiter<Arrival, StoreReply>;

/// The reply to a request that waited for the store.
pub(crate) enum StoreReply {
    /// With the leases that it took: released on drop unless kept.
    Answered(Answer, Option<TakenLeases>),
    /// There was no room or no time to wait, and the store has not failed.
    Overloaded,
}

/// Requests that join a queue together.
type Group<'q> = SmallVec<[(Question<'q>, StoreTicket); 1]>;

/// Store nodes, without duplicates.
type Nodes = SmallVec<[usize; 2]>;

/// Nodes that a request has claimed but not yet called. Dropping it lets the next request try them.
pub(crate) struct Claims<'r> {
    remote: &'r Remote,
    nodes: Nodes,
}

impl Claims<'_> {
    /// Claims `node` if its breaker lets one more request pass; called once per node and request.
    pub(crate) fn claim(&mut self, node: usize) -> bool {
        if self.remote.breakers.all_closed() || self.nodes.contains(&node) {
            return true;
        }
        let (passes, change) = self.remote.breakers.claim(node, self.remote.clock.uptime());
        self.remote.tell(change);
        if passes {
            self.nodes.push(node);
        }
        passes
    }

    /// The request was sent to its nodes.
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
            queues: Queues::new(parts.queue),
            takes: Arc::default(),
            late: LateCalls::default(),
            lag: Lag::default(),
            stats: (0..parts.store.nodes().max(1)).map(|_| NodeStats::default()).collect(),
            store: parts.store,
            runtime: parts.runtime,
            prober: parts.prober,
            timeout: parts.timeout,
            deny_cache: parts.deny_cache,
            local: parts.local,
            observer: parts.observer,
            clock: parts.clock,
        }
    }

    /// The same path for another core, with its own calls.
    pub(crate) fn for_core(&self, store: Arc<dyn Store>, runtime: Arc<dyn Runtime>) -> Self {
        Remote {
            store,
            runtime,
            prober: self.prober.clone(),
            queues: Queues::new(self.queues.bounds()),
            late: LateCalls::default(),
            lag: Lag::default(),
            stats: self.stats.clone(),
            timeout: self.timeout,
            breakers: self.breakers.clone(),
            takes: self.takes.clone(),
            orphans: self.orphans.clone(),
            deny_cache: self.deny_cache.clone(),
            local: self.local.clone(),
            observer: self.observer.clone(),
            clock: self.clock.clone(),
        }
    }

    /// An empty set of claims.
    pub(crate) fn claims(&self) -> Claims<'_> {
        Claims { remote: self, nodes: Nodes::new() }
    }

    /// Enqueues `questions`; those that touch the same nodes share a call.
    pub(crate) fn ask<'q>(
        self: &Arc<Self>,
        questions: impl Iterator<Item = Question<'q>>,
    ) -> SmallVec<[StoreWaiter; 1]> {
        let arrived = self.arrival();
        let mut waiters = SmallVec::new();
        let mut groups: SmallVec<[(QueueId, Group<'q>); 1]> = SmallVec::new();
        for question in questions {
            let (ticket, waiter) = Ticket::new(arrived);
            waiters.push(waiter);
            let id = self.queue_of(&question);
            match groups.iter_mut().find(|(known, _)| *known == id) {
                Some((_, group)) => group.push((question, ticket)),
                None => groups.push((id, SmallVec::from_buf([(question, ticket)]))),
            }
        }
        for (id, group) in groups {
            self.join(id, group);
        }
        waiters
    }

    fn join(self: &Arc<Self>, id: QueueId, group: Group<'_>) {
        let joined = self.queues.join(&id, group.into_iter());
        if !joined.turned_away.is_empty() {
            self.observer.overloaded(Overload::QueueFull, joined.turned_away.len());
            joined.turned_away.iter().for_each(|ticket| ticket.fill(StoreReply::Overloaded));
        }
        if joined.start {
            self.start_call(id);
        }
    }

    fn queue_of(&self, question: &Question<'_>) -> QueueId {
        let tags = || question.asks().map(|ask| ask.spend.cell.tag);
        if self.store.nodes() == 1 {
            return QueueId { nodes: SmallVec::from_slice(&[0]), spans: false };
        }
        let mut nodes = self.nodes_of(tags());
        nodes.sort_unstable();
        let first = tags().next();
        QueueId { nodes, spans: tags().any(|tag| Some(tag) != first) }
    }

    /// Calls in flight, and requests waiting for the next.
    pub(crate) fn load(&self) -> (usize, usize) {
        (self.queues.calls(), self.queues.waiting())
    }

    /// Calls in flight whose requests have all stopped waiting.
    pub(crate) fn late_calls(&self) -> usize {
        self.late.len()
    }

    fn stats_of(&self, node: usize) -> &NodeStats {
        // A store that grew may have nodes that did not exist at the start.
        &self.stats[node % self.stats.len()]
    }

    fn arrival(&self) -> Arrival {
        self.lag.arrival(self.clock.now(), self.clock.uptime())
    }

    /// How much time is left of a wait that began at `arrival`.
    fn time_left(&self, arrival: Arrival) -> Micros {
        self.timeout.saturating_sub(self.lag.waited(arrival, self.clock.uptime()))
    }

    /// The output of `work`, or `None` if it takes longer than `span`, not counting time in which this core did not run.
    async fn attend<T>(&self, span: Micros, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let began = self.arrival();
        let mut left = span;
        while left > Micros::ZERO {
            if let Some(answer) = self.for_a_slice(left, work.as_mut()).await {
                return Some(answer);
            }
            left = span.saturating_sub(self.lag.waited(began, self.clock.uptime()));
        }
        None
    }

    /// Awaits `work` for one slice of a wait that has `left`, and records how late this core runs.
    async fn for_a_slice<T>(&self, left: Micros, work: impl Future<Output = T>) -> Option<T> {
        let slice = Slice::of(self.timeout);
        let (planned, began) = (left.min(slice.span()), self.clock.uptime());
        let answer = within(&*self.runtime, planned, work).await;
        if answer.is_none() {
            let ended = self.clock.uptime();
            self.lag.note(ended, slice.lag(planned, ended.saturating_sub(began)));
        }
        answer
    }

    /// Whether `node` has answered a call of this limiter in time after `uptime`.
    fn has_answered_since(&self, node: usize, uptime: Micros) -> bool {
        self.stats_of(node).answered_at.load(Ordering::Relaxed) > uptime.get()
    }

    /// Those of `nodes` that a late call to all of them waits for.
    fn still_to_answer<'r>(&'r self, nodes: &'r [usize]) -> impl Iterator<Item = &'r NodeStats> + 'r {
        let ways = nodes.iter().map(|node| self.stats_of(*node));
        ways.filter(|way| nodes.len() == 1 || way.state() != ServerState::Alive)
    }

    /// The expected duration of a call to these nodes.
    fn expected_call(&self, nodes: &[usize]) -> Micros {
        let takes = nodes.iter().map(|node| self.stats_of(*node).call_takes.load(Ordering::Relaxed));
        Micros::new(takes.max().unwrap_or(0))
    }

    /// Runs one operation other than a decision to completion, within the deadline, even if its caller stops waiting.
    ///
    /// # Errors
    /// When the store did not answer, or a breaker is open.
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
        let mut claims = self.claims();
        if let Some(away) = nodes.iter().find(|node| !claims.claim(**node)) {
            return Err(self.breaker_is_open(*away));
        }
        claims.sent();
        Ok(())
    }

    /// Awaits `work` within the deadline, and reports the result to breakers and observer.
    pub(crate) async fn call<T>(
        self: &Arc<Self>,
        call: StoreCall,
        nodes: &[usize],
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let sent = self.arrival();
        let answer = match self.attend(self.timeout, work).await {
            Some(answer) => answer,
            None => Err(self.timed_out(nodes, self.timeout)),
        };
        self.note(call, nodes, sent, answer.as_ref().err());
        answer
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

    pub(crate) fn timeout(&self) -> Micros {
        self.timeout
    }

    pub(crate) fn runtime(&self) -> &dyn Runtime {
        &*self.runtime
    }

    pub(crate) fn spawn(&self, task: Task) {
        self.runtime.spawn(task);
    }

    fn tell(&self, change: Option<Change>) {
        if let Some(Change { node, state }) = change {
            let endpoint = self.store.endpoint(node);
            // A node without an endpoint holds no cells.
            if !endpoint.is_empty() {
                self.observer.breaker_changed(&endpoint, state);
            }
        }
    }

    fn timed_out(&self, nodes: &[usize], waited: Micros) -> StoreError {
        let names: Vec<String> = nodes.iter().map(|node| self.store.endpoint(*node)).collect();
        StoreError::TimedOut { endpoint: names.join(" and "), waited: waited.into() }
    }

    fn breaker_is_open(&self, node: usize) -> StoreError {
        let source = "its circuit breaker is open".into();
        StoreError::NotApplied { endpoint: self.store.endpoint(node), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_off_is_due_after_its_pause() {
        let (pause, at) = (Micros::from_millis(100), Micros::new);
        let next = NotBefore::default();
        assert!(next.is_due(at(5_000_000)), "at first");
        next.put_off(at(5_000_000), pause);
        assert!(!next.is_due(at(5_099_999)));
        assert!(next.is_due(at(5_100_000)));
        assert!(next.take(at(5_100_000), pause) && !next.take(at(5_100_000), pause), "once");
    }
}
