//! What every store promises, and the words in which it is asked.

use std::future::Future;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::pin::Pin;

use tidegate_core::{Charge, Fold, Hits, LeaseId, Limit, Micros, Outcome, Scope, Stance, Timestamp, Touch};

use crate::error::StoreError;
use crate::outcomes::Outcomes;
use crate::record::{Record, no_records};

/// How long ago a node of a store last answered; none where that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "there is nothing else to know")]
pub struct LastHeard {
    /// Within the time that a decision may take.
    pub in_time: Option<Micros>,
    /// After that time.
    pub late: Option<Micros>,
    /// What a witness says of it, where the store has one.
    pub witness: Option<WitnessReport>,
}

/// What one says of a node that has missed a deadline who has nothing else to do than to ask it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "there is nothing else to know")]
pub struct WitnessReport {
    /// How long ago it last answered promptly: no later than a decision may take, and what else was under way explains.
    pub prompt: Option<Micros>,
    /// For how long it has not answered at all; zero while nobody has doubts.
    pub silent_for: Micros,
    /// For how long it has not answered promptly; zero while nobody has doubts.
    pub late_for: Micros,
    /// About the longest that it took to answer lately.
    pub answers_within: Micros,
}

impl WitnessReport {
    /// A node that was slow to answer lately may be silent for so many times as long.
    const SLOWER: u64 = 4;
    /// A node that only ever answers late has failed after this.
    pub const LONGEST_LATENESS: Micros = Micros::from_secs(2);

    /// Whether the node answers nobody: for the shortest of these patiences, or for a few times as long as it took to answer
    /// lately, and the longest at most.
    #[must_use]
    pub fn is_silent(&self, patience: std::ops::Range<Micros>) -> bool {
        let as_lately = Micros::new(self.answers_within.get().saturating_mul(Self::SLOWER));
        self.silent_for >= as_lately.clamp(patience.start, patience.end)
    }

    /// Whether the node answers, but for too long never in time.
    #[must_use]
    pub fn is_too_slow(&self) -> bool {
        self.late_for >= Self::LONGEST_LATENESS
    }
}

/// The wait of a refusal by a partitioned store that is none of the limit's: another request holds for a moment what is missing,
/// and may put it back. No penalty begins with it.
pub const HELD_RETRY_AFTER: Micros = Micros::new(99_999);

