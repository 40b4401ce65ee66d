//! What the store last said of each cell: refusals to repeat (the deny cache), and numbers to go on from without it.
//!
//! "Refused until then" is a fact that may be repeated for a short while; "allowed" is not, and is never answered from
//! here. A fact is of one cell under one limit, number for number, and of one rule set. Its age is counted from when the
//! question was sent, by this node's clock alone. It holds a bounded number of cells, the refused ones longest.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_core::{Hits, Limit, Micros, Outcome, RefusedHits, Timestamp};
use tidegate_store::CellKey;

use crate::cell_hash::{CellHash, CellHasher, LaneId};
use crate::later::Told;

/// A refusal is repeated for at most this long. A refund, a reset or a raised limit elsewhere is honoured after that: within
/// a second, the call that asks again included.
pub(crate) const LONGEST_REFUSAL: Micros = Micros::new(950_000);

/// What the store last said of each cell.
pub(crate) struct Recall {
    hasher: CellHasher,
    shards: Box<[Mutex<Vec<Bucket>>]>,
    buckets_per_shard: usize,
    /// Refusals that had to go before their time because there was no room.
    evicted: AtomicU64,
}

/// Facts whose cells hash alike; one look-up reads one of these.
type Bucket = [Fact; WIDTH];

const WIDTH: usize = 4;
const SHARDS: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Fact {
    /// None while there is no fact here.
    cell: Option<CellHash>,
    under: Under,
    /// Answers to questions sent until then are no longer true: the cell was changed since.
    void_until: Timestamp,
    sent: Timestamp,
    told: Told,
    refusal: Option<Refusal>,
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    sent: Timestamp,
    hits: Hits,
    retry_after: Option<Micros>,
}

impl Refusal {
    fn lasts(&self) -> Micros {
        self.retry_after.unwrap_or(LONGEST_REFUSAL).min(LONGEST_REFUSAL)
    }

    fn holds_at(&self, now: Timestamp) -> bool {
        // A clock that stepped back ends it: better one question too many.
        now >= self.sent && now.since(self.sent) < self.lasts()
    }

    /// Whether it is still what the store would say, unless somebody changed the cell.
    fn may_hold_at(&self, now: Timestamp) -> bool {
        let longest = LONGEST_REFUSAL + LONGEST_REFUSAL;
        now >= self.sent && now.since(self.sent) < self.retry_after.unwrap_or(longest).min(longest)
    }
}

/// How sure a refusal must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Certainty {
    /// Nobody can have changed the cell for long without this node hearing of it.
    Known,
    /// It is being asked again, and there is no room to wait for the answer.
    Likely,
}

/// Which rules, and which numbers of a limit, a fact is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Under {
    rules: u64,
    numbers: [u64; 3],
}

impl Under {
    /// Tells limits apart that guard the same cell: algorithm and period are part of the cell's name, numbers are not.
    pub(crate) fn new(rules: u64, limit: &Limit) -> Self {
        let numbers = match limit {
            Limit::TokenBucket(limit) => [limit.burst(), limit.rate().count(), limit.rate().period().get()],
            Limit::LeakyBucket(limit) => {
                [limit.max_delay().get(), limit.rate().count(), limit.rate().period().get()]
            }
            Limit::FixedWindow(limit) => match limit.boundaries() {
                Some(boundaries) => {
                    let end = boundaries.last().map_or(0, |last| last.as_micros());
                    [limit.limit(), boundaries.len() as u64, end]
                }
                None => [limit.limit(), limit.window().map_or(0, Micros::get), 0],
            },
            Limit::SlidingWindow(limit) => [limit.limit(), limit.window().get(), 0],
            Limit::SlidingLog(limit) => [limit.limit(), limit.window().get(), limit.min_interval().get()],
            Limit::Concurrency(limit) => [limit.limit(), limit.ttl().get(), 0],
        };
        Under { rules, numbers }
    }
}

/// One answer of the store about one cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) under: Under,
    pub(crate) hits: Hits,
    pub(crate) outcome: Outcome,
    /// When it was asked for.
    pub(crate) sent: Timestamp,
}

impl Recall {
    /// Remembers at most about `cells` cells.
    pub(crate) fn new(cells: usize, hasher: CellHasher) -> Self {
        Recall {
            hasher,
            shards: (0..SHARDS).map(|_| Mutex::new(Vec::new())).collect(),
            buckets_per_shard: cells.div_ceil(SHARDS * WIDTH).max(1),
            evicted: AtomicU64::new(0),
        }
    }

    pub(crate) fn hash(&self, cell: &CellKey<'_>) -> CellHash {
        self.hasher.cell(cell)
    }

