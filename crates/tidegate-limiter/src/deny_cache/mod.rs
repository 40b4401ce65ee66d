//! The deny cache: store refusals that this node repeats, and the numbers to continue from without the store.
//!
//! "Refused until then" is a fact that may be repeated for a short while; "allowed" is not, and is never answered from here.
//! An entry belongs to one cell under one limit, exactly; if the limit's numbers have changed since, what was spent still
//! counts but the entry refuses nothing. By this node's clock alone, a refusal is repeated until its time, counted from when
//! the call was sent, is up, and its numbers continue from when the answer arrived: no caller is refused for too long or sent
//! back too early. The cache holds a bounded number of cells, the refused ones longest. It makes no calls.

mod entry;

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_core::{Hits, Micros, Outcome, Stance, Timestamp, Verdict};
use tidegate_store::Outcomes;

use crate::answer::Answer;
use crate::cell::CellAsk;
use crate::cell_hash::CellHash;
use crate::source::Source;
use entry::{Bucket, Entry, WIDTH, worst_of};

/// The store's last answer about each cell.
pub(crate) struct DenyCache {
    shards: Box<[Mutex<Vec<Bucket>>]>,
    buckets_per_shard: usize,
    /// Refusals evicted before they expired.
    evicted: AtomicU64,
}

const SHARDS: usize = 64;

/// How certain a refusal must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Certainty {
    /// The cell cannot have been changed for long without this node knowing.
    Known,
    /// As `Known`, or the store refused after this moment, at which a request began to wait.
    KnownSince(Timestamp),
    /// The cell is being asked again, and there is no room to wait for the answer.
    Likely,
}

/// When the store gave an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerTimes {
    /// When the call was sent, and when its answer arrived, by this node's clock.
    pub(crate) sent: Timestamp,
    pub(crate) received: Timestamp,
    /// When the store decided, by its own.
    pub(crate) decided: Option<Timestamp>,
}

impl DenyCache {
    /// Holds at most about `cells` cells.
    pub(crate) fn new(cells: usize) -> Self {
        DenyCache {
            shards: (0..SHARDS).map(|_| Mutex::new(Vec::new())).collect(),
            buckets_per_shard: cells.div_ceil(SHARDS * WIDTH).max(1),
            evicted: AtomicU64::new(0),
        }
    }

