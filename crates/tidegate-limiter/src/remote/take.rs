//! Takes hits from the home store of rules for all regions, before they are spent here.
//!
//! A request whose purse is empty waits here for the next take of its cell; what gathers meanwhile, over all cells, rides the next
//! call. Home counts each hit as any other request of it: as many as fit pass, in one folded request. An answer that comes too late
//! for those who waited still fills the purse. One that is lost leaves its hits unused; nothing is asked twice.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::{Ask, Group, Hits, Outcome, Returned, Timestamp, Touch};
use tidegate_rules::Coordination;
use tidegate_store::{Clock, Request, Spend, Store, StoreError};

use super::background::LARGEST_BATCH;
use super::ticket::{Ticket, TicketWaiter};
use super::{LATE_CALLS_HEARD_FOR, Remote};
use crate::cell::{CellAsk, KeptCell, Refunds};
use crate::cell_hash::CellHash;
use crate::local::purses::Order;
use crate::observer::StoreCall;
use crate::runtime::within;

/// The most calls that take hits at once: the round trip is long, and each carries many cells.
const MOST_CALLS: usize = 8;

/// Takes that wait for a call, and requests that wait for takes.
#[derive(Default)]
pub(super) struct Takes(Mutex<TakeQueue>);

#[derive(Default)]
struct TakeQueue {
    /// Each cell is in it at most once: its purse says whether it was asked for.
    cells: VecDeque<CellHash>,
    waiting: HashMap<CellHash, Vec<Ticket<(), ()>>>,
    calls: usize,
}

/// Waits until home has answered about a cell, or did not.
pub(crate) type Funded = TicketWaiter<(), ()>;

impl Remote {
    /// Waits for the next take of this cell; `None` if it cannot be had now.
    pub(crate) fn fund(self: &Arc<Self>, ask: &CellAsk<'_>) -> Option<Funded> {
        let node = self.store.node_of(ask.spend.cell.tag);
        if !self.breakers.lets_pass(node, self.clock.uptime()) {
            return None;
        }
        let (ticket, waiter) = Ticket::new(());
        let is_first = {
            // Under the lock in which waiters are woken: an answer that comes between the two would wake nobody.
            let mut takes = self.takes.0.lock();
            let is_first = self.local.purses.wait(ask, self.local.uptime())?;
            takes.waiting.entry(ask.hash).or_default().push(ticket);
            is_first
        };
        if is_first {
            self.take_soon(ask.hash);
        }
        Some(waiter)
    }

    /// The cell of `ask`, as this home counts it.
    pub(crate) fn home_cell(&self, ask: &CellAsk<'_>) -> KeptCell {
        let is_escrow = ask.policy.coordination == Coordination::Escrow;
        is_escrow.then(|| self.local.purses.lent(ask)).flatten().unwrap_or_else(|| ask.cell())
    }

    /// Takes hits for a cell in the background. Its purse knows that it was asked for.
    pub(crate) fn take_soon(self: &Arc<Self>, cell: CellHash) {
        let starts = {
            let mut takes = self.takes.0.lock();
            takes.cells.push_back(cell);
            let starts = takes.calls < MOST_CALLS;
            takes.calls += usize::from(starts);
            starts
        };
        if starts {
            let remote = self.clone();
            self.spawn(Box::pin(async move { remote.take_all().await }));
        }
    }

    /// Takes for what waits, call by call, until nothing does.
    async fn take_all(self: &Arc<Self>) {
        let ended = EndOfCalls(&self.takes);
        loop {
            let cells: Vec<CellHash> = {
                let mut takes = self.takes.0.lock();
                let most = takes.cells.len().min(LARGEST_BATCH);
                if most == 0 {
                    // Under the lock, so that whoever comes next starts a call.
                    takes.calls -= 1;
                    std::mem::forget(ended);
                    return;
                }
                takes.cells.drain(..most).collect()
            };
            let (now, holders) = (self.local.uptime(), self.local.fleet.size());
            let orders = cells.into_iter().filter_map(|cell| self.local.purses.order(cell, holders, now));
            // Node by node, so that one that is unavailable costs only its own.
            let mut nodes: Vec<(usize, Vec<Order>)> = Vec::new();
            for order in orders {
                let node = self.store.node_of(order.cell.tag());
                match nodes.iter_mut().find(|(known, _)| *known == node) {
                    Some((_, of_node)) => of_node.push(order),
                    None => nodes.push((node, vec![order])),
                }
            }
            for (node, orders) in nodes {
                self.take(node, orders).await;
            }
        }
    }