/// Where cells live: this process's memory, or a Redis that every node shares.
///
/// 1. A request spends from all its cells or from none; one that is refused spends from none.
/// 2. Requests act as if run one after another, those of one batch in their order.
/// 3. Given the same time, the answer is exactly [`tidegate_core`]'s.
/// 4. The time is the store's own. Callers pass spans and ages, never timestamps. An answer says when it was decided, for logs
///    alone: requests with a later time were decided after those with an earlier one.
/// 5. A failure says whether the request may have been applied.
/// 6. Cells whose full quota is back vanish by themselves.
/// 7. Equal requests folded into one are decided as they would be one after another, at a cost that does not grow with
///    their number.
/// 8. An answer that nobody waits for any more leaves the store as if it had been waited for, or as if never asked.
///
/// `conformance::check` (with the feature `conformance`) tests this list. What fails it is not a store. One that wraps another
/// forwards every method, those with a body too: they are what a store of one node without records or a fleet says.
pub trait Store: Send + Sync + 'static {
    /// Decides a batch: one outcome per spend of every request, in order. A request passes if all its enforced spends
    /// were admitted.
    fn decide<'a>(&'a self, batch: &'a [Request<'a>]) -> Reply<'a, BatchOutcomes>;

    /// Gives hits back, at most what was spent. Leaky buckets keep theirs: those behind were already told their time. Where
    /// a refund has an id, each cell gets it back once, however often it is sent.
    fn refund<'a>(&'a self, refunds: &'a [Refund<'a>]) -> Reply<'a, Stamped<()>>;

    /// Takes hits that were already spent, whether or not they fit.
    fn charge<'a>(&'a self, charges: &'a [CellCharge<'a>]) -> Reply<'a, Stamped<()>>;

    /// Forgets a cell: its full quota is back.
    fn reset<'a>(&'a self, cell: CellKey<'a>, limit: &'a Limit) -> Reply<'a, Stamped<()>>;

    /// Gives a lease another time to live; false if it had ended.
    fn renew<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>>;

    /// Ends a lease; false if it had ended already.
    fn release<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>>;

    /// Writes `record` for `ttl` under its name, unless there is one already: then that one stays and is the answer. Of
    /// several nodes that write at once, one does, and the others read what it wrote.
    ///
    /// A store that keeps no records says so: certainly not applied.
    fn put_record<'a>(&'a self, _record: Record<'a>, _ttl: Micros) -> Reply<'a, Option<Vec<u8>>> {
        Reply::Now(Err(no_records()))
    }

    /// Puts `to` in the place of `record`, for `ttl`, or nothing; false if the record is not, or no longer, that one.
    /// Doing so twice does no harm.
    fn replace_record<'a>(
        &'a self,
        _record: Record<'a>,
        _to: Option<&'a [u8]>,
        _ttl: Micros,
    ) -> Reply<'a, bool> {
        Reply::Now(Err(no_records()))
    }

    /// Over how many nodes its cells are spread. Each may fail while the others go on. The number stays what it was at
    /// the start; a store that grows later lets nodes share one.
    fn nodes(&self) -> usize {
        1
    }

    /// The node, below [`Store::nodes`], that holds the cells of this tag.
    fn node_of(&self, _tag: &[u8]) -> usize {
        0
    }

    /// The node's name, as an operator knows it; empty while it holds nothing.
    fn endpoint(&self, _node: usize) -> String {
        "memory".to_owned()
    }

    /// How long ago `node` last answered, also to a part of a decision that then came too late as a whole.
    fn last_heard(&self, _node: usize) -> LastHeard {
        LastHeard::default()
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

    /// Says that the limiter called `member` is no longer alive: the next heartbeat of another does not count it. Doing so
    /// twice does no harm.
    fn leave(&self, _member: u64) -> Reply<'_, ()> {
        Reply::Now(Ok(()))
    }
}

/// One request, or several equal ones: what each spends, from cells that are all different (a caller that would touch one
/// twice asks for the sum).
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What it spends where.
    pub spends: &'a [Spend<'a>],
    /// How many equal requests it stands for. One that takes a lease stands for itself alone.
    pub count: NonZeroU32,
}

impl<'a> Request<'a> {
    /// A request that stands for itself alone.
    #[must_use]
    pub const fn once(spends: &'a [Spend<'a>]) -> Self {
        Request { spends, count: NonZeroU32::MIN }
    }

    /// About how many microseconds a shared store works on it: what a call that carries many is planned by.
    #[must_use]
    pub fn store_us(&self) -> u64 {
        let spends: u64 = self.spends.iter().map(|spend| spend.store_us(self.count)).sum();
        // Where cells are several, each is looked at before any is spent from.
        let looks = if self.spends.len() > 1 || self.is_fold() { 2 } else { 1 };
        spends * looks
    }

    /// Whether it stands for several.
    #[must_use]
    pub const fn is_fold(&self) -> bool {
        self.count.get() > 1
    }
}

/// What a request asks of one cell.
#[derive(Clone, Copy, Debug)]
pub struct Spend<'a> {
    /// The cell.
    pub cell: CellKey<'a>,
    /// The limit that guards it, and what is asked.
    pub touch: Touch<'a>,
}

impl Spend<'_> {
    /// About how many microseconds a shared store works on `count` of it, in company (`cargo xtask bench redis-costs`).
    fn store_us(&self, count: NonZeroU32) -> u64 {
        let limit = self.touch.limit;
        let counting = if limit.counts_refused() { 2 } else { 1 };
        match limit {
            // Up to this many hits a log is read and written whole.
            Limit::SlidingLog(log) if log.limit() <= 1_000 => counting * (6 + log.limit() / 150),
            // Of a longer one, what is entered: each hit is written.
            Limit::SlidingLog(log) => {
                let hits = self.touch.ask.hits.get().saturating_mul(count.get().into());
                counting * (15 + hits.min(log.limit()) / 150)
            }
            // Its refusals are noted in a log, and who is refused is told when enough of leases and log will be gone.
            Limit::Concurrency(_) if limit.counts_refused() => 60,
            Limit::Concurrency(_) => 13,
            _ => 4,
        }
    }
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
    /// Set where the refund may be sent again, because its answer was lost: the cell gets it back once.
    pub id: Option<RefundId>,
}