    /// The refusal of a request with these cells, if one is cached. Unless there is no time, the store hears of a refusal that
    /// may start a penalty.
    pub(crate) fn refusal<'a>(
        &self,
        cells: impl Iterator<Item = CellAsk<'a>> + Clone,
        (now, how): (Timestamp, Certainty),
    ) -> Option<Answer> {
        let refused = |cell: CellAsk<'_>| match cell.group().stance {
            Stance::Enforced => self.refusal_of_cell(&cell, (now, how)),
            Stance::AnyOf | Stance::Shadow => None,
        };
        let may_start =
            |cell: CellAsk<'_>| cell.group().is_penalty && self.refusal_of_cell(&cell, (now, how)).is_none();
        if how != Certainty::Likely && cells.clone().any(may_start) {
            return None;
        }
        let (outcomes, decided_at) = refusal_of(cells, refused, |cell| self.last_seen(cell, now))?;
        Some(Answer::new(outcomes, Source::DenyCache, decided_at))
    }

    /// The outcome of a cell that refuses, and when the store refused.
    fn refusal_of_cell(
        &self,
        cell: &CellAsk<'_>,
        (now, how): (Timestamp, Certainty),
    ) -> Option<(Outcome, Option<Timestamp>)> {
        let entry = self.find(cell)?;
        let refusal = entry.refusal.filter(|refusal| match how {
            Certainty::Known => refusal.holds_at(now),
            Certainty::KnownSince(arrival) => refusal.holds_at(now) || refusal.came_after(arrival, now),
            Certainty::Likely => refusal.may_hold_at(now),
        })?;
        // A look is treated as one hit.
        if cell.needs().get().max(1) < refusal.hits.get() {
            return None;
        }
        let (elapsed, wait) = (now.since(entry.received), refusal.wait_at(now));
        let outcome = entry.last.refusal_after(cell.limit(), elapsed, cell.needs(), refusal.hits, wait);
        Some((outcome, refusal.decided_at(now)))
    }

    /// What is left of the cell as of `now`, from the store's last answer; `None` if unknown or the whole quota is back.
    pub(crate) fn left(&self, cell: &CellAsk<'_>, now: Timestamp) -> Option<Outcome> {
        let entry = self.find_under_any_limit(cell.hash)?;
        let last = match entry.version == cell.limit().fingerprint() {
            true => entry.last,
            false => entry.last.under(entry.quota, cell.limit()),
        };
        last.left_after(cell.limit(), now.since(entry.received))
    }

    /// What is left of a cell as far as known; an unknown cell is full.
    pub(crate) fn last_seen(&self, cell: &CellAsk<'_>, now: Timestamp) -> Outcome {
        self.left(cell, now).unwrap_or(Outcome {
            verdict: Verdict::Admitted { delay: Micros::ZERO },
            remaining: cell.limit().quota(),
            reset_after: Micros::ZERO,
        })
    }

    /// Records an answer of the store.
    pub(crate) fn remember(&self, cell: &CellAsk<'_>, outcome: Outcome, when: AnswerTimes) {
        let (hash, version) = (cell.hash, cell.limit().fingerprint());
        let mut shard = self.shard(hash).lock();
        if shard.is_empty() {
            shard.resize(self.buckets_per_shard, Bucket::default());
        }
        let bucket = self.bucket(&mut shard, hash);
        let entry = match bucket.iter().position(|entry| entry.cell == Some(hash)) {
            Some(place) => &mut bucket[place],
            None => {
                let oldest = &mut bucket[worst_of(bucket, when.sent)];
                if oldest.refusal.is_some_and(|refusal| refusal.holds_at(when.sent)) {
                    self.evicted.fetch_add(1, Ordering::Relaxed);
                }
                *oldest = Entry { cell: Some(hash), version, ..Entry::default() };
                oldest
            }
        };
        entry.learn(cell, outcome, when);
    }

    /// Drops the entry of a cell whose full quota is back, and voids answers still in flight.
    pub(crate) fn forget(&self, hash: CellHash, now: Timestamp) {
        self.change(hash, now, |entry| *entry = Entry { cell: Some(hash), ..Entry::default() });
    }

    /// `hits` went back to a cell, or may have: its refusal is void, also one still in flight. The rest of what was spent is
    /// kept: should the store fail now, it must not be spent anew.
    pub(crate) fn gave_back(&self, hash: CellHash, hits: Hits, now: Timestamp) {
        self.change(hash, now, |entry| {
            entry.refusal = None;
            entry.last.remaining = entry.last.remaining.saturating_add(hits.get()).min(entry.quota);
        });
    }

    /// Updates the entry of a cell that changed other than by a request. Answers to calls sent before are void.
    fn change(&self, hash: CellHash, now: Timestamp, change: impl FnOnce(&mut Entry)) {
        let mut shard = self.shard(hash).lock();
        if shard.is_empty() {
            shard.resize(self.buckets_per_shard, Bucket::default());
        }
        let bucket = self.bucket(&mut shard, hash);
        let place = match bucket.iter().position(|entry| entry.cell == Some(hash)) {
            Some(known) => known,
            None => {
                let worst = worst_of(bucket, now);
                bucket[worst] = Entry { cell: Some(hash), received: now, ..Entry::default() };
                worst
            }
        };
        let entry = &mut bucket[place];
        change(entry);
        (entry.void_until, entry.sent) = (now, now);
    }

    /// Refusals evicted before they expired, since the start.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    fn find(&self, cell: &CellAsk<'_>) -> Option<Entry> {
        self.find_under_any_limit(cell.hash).filter(|entry| entry.version == cell.limit().fingerprint())
    }

    fn find_under_any_limit(&self, hash: CellHash) -> Option<Entry> {
        let mut shard = self.shard(hash).lock();
        if shard.is_empty() {
            return None;
        }
        self.bucket(&mut shard, hash).iter().find(|entry| entry.cell == Some(hash)).copied()
    }

    fn shard(&self, hash: CellHash) -> &Mutex<Vec<Bucket>> {
        &self.shards[hash.below(SHARDS)]
    }

    fn bucket<'s>(&self, shard: &'s mut [Bucket], hash: CellHash) -> &'s mut Bucket {
        &mut shard[hash.again_below(self.buckets_per_shard)]
    }
}

