//! The contract of every store, and its request types.

use std::future::Future;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::pin::Pin;

use tidegate_core::{
    Ask, CellForm, Charge, Fold, Group, Hits, KeyRoom, LeaseId, Limit, Micros, Outcome, Rate, Scope, Stance,
    Timestamp, TokenBucket, Touch,
};

use crate::error::StoreError;
use crate::outcomes::Outcomes;
use crate::record::{Record, no_records};

/// The `retry_after` of a refusal that comes from the store, not from the limit: another request briefly holds the missing
/// quota and may put it back, or the store was too busy to be asked. It starts no penalty.
pub const HELD_RETRY_AFTER: Micros = Micros::new(99_999);

/// Stores cells: in this process's memory, or in a Redis that all nodes share.
///
/// 1. A request spends from all cells of its enforced rules or from none; a refused request spends nothing, unless a limit goes into debt for it
///    ([`Over`](tidegate_core::Over)).
/// 2. Requests act as if run one after another, those of a batch in order.
/// 3. Given the same time, the answer is exactly [`tidegate_core`]'s.
/// 4. The store's clock decides. Callers pass spans and ages, never timestamps. An answer carries its decision time for logs
///    only: requests with a later time were decided after those with an earlier one.
/// 5. An error says whether the request may have been applied.
/// 6. Cells whose full quota is back disappear automatically.
/// 7. Equal requests folded into one are decided as if run one after another, at a cost independent of their number.
/// 8. A call whose reply is dropped leaves the store as if it had completed, or as if it was never made.
///
/// `conformance::check` (with the feature `conformance`) tests this list. A wrapper must forward every method, including those
/// with a default body: the defaults describe a single-node store without records or a fleet.
pub trait Store: Send + Sync + 'static {
    /// Decides a batch: one outcome per spend of every request, in order. A request passes if its rules are satisfied
    /// ([`Stance`]); a refusal starts the penalty of the rule that refused, in the same step. A request for which a key has no
    /// room fails alone ([`BatchOutcomes::too_large`]).
    fn decide<'a>(&'a self, batch: &'a [Request<'a>]) -> Reply<'a, BatchOutcomes>;

    /// Decides one request at once, or returns `None` and does nothing: a store that must be awaited. For a request without
    /// spends the answer says which of the two it is, and a store never changes its mind.
    fn decide_now(&self, _request: &Request<'_>) -> Option<BatchOutcomes> {
        None
    }

    /// Refunds hits, at most what was spent. Leaky buckets refund nothing: requests queued behind already have their delay. A
    /// refund with an ID is applied once per cell, however often it is sent.
    fn refund<'a>(&'a self, refunds: &'a [Refund<'a>]) -> Reply<'a, Stamped<()>>;

    /// Charges hits that were already spent, whether or not they fit.
    fn charge<'a>(&'a self, charges: &'a [CellCharge<'a>]) -> Reply<'a, Stamped<()>>;

    /// Deletes a cell: its full quota is back.
    fn reset<'a>(&'a self, cell: CellKey<'a>, limit: &'a Limit) -> Reply<'a, Stamped<()>>;

    /// Extends a lease by its TTL; false if it had ended.
    fn renew<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>>;

    /// Ends a lease; false if it had ended already.
    fn release<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>>;

    /// Writes `record` for `ttl`, unless its name exists: then the existing value is kept and returned. If several nodes write
    /// at once, one succeeds, and the others get its value.
    ///
    /// A store without records returns `NotApplied`.
    fn put_record<'a>(&'a self, _record: Record<'a>, _ttl: Micros) -> Reply<'a, Option<Vec<u8>>> {
        Reply::Now(Err(no_records()))
    }

    /// Replaces `record` by `to` for `ttl`, or deletes it; false if the stored record is a different one. Idempotent.
    fn replace_record<'a>(
        &'a self,
        _record: Record<'a>,
        _to: Option<&'a [u8]>,
        _ttl: Micros,
    ) -> Reply<'a, bool> {
        Reply::Now(Err(no_records()))
    }

    /// The room that it has for the limits of one key tuple; none if there is no bound that a rule can reach. Rules that want more
    /// are refused before they are used ([`KeyRoom`]).
    fn key_room(&self) -> Option<KeyRoom> {
        None
    }

    /// The number of nodes that its cells are spread over. Each may fail independently. The number is fixed at the start; if
    /// the store grows later, servers share a node number.
    fn nodes(&self) -> usize {
        1
    }

    /// The node, below [`Store::nodes`], of the cells with this tag.
    fn node_of(&self, _tag: &[u8]) -> usize {
        0
    }

    /// The node's name for operators; empty while it holds nothing.
    fn endpoint(&self, _node: usize) -> String {
        "memory".to_owned()
    }

    /// Makes `node` decide something: it reads and writes like a usual request, and is as large. An open connection is not
    /// enough, nor an answer from a replica. An answer that is late is still awaited, for longer than a request would.
    fn probe(&self, _node: usize) -> Reply<'_, ()> {
        Reply::Later(Box::pin(async move {
            let rate = Rate::new(1_000_000, Micros::from_secs(1)).expect("a valid rate");
            let limit = Limit::TokenBucket(TokenBucket::new(rate, 1_000_000).expect("a valid burst"));
            let touch = Touch { limit: &limit, ask: Ask::hits(1), group: Group::ENFORCED };
            let scope = Scope::new(&[b"probe"]);
            let spends = [Spend { cell: CellKey { scope: &scope, key: b"probe", tag: b"probe" }, touch }];
            self.decide(&[Request::once(&spends)]).answer().await.map(drop)
        }))
    }

    /// Registers the limiter `member` as live for another `ttl`, and returns the number of live limiters, itself included.
    fn heartbeat(&self, _member: u64, _ttl: Micros) -> Reply<'_, usize> {
        Reply::Now(Ok(1))
    }

    /// Removes the limiter `member`: the next heartbeat of another does not count it. Idempotent.
    fn leave(&self, _member: u64) -> Reply<'_, ()> {
        Reply::Now(Ok(()))
    }
}

