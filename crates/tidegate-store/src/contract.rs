//! What every store promises, and the words in which it is asked.

use std::future::Future;
use std::pin::Pin;

use smallvec::SmallVec;
use tidegate_core::{Hits, LeaseId, Limit, Micros, Outcome, Scope, Touch};

use crate::error::StoreError;

/// Where cells live: this process's memory, or a Redis that every node shares.
///
/// 1. A request spends from all its cells or from none; one that is refused spends from none.
/// 2. Requests act as if run one after another, those of one batch in their order.
/// 3. Given the same time, the answer is exactly [`tidegate_core`]'s.
/// 4. The time is the store's own. Callers pass spans and ages, never timestamps.
/// 5. A failure says whether the request may have been applied.
/// 6. Cells whose full quota is back vanish by themselves.
/// 7. An answer that nobody waits for any more leaves the store as if it had been waited for, or as if never asked.
///
/// `conformance::check` tests this list. What fails it is not a store.
pub trait Store: Send + Sync + 'static {
    /// Decides a batch: one outcome per spend of every request, in order. A request passes if all its enforced spends
    /// were admitted.
    fn decide<'a>(&'a self, batch: &'a [Request<'a>]) -> Reply<'a, Outcomes>;

    /// Gives hits back, at most what was spent. Leaky buckets keep theirs: those behind were already told their time.
    fn refund<'a>(&'a self, refunds: &'a [Refund<'a>]) -> Reply<'a, ()>;

    /// Takes hits that were already spent elsewhere, whether or not they fit.
    fn charge<'a>(&'a self, spends: &'a [Spend<'a>]) -> Reply<'a, ()>;

    /// Forgets a cell: its full quota is back.
    fn reset<'a>(&'a self, cell: CellKey<'a>, limit: &'a Limit) -> Reply<'a, ()>;

    /// Gives a lease another time to live; false if it had ended.
    fn renew<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, bool>;

    /// Ends a lease; false if it had ended already.
    fn release<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, bool>;

    /// Over how many nodes its cells are spread. Each may fail while the others go on. The number stays what it was at
    /// the start; a store that grows later lets nodes share one.
    fn nodes(&self) -> usize {
        1
    }

    /// The node, below [`Store::nodes`], that holds the cells of this tag.
    fn node_of(&self, _tag: &[u8]) -> usize {
        0
    }

    /// The node's name, as an operator knows it.
    fn endpoint(&self, _node: usize) -> String {
        "memory".to_owned()
    }

    /// Answers once `node` can decide: it reads and writes there what a request would. That a connection stands is not
    /// enough, nor that a replica answers.
    fn probe(&self, _node: usize) -> Reply<'_, ()> {
        Reply::Now(Ok(()))
    }

    /// Says that the limiter called `member` is alive for another `ttl`, and answers how many are, itself included.
    fn heartbeat(&self, _member: u64, _ttl: Micros) -> Reply<'_, usize> {
        Reply::Now(Ok(1))
    }
}

/// One request: what it spends, from cells that are all different (a caller that would touch one twice asks for the sum).
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What it spends where.
    pub spends: &'a [Spend<'a>],
}

/// What a request asks of one cell.
#[derive(Clone, Copy, Debug)]
pub struct Spend<'a> {
    /// The cell.
    pub cell: CellKey<'a>,
    /// The limit that guards it, and what is asked.
    pub touch: Touch<'a>,
}

/// Names a cell: whose limit it is, and for whom.
#[derive(Clone, Copy, Debug)]
pub struct CellKey<'a> {
    /// The limit it belongs to.
    pub scope: &'a Scope,
    /// The key tuple, its parts length-prefixed ([`tidegate_core::append_part`]).
    pub key: &'a [u8],
    /// What cells must share to live on the same node of a partitioned store. The key itself unless a rule colocates.
    pub tag: &'a [u8],
}

/// Hits to give back.
#[derive(Clone, Copy, Debug)]
pub struct Refund<'a> {
    /// The cell they were taken from.
    pub cell: CellKey<'a>,
    /// The limit that guards it.
    pub limit: &'a Limit,
    /// How many.
    pub hits: Hits,
    /// How long ago they were taken, so that they go back into the window that was charged.
    pub age: Micros,
}

/// A lease on a cell of a concurrency limit.
#[derive(Clone, Copy, Debug)]
pub struct LeaseRef<'a> {
    /// The cell it was taken from.
    pub cell: CellKey<'a>,
    /// The limit that guards it; its time to live is what a renewal gives.
    pub limit: &'a Limit,
    /// Its name.
    pub id: LeaseId,
}

/// One outcome per spend of every request of a batch, in order.
pub type Outcomes = SmallVec<[Outcome; 4]>;

/// An answer that is there already (memory) or will come (a network). Awaiting it costs nothing in the first case: no
/// allocation, no suspension.
pub enum Reply<'a, T> {
    /// Here it is.
    Now(Result<T, StoreError>),
    /// It will come.
    Later(Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>),
}

impl<T> Reply<'_, T> {
    /// The answer, waited for where it has yet to come.
    ///
    /// # Errors
    /// When the store did not answer.
    pub async fn answer(self) -> Result<T, StoreError> {
        match self {
            Reply::Now(answer) => answer,
            Reply::Later(answer) => answer.await,
        }
    }
}

impl<T> std::fmt::Debug for Reply<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Reply::Now(Ok(_)) => "Reply::Now(Ok)",
            Reply::Now(Err(_)) => "Reply::Now(Err)",
            Reply::Later(_) => "Reply::Later",
        })
    }
}