    pub(crate) fn lane<'t>(&self, tags: impl Iterator<Item = &'t [u8]>) -> LaneId {
        self.hasher.lane(tags)
    }

    /// How `hits` are refused at `now`, where it is known that they are.
    pub(crate) fn refusal(
        &self,
        cell: CellHash,
        limit: &Limit,
        under: Under,
        hits: Hits,
        (now, how): (Timestamp, Certainty),
    ) -> Option<Outcome> {
        let fact = self.find(cell, under)?;
        let refusal = fact.refusal.filter(|refusal| match how {
            Certainty::Known => refusal.holds_at(now),
            Certainty::Likely => refusal.may_hold_at(now),
        })?;
        // A look is answered as one hit would be.
        if hits.get().max(1) < refusal.hits.get() {
            return None;
        }
        let wait = refusal.retry_after.map(|span| span.saturating_sub(now.since(refusal.sent)));
        Some(fact.told.refusal_after(limit, now.since(fact.sent), hits, refusal.hits, wait))
    }

    /// What was left of the cell when the store last told, as of `now`; nothing if that is unknown or all is back.
    pub(crate) fn left(
        &self,
        cell: CellHash,
        limit: &Limit,
        under: Under,
        now: Timestamp,
    ) -> Option<Outcome> {
        let fact = self.find(cell, under)?;
        fact.told.left_after(limit, now.since(fact.sent))
    }

    /// Remembers what the store said. Says whether a refusal that still held had to make room.
    pub(crate) fn remember(&self, cell: CellHash, answer: &Answer<'_>) {
        let mut shard = self.shard(cell).lock();
        if shard.is_empty() {
            shard.resize(self.buckets_per_shard, Bucket::default());
        }
        let bucket = self.bucket(&mut shard, cell);
        let fact = match bucket.iter().position(|fact| fact.cell == Some(cell)) {
            Some(place) => &mut bucket[place],
            None => {
                let oldest = &mut bucket[worst_of(bucket, answer.sent)];
                if oldest.refusal.is_some_and(|refusal| refusal.holds_at(answer.sent)) {
                    self.evicted.fetch_add(1, Ordering::Relaxed);
                }
                *oldest = Fact { cell: Some(cell), under: answer.under, ..Fact::default() };
                oldest
            }
        };
        fact.learn(answer);
    }

    /// Forgets what was said of a cell that was changed by other means than a request, also if it is still to be heard.
    pub(crate) fn forget(&self, cell: CellHash, now: Timestamp) {
        let mut shard = self.shard(cell).lock();
        if shard.is_empty() {
            shard.resize(self.buckets_per_shard, Bucket::default());
        }
        let bucket = self.bucket(&mut shard, cell);
        let known = bucket.iter().position(|fact| fact.cell == Some(cell));
        let place = known.unwrap_or_else(|| worst_of(bucket, now));
        bucket[place] = Fact { cell: Some(cell), void_until: now, sent: now, ..Fact::default() };
    }

    /// Refusals that had to go before their time, since the start.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    fn find(&self, cell: CellHash, under: Under) -> Option<Fact> {
        let mut shard = self.shard(cell).lock();
        if shard.is_empty() {
            return None;
        }
        let bucket = self.bucket(&mut shard, cell);
        bucket.iter().find(|fact| fact.cell == Some(cell) && fact.under == under).copied()
    }

    fn shard(&self, cell: CellHash) -> &Mutex<Vec<Bucket>> {
        &self.shards[cell.below(SHARDS)]
    }

    fn bucket<'s>(&self, shard: &'s mut [Bucket], cell: CellHash) -> &'s mut Bucket {
        &mut shard[cell.again_below(self.buckets_per_shard)]
    }
}

impl Fact {
    fn learn(&mut self, answer: &Answer<'_>) {
        // Answers overtake each other. One from before the cell was changed, or older than what is known, tells nothing.
        if answer.sent < self.sent
            || (answer.sent == self.void_until && self.void_until > Timestamp::default())
        {
            return;
        }
        if self.under != answer.under {
            *self = Fact { cell: self.cell, under: answer.under, ..Fact::default() };
        }
        self.sent = answer.sent;
        self.told = Told::of(&answer.outcome);
        let hits = Hits::new(answer.hits.get().max(1));
        if answer.outcome.is_admitted() {
            // What is admitted now is not refused any more, nor what costs less.
            self.refusal = self.refusal.filter(|refusal| refusal.hits > hits);
        } else if may_be_repeated(answer.limit) {
            let new = Refusal { sent: answer.sent, hits, retry_after: answer.outcome.retry_after() };
            let says_more =
                |old: &Refusal| old.hits <= hits && old.sent + old.lasts() >= answer.sent + new.lasts();
            self.refusal = self.refusal.filter(says_more).or(Some(new));
        }
    }
}

/// Leases end at any moment, and where refused requests count each one must be told.
fn may_be_repeated(limit: &Limit) -> bool {
    match limit {
        Limit::Concurrency(_) => false,
        Limit::SlidingLog(log) => log.refused_hits() == RefusedHits::Forget,
        _ => true,
    }
}

/// The fact that is missed least: none at all, then the oldest, those of refusals that still hold last.
fn worst_of(bucket: &Bucket, now: Timestamp) -> usize {
    let worth = |fact: &Fact| {
        let holds = fact.refusal.is_some_and(|refusal| refusal.holds_at(now));
        (fact.cell.is_some(), holds, fact.sent)
    };
    (0..WIDTH).min_by_key(|place| worth(&bucket[*place])).unwrap_or(0)
}