/// One request, or several equal ones: the spends of each, all on different cells (a caller that would touch a cell twice asks
/// for the sum). The cells of a rule with a penalty share a tag.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its spends.
    pub spends: &'a [Spend<'a>],
    /// The number of equal requests. It is 1 for a request that takes a lease, because each needs its own, and for one that
    /// charges under a rule with a penalty, because that would start in their midst. (Where refused requests count under such a
    /// rule, which of several starts it is not said: all of them are refused.)
    pub count: NonZeroU32,
}

impl<'a> Request<'a> {
    /// A single request.
    #[must_use]
    pub const fn once(spends: &'a [Spend<'a>]) -> Self {
        Request { spends, count: NonZeroU32::MIN }
    }

    /// Roughly how many microseconds a shared store spends on it; used to size batches.
    #[must_use]
    pub fn store_us(&self) -> u64 {
        let spends: u64 = self.spends.iter().map(|spend| spend.store_us(self.count)).sum();
        // With several cells, each is read before any is spent from.
        let looks = if self.spends.len() > 1 || self.is_fold() { 2 } else { 1 };
        spends * looks
    }

    /// Whether it stands for several equal requests.
    #[must_use]
    pub const fn is_fold(&self) -> bool {
        self.count.get() > 1
    }
}

/// A request's spend on one cell.
#[derive(Clone, Copy, Debug)]
pub struct Spend<'a> {
    /// The cell.
    pub cell: CellKey<'a>,
    /// Its limit, and the amount asked for.
    pub touch: Touch<'a>,
}