    /// Makes one call, and fills the purses with its answer.
    async fn take(self: &Arc<Self>, node: usize, orders: Vec<Order>) {
        let hashes: Vec<CellHash> = orders.iter().map(|order| order.hash).collect();
        if self.claim_all(&[node]).is_err() {
            return self.not_taken(&hashes);
        }
        let (store, asked) = (self.store(), self.local.uptime());
        let mut call = Box::pin(async move {
            let answer = decide(&*store, &orders).await;
            answer.map(|granted| (orders, granted))
        });
        let mut is_over = false;
        let work = async {
            let answer = call.as_mut().await;
            is_over = true;
            answer
        };
        match self.call(StoreCall::Decide, &[node], work).await {
            Ok(answer) => self.taken(answer, asked),
            Err(_) if is_over => self.not_taken(&hashes),
            Err(_) => {
                // Those who wait have run out of time, but what home charged is theirs.
                self.wake(&hashes);
                let remote = self.clone();
                self.spawn(Box::pin(async move {
                    match within(&*remote.runtime, LATE_CALLS_HEARD_FOR, call).await {
                        Some(Ok(answer)) => remote.taken(answer, asked),
                        _ => remote.not_taken(&hashes),
                    }
                }));
            }
        }
    }

    fn taken(&self, (orders, granted): (Vec<Order>, Vec<(u64, Outcome)>), asked: Timestamp) {
        let now = self.local.uptime();
        for (order, (hits, outcome)) in orders.iter().zip(granted) {
            let known = self.local.purses.received(order, hits, outcome, (asked, now));
            if let Some((cell, spent)) = known {
                let touch = Touch { limit: cell.limit(), ask: Ask::look(), group: Group::ENFORCED };
                self.local.set(Spend { cell: cell.key(), touch }, spent);
            }
        }
        self.wake(&orders.iter().map(|order| order.hash).collect::<Vec<_>>());
    }

    fn not_taken(&self, cells: &[CellHash]) {
        cells.iter().for_each(|cell| self.local.purses.not_received(*cell));
        self.wake(cells);
    }

    /// Wakes those who wait for these cells.
    fn wake(&self, cells: &[CellHash]) {
        let mut takes = self.takes.0.lock();
        let waiting: Vec<_> = cells.iter().filter_map(|cell| takes.waiting.remove(cell)).collect();
        drop(takes);
        waiting.iter().flatten().for_each(|ticket| ticket.fill(()));
    }

    /// Returns hits that are worth more to others.
    pub(super) async fn return_hits(self: &Arc<Self>) {
        let all = self.local.purses.returns(LARGEST_BATCH, self.local.uptime());
        self.return_all(all).await;
    }

    /// Returns all hits: this limiter ends.
    pub(super) async fn empty_purses(self: &Arc<Self>) {
        let all = self.local.purses.empty(self.local.uptime());
        self.return_all(all).await;
    }

    async fn return_all(self: &Arc<Self>, all: Vec<(KeptCell, Returned)>) {
        for some in all.chunks(LARGEST_BATCH) {
            let refunds: Refunds =
                some.iter().map(|(cell, one)| (cell.clone(), Hits::new(one.hits), one.age)).collect();
            // What does not reach home stays unused.
            let _ = self.refund(refunds, None).await;
        }
    }
}

/// A task that is dropped midway, with its runtime, no longer calls.
struct EndOfCalls<'t>(&'t Takes);

impl Drop for EndOfCalls<'_> {
    fn drop(&mut self) {
        self.0.0.lock().calls -= 1;
    }
}

/// How many hits of each order the store grants, and the outcome of the last that was asked for.
async fn decide(store: &dyn Store, orders: &[Order]) -> Result<Vec<(u64, Outcome)>, StoreError> {
    let spends: Vec<[Spend<'_>; 1]> = orders.iter().map(|order| [spend_of(order)]).collect();
    let count = |order: &Order| NonZeroU32::new(order.hits).unwrap_or(NonZeroU32::MIN);
    let equal = spends.iter().zip(orders).map(|(spends, order)| Request { spends, count: count(order) });
    let batch: Vec<Request<'_>> = equal.collect();
    let decided = store.decide(&batch).answer().await?;
    let granted = decided.per_request(&batch).zip(orders).map(|(told, order)| {
        let passed = if order.hits == 0 { 0 } else { u64::from(told.passed()) };
        let last = told.at(order.hits.saturating_sub(1)).next();
        (passed, last.expect("one spend, one outcome"))
    });
    Ok(granted.collect())
}

/// One hit of an order, or a look.
fn spend_of(order: &Order) -> Spend<'_> {
    let ask = if order.hits == 0 { Ask::look() } else { Ask::hits(1) };
    let touch = Touch { limit: order.cell.limit(), ask, group: Group::ENFORCED };
    Spend { cell: order.cell.key(), touch }
}