/// Names a refund, so that sending it again changes nothing, for [`RefundId::KNOWN_FOR`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefundId(u128);

impl RefundId {
    /// How long a store knows that a cell has had a refund: twice the minute for which a request's name counts, so that the
    /// last retry of that minute is known too.
    pub const KNOWN_FOR: Micros = Micros::from_secs(120);

    /// The id with these bytes: random ones, or a hash of what names the refund.
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

/// Hits to take that were already spent.
#[derive(Clone, Copy, Debug)]
pub struct CellCharge<'a> {
    /// The cell they are taken from.
    pub cell: CellKey<'a>,
    /// The limit that guards it.
    pub limit: &'a Limit,
    /// How many, when they were spent, and how far they may go beyond the quota.
    pub charge: Charge,
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

/// What the requests of a batch were told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchOutcomes {
    /// One outcome per spend of every request, in order. Of a request that stands for several, what the last of them is
    /// told.
    pub outcomes: Outcomes,
    /// One per spend of every request that stands for several, in order.
    pub folds: Vec<Fold>,
    /// When all of it was decided, by the store's clock: for logs, and never to decide by. None where that was not one moment
    /// of one clock.
    pub decided_at: Option<Timestamp>,
}

/// An answer, and when the store did what it tells of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "there is nothing else to know")]
pub struct Stamped<T> {
    /// The answer.
    pub value: T,
    /// When, by the store's clock: for logs, and never to decide by. None where that was not one moment of one clock.
    pub at: Option<Timestamp>,
}

impl<T> Stamped<T> {
    /// What was done at this moment.
    #[must_use]
    pub const fn at(value: T, at: Timestamp) -> Self {
        Stamped { value, at: Some(at) }
    }

    /// Another answer, of the same moment.
    #[must_use]
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Stamped<U> {
        Stamped { value: change(self.value), at: self.at }
    }
}

impl BatchOutcomes {
    /// What each request of `batch`, which must be the one that was decided, is told.
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
    /// The outcomes of requests none of which stands for several.
    #[inline]
    fn from(outcomes: Outcomes) -> Self {
        BatchOutcomes { outcomes, folds: Vec::new(), decided_at: None }
    }
}

impl FromIterator<Outcome> for BatchOutcomes {
    /// The outcomes of requests none of which stands for several.
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Self {
        BatchOutcomes { outcomes: outcomes.into_iter().collect(), folds: Vec::new(), decided_at: None }
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

/// What one request of a batch, and all that it stands for, is told.
#[derive(Clone, Copy, Debug)]
pub struct RequestOutcomes<'a> {
    request: Request<'a>,
    outcomes: &'a [Outcome],
    folds: &'a [Fold],
}

impl RequestOutcomes<'_> {
    /// How many of the equal requests pass: the first ones.
    #[must_use]
    pub fn passed(&self) -> u32 {
        let enforced = |spend: &&Spend<'_>| spend.touch.stance == Stance::Enforced;
        if self.request.is_fold() {
            let first = self.request.spends.iter().position(|spend| enforced(&spend));
            return first.map_or(self.request.count.get(), |first| self.folds[first].admitted);
        }
        let mut told = self.request.spends.iter().zip(self.outcomes);
        u32::from(told.all(|(spend, outcome)| outcome.is_admitted() || !enforced(&spend)))
    }

    /// What the request at `place` among the equal ones, from 0, is told: one outcome per spend.
    pub fn at(&self, place: u32) -> impl Iterator<Item = Outcome> {
        let of = move |(number, spend): (usize, &Spend<'_>)| match self.folds.get(number) {
            Some(fold) => fold.at(place, spend.touch.limit, spend.touch.ask.hits),
            None => self.outcomes[number],
        };
        self.request.spends.iter().enumerate().map(of)
    }
}

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