impl Spend<'_> {
    /// Roughly how many microseconds a shared store spends on `count` of it, within a batch (`cargo xtask bench redis-costs`).
    fn store_us(&self, count: NonZeroU32) -> u64 {
        let limit = self.touch.limit;
        let counting = if limit.counts_refused() { 2 } else { 1 };
        match limit.form() {
            // Up to this size a log is read and written whole.
            CellForm::Log { hits, .. } if hits <= 1_000 => counting * (6 + hits / 150),
            // In a longer log, each hit is written on its own.
            CellForm::Log { hits, .. } => {
                let asked = self.touch.ask.hits.get().saturating_mul(count.get().into());
                counting * (15 + asked.min(hits) / 150)
            }
            // Refusals go to a log, and a refusal computes when enough leases and log entries will have expired.
            CellForm::Leases { .. } if limit.counts_refused() => 60,
            CellForm::Leases { .. } => 13,
            CellForm::Counter => 4,
        }
    }
}

/// Identifies a cell: the limit and the key.
#[derive(Clone, Copy, Debug)]
pub struct CellKey<'a> {
    /// Its limit.
    pub scope: &'a Scope,
    /// The key tuple, its parts length-prefixed ([`tidegate_core::append_part`]).
    pub key: &'a [u8],
    /// Cells with the same tag live on the same node of a partitioned store. It is the key, unless a rule colocates.
    pub tag: &'a [u8],
}

/// Hits to refund.
#[derive(Clone, Copy, Debug)]
pub struct Refund<'a> {
    /// The cell they were spent from.
    pub cell: CellKey<'a>,
    /// Its limit.
    pub limit: &'a Limit,
    /// How many.
    pub hits: Hits,
    /// Their age, so that they go back to the window that was charged.
    pub age: Micros,
    /// Set if the refund may be sent again because its answer was lost: each cell applies it once.
    pub id: Option<RefundId>,
}

/// Identifies a refund, so that sending it again within [`RefundId::KNOWN_FOR`] changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefundId(u128);

impl RefundId {
    /// How long a store remembers a refund: twice the minute for which a request's name is valid, so that the last retry in
    /// that minute is covered too.
    pub const KNOWN_FOR: Micros = Micros::from_secs(120);

    /// An ID from random bytes, or from a hash that identifies the refund.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        RefundId(u128::from_le_bytes(bytes))
    }

    /// Its bytes.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }
}

/// Hits to charge that were already spent.
#[derive(Clone, Copy, Debug)]
pub struct CellCharge<'a> {
    /// The cell to charge.
    pub cell: CellKey<'a>,
    /// Its limit.
    pub limit: &'a Limit,
    /// The hits, their age, and the allowed overdraft.
    pub charge: Charge,
}

/// A lease on a cell of a concurrency limit.
#[derive(Clone, Copy, Debug)]
pub struct LeaseRef<'a> {
    /// The cell it was taken from.
    pub cell: CellKey<'a>,
    /// Its limit; a renewal extends the lease by the limit's TTL.
    pub limit: &'a Limit,
    /// Its ID.
    pub id: LeaseId,
}

/// The outcomes of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchOutcomes {
    /// One outcome per spend of every request, in order. For a folded request, that of the last equal one.
    pub outcomes: Outcomes,
    /// One per spend of every folded request, in order.
    pub folds: Vec<Fold>,
    /// When all of it was decided, by the store's clock: for logs only, never for decisions. None unless it was one moment of
    /// one clock.
    pub decided_at: Option<Timestamp>,
    /// The requests, by their place in the batch, that changed nothing and never will, because the store does not keep so much of
    /// one key: with what to do about it. Their outcomes are refusals after [`HELD_RETRY_AFTER`]. A batch of nothing else is
    /// [`StoreError::TooLarge`].
    pub too_large: Vec<(usize, String)>,
}

/// An answer, and when the store produced it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "there is nothing else to know")]
pub struct Stamped<T> {
    /// The answer.
    pub value: T,
    /// When, by the store's clock: for logs only, never for decisions. None unless it was one moment of one clock.
    pub at: Option<Timestamp>,
}

impl<T> Stamped<T> {
    /// An answer with this time.
    #[must_use]
    pub const fn at(value: T, at: Timestamp) -> Self {
        Stamped { value, at: Some(at) }
    }