/// The outcome of each cell if one of them is known to be refused, and when it was. Other cores write concurrently: the
/// refusal that was found must be the one returned, or a request would pass that nothing admitted.
fn refusal_of<C: Copy, T>(
    cells: impl Iterator<Item = C> + Clone,
    refused: impl Fn(C) -> Option<(Outcome, T)>,
    last_seen: impl Fn(&C) -> Outcome,
) -> Option<(Outcomes, T)> {
    let (found, (refusal, when)) =
        cells.clone().enumerate().find_map(|(place, cell)| Some((place, refused(cell)?)))?;
    let outcomes = cells.enumerate().map(|(place, cell)| match place == found {
        true => refusal,
        false => refused(cell).map_or_else(|| last_seen(&cell), |(refusal, _)| refusal),
    });
    Some((outcomes.collect(), when))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::OnceLock;

    use tidegate_core::{Ask, Concurrency, Group, Limit, RefusedHits, Scope, SlidingLog, Touch};
    use tidegate_store::{CellKey, Spend};

    use super::*;
    use crate::cell::CellPolicy;
    use crate::cell_hash::CellHasher;

    /// Milliseconds of this node's clock; the store's is an hour ahead.
    fn node(ms: u64) -> Timestamp {
        Timestamp::from_micros(1_000_000_000 + ms * 1_000)
    }

    fn store(ms: u64) -> Timestamp {
        node(ms) + Micros::from_secs(3_600)
    }

    /// The store time of a refusal repeated at `now`; the original was asked for, decided and received at these times.
    fn repeated(
        limit: &Limit,
        [sent, decided, received]: [u64; 3],
        wait_ms: u64,
        how: Certainty,
        now: u64,
    ) -> Option<Timestamp> {
        let touch = Touch { limit, ask: Ask::hits(1), group: Group::ENFORCED };
        let spend = Spend { cell: cell_key(), touch };
        let cell = CellAsk::new(&CellHasher::new([1, 2]), spend, CellPolicy::CALLER_LIMIT);
        let verdict = Verdict::Refused { retry_after: Some(Micros::from_millis(wait_ms)) };
        let outcome = Outcome { verdict, remaining: 0, reset_after: Micros::from_millis(wait_ms) };
        let cache = DenyCache::new(16);
        let when = AnswerTimes { sent: node(sent), received: node(received), decided: Some(store(decided)) };
        cache.remember(&cell, outcome, when);
        cache.refusal([cell].into_iter(), (node(now), how)).expect("it is refused").decided_at
    }

    fn cell_key() -> CellKey<'static> {
        static SCOPE: OnceLock<Scope> = OnceLock::new();
        CellKey { scope: SCOPE.get_or_init(|| Scope::new(&[b"a"])), key: b"k", tag: b"k" }
    }

    #[test]
    fn a_repeated_refusal_is_of_a_moment_at_which_the_store_refuses() {
        let log = SlidingLog::new(1, Micros::from_secs(1), Micros::ZERO, RefusedHits::Forget).unwrap();
        let limit = Limit::SlidingLog(log);
        // As long after the refusal as since its answer arrived: the answer took a while, so not later than now.
        assert_eq!(repeated(&limit, [0, 3, 10], 500, Certainty::Known, 200), Some(store(193)));
        // At the last moment it is repeated, it has not yet expired in the store.
        assert_eq!(repeated(&limit, [0, 3, 10], 500, Certainty::Known, 499), Some(store(492)));
        // A request that waited before the call was sent would have been refused with it.
        assert_eq!(repeated(&limit, [20, 23, 90], 50, Certainty::KnownSince(node(5)), 90), Some(store(23)));
        let slots =
            Limit::Concurrency(Concurrency::new(1, Micros::from_secs(60), RefusedHits::Forget).unwrap());
        assert_eq!(repeated(&slots, [20, 23, 40], 500, Certainty::KnownSince(node(5)), 60), Some(store(23)));
    }

    #[test]
    fn a_refusal_that_another_core_forgets_meanwhile_is_still_returned() {
        let outcome = |verdict| Outcome { verdict, remaining: 0, reset_after: Micros::ZERO };
        let refusal = outcome(Verdict::Refused { retry_after: None });
        let known = Cell::new(true);
        // The first look sees the refusal; by the second it is gone.
        let refused = |place: usize| (place == 1 && known.replace(false)).then_some((refusal, ()));
        let last_seen = |_: &usize| outcome(Verdict::Admitted { delay: Micros::ZERO });
        let (outcomes, ()) = refusal_of(0..3, refused, last_seen).expect("it was refused");
        let admitted: Vec<bool> = outcomes.iter().map(Outcome::is_admitted).collect();
        assert_eq!(admitted, [true, false, true]);
    }
}