    /// Maps the answer and keeps the time.
    #[must_use]
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Stamped<U> {
        Stamped { value: change(self.value), at: self.at }
    }
}

impl BatchOutcomes {
    /// The outcomes of each request of `batch`, which must be the decided batch.
    pub fn per_request<'a>(&'a self, batch: &'a [Request<'a>]) -> impl Iterator<Item = RequestOutcomes<'a>> {
        let (mut outcomes, mut folds) = (&self.outcomes[..], &self.folds[..]);
        batch.iter().map(move |request| {
            let (of_request, later) = outcomes.split_at(request.spends.len());
            outcomes = later;
            let (folded, later) = folds.split_at(if request.is_fold() { request.spends.len() } else { 0 });
            folds = later;
            RequestOutcomes { request: *request, outcomes: of_request, folds: folded }
        })
    }
}

impl From<Outcomes> for BatchOutcomes {
    /// The outcomes of requests without folds.
    #[inline]
    fn from(outcomes: Outcomes) -> Self {
        BatchOutcomes { outcomes, ..BatchOutcomes::default() }
    }
}

impl FromIterator<Outcome> for BatchOutcomes {
    /// The outcomes of requests without folds.
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Self {
        BatchOutcomes { outcomes: outcomes.into_iter().collect(), ..BatchOutcomes::default() }
    }
}

impl Deref for BatchOutcomes {
    type Target = Outcomes;

    fn deref(&self) -> &Outcomes {
        &self.outcomes
    }
}

impl IntoIterator for BatchOutcomes {
    type Item = Outcome;
    type IntoIter = <Outcomes as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        self.outcomes.into_iter()
    }
}

impl<'a> IntoIterator for &'a BatchOutcomes {
    type Item = &'a Outcome;
    type IntoIter = std::slice::Iter<'a, Outcome>;

    fn into_iter(self) -> Self::IntoIter {
        self.outcomes.iter()
    }
}

/// The outcomes of one request of a batch, and of all its equal ones.
#[derive(Clone, Copy, Debug)]
pub struct RequestOutcomes<'a> {
    request: Request<'a>,
    outcomes: &'a [Outcome],
    folds: &'a [Fold],
}

impl RequestOutcomes<'_> {
    /// How many of the equal requests pass; they are the first ones.
    #[must_use]
    pub fn passed(&self) -> u32 {
        self.satisfied(Fold::passed, Outcome::is_admitted)
    }

    /// How many of the equal requests spent: those that pass, and those that a limit went into debt for. They are the first
    /// ones.
    #[must_use]
    pub fn spent(&self) -> u32 {
        self.satisfied(Fold::spent, Outcome::is_spent)
    }

    /// How many requests its rules count: of several equal ones, or of a single one.
    fn satisfied(&self, of_fold: fn(&Fold) -> u32, of_one: fn(&Outcome) -> bool) -> u32 {
        let counted = |(number, spend): (usize, &Spend<'_>)| match self.folds.get(number) {
            Some(fold) => (spend.touch.group, of_fold(fold)),
            None => (spend.touch.group, u32::from(of_one(&self.outcomes[number]))),
        };
        Stance::satisfied(self.request.spends.iter().enumerate().map(counted), self.request.count.get())
    }

    /// The outcomes of the equal request at index `place`: one per spend.
    pub fn at(&self, place: u32) -> impl Iterator<Item = Outcome> {
        let of = move |(number, spend): (usize, &Spend<'_>)| match self.folds.get(number) {
            Some(fold) => fold.at(place, spend.touch.limit, spend.touch.ask.hits),
            None => self.outcomes[number],
        };
        self.request.spends.iter().enumerate().map(of)
    }
}

/// A reply that is ready (memory) or pending (network). Awaiting a ready one costs nothing: no allocation, no suspension.
pub enum Reply<'a, T> {
    /// Ready.
    Now(Result<T, StoreError>),
    /// Pending.
    Later(Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>),
}

impl<T> Reply<'_, T> {
    /// Waits for the answer if it is pending.
    ///
    /// # Errors
    /// When the store fails.
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
