//! The deny cache: refusals of the store that this node repeats, and the numbers to go on from without it.
//!
//! "Refused until then" is a fact that may be repeated for a short while; "allowed" is not, and is never answered from
//! here. An entry is of one cell under one limit, number for number; where a limit's number has changed since, what was spent
//! still counts, and nobody is refused by it. By this node's clock alone, a refusal is
//! repeated until its time is up since the question was sent, and its numbers go on from when the answer came: neither is
//! anybody refused for too long, nor told to come back too early. The cache holds a bounded number of cells, the refused ones longest. It
//! asks nobody.

mod entry;

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_core::{Hits, Limit, LimitFingerprint, Micros, Outcome, Stance, Timestamp, Verdict};
use tidegate_store::Outcomes;

use crate::cell_hash::CellHash;
use entry::{Bucket, Entry, WIDTH, worst_of};

/// What the store last said of each cell.
pub(crate) struct DenyCache {
    shards: Box<[Mutex<Vec<Bucket>>]>,
    buckets_per_shard: usize,
    /// Refusals that had to go before their time because there was no room.
    evicted: AtomicU64,
}

const SHARDS: usize = 64;

/// How sure a refusal must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Certainty {
    /// Nobody can have changed the cell for long without this node hearing of it.
    Known,
    /// The same, or the store refused after this moment, since which somebody waits for an answer.
    KnownSince(Timestamp),
    /// It is being asked again, and there is no room to wait for the answer.
    Likely,
}

/// A cell about which something may be known, and what is asked of it.
#[derive(Clone, Copy)]
pub(crate) struct CachedCell<'a> {
    pub(crate) hash: CellHash,
    pub(crate) version: LimitFingerprint,
    pub(crate) limit: &'a Limit,
    pub(crate) hits: Hits,
    pub(crate) stance: Stance,
}

/// One answer of the store about one cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnsweredCell<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) version: LimitFingerprint,
    pub(crate) hits: Hits,
    pub(crate) outcome: Outcome,
    /// When it was asked for, and when the answer came.
    pub(crate) sent: Timestamp,
    pub(crate) received: Timestamp,
}

impl DenyCache {
    /// Remembers at most about `cells` cells.
    pub(crate) fn new(cells: usize) -> Self {
        DenyCache {
            shards: (0..SHARDS).map(|_| Mutex::new(Vec::new())).collect(),
            buckets_per_shard: cells.div_ceil(SHARDS * WIDTH).max(1),
            evicted: AtomicU64::new(0),
        }
    }

    /// How a request with these cells is refused, where that is known already: what is known of each of its cells.
    pub(crate) fn refusal<'a>(
        &self,
        cells: impl Iterator<Item = CachedCell<'a>> + Clone,
        (now, how): (Timestamp, Certainty),
    ) -> Option<Outcomes> {
        let refused = |cell: CachedCell<'_>| match cell.stance {
            Stance::Enforced => self.refusal_of_cell(&cell, (now, how)),
            Stance::Advisory => None,
        };
        refusal_of(cells, refused, |cell| self.last_seen(cell, now))
    }

    fn refusal_of_cell(&self, cell: &CachedCell<'_>, (now, how): (Timestamp, Certainty)) -> Option<Outcome> {
        let entry = self.find(cell)?;
        let refusal = entry.refusal.filter(|refusal| match how {
            Certainty::Known => refusal.holds_at(now),
            Certainty::KnownSince(arrival) => refusal.holds_at(now) || refusal.came_after(arrival, now),
            Certainty::Likely => refusal.may_hold_at(now),
        })?;
        // A look is answered as one hit would be.
        if cell.hits.get().max(1) < refusal.hits.get() {
            return None;
        }
        let (elapsed, wait) = (now.since(entry.received), refusal.wait_at(now));
        Some(entry.last.refusal_after(cell.limit, elapsed, cell.hits, refusal.hits, wait))
    }

    /// What was left of the cell when the store last said, as of `now`; nothing if that is unknown or all is back.
    pub(crate) fn left(&self, cell: &CachedCell<'_>, now: Timestamp) -> Option<Outcome> {
        let entry = self.find_under_any_limit(cell.hash)?;
        let last = match entry.version == cell.version {
            true => entry.last,
            false => entry.last.under(entry.quota, cell.limit),
        };
        last.left_after(cell.limit, now.since(entry.received))
    }

    /// What is left of a cell as far as is known; an unknown one is full.
    pub(crate) fn last_seen(&self, cell: &CachedCell<'_>, now: Timestamp) -> Outcome {
        self.left(cell, now).unwrap_or(Outcome {
            verdict: Verdict::Admitted { delay: Micros::ZERO },
            remaining: cell.limit.quota(),
            reset_after: Micros::ZERO,
        })
    }

    /// Remembers what the store said.
    pub(crate) fn remember(&self, hash: CellHash, answer: &AnsweredCell<'_>) {
        let mut shard = self.shard(hash).lock();
        if shard.is_empty() {
            shard.resize(self.buckets_per_shard, Bucket::default());
        }
        let bucket = self.bucket(&mut shard, hash);
        let entry = match bucket.iter().position(|entry| entry.cell == Some(hash)) {
            Some(place) => &mut bucket[place],
            None => {
                let oldest = &mut bucket[worst_of(bucket, answer.sent)];
                if oldest.refusal.is_some_and(|refusal| refusal.holds_at(answer.sent)) {
                    self.evicted.fetch_add(1, Ordering::Relaxed);
                }
                *oldest = Entry { cell: Some(hash), version: answer.version, ..Entry::default() };
                oldest
            }
        };
        entry.learn(answer);
    }

    /// Forgets what was said of a cell that was changed by other means than a request, also if it is still to be heard.
    pub(crate) fn forget(&self, hash: CellHash, now: Timestamp) {
        let mut shard = self.shard(hash).lock();
        if shard.is_empty() {
            shard.resize(self.buckets_per_shard, Bucket::default());
        }
        let bucket = self.bucket(&mut shard, hash);
        let known = bucket.iter().position(|entry| entry.cell == Some(hash));
        let place = known.unwrap_or_else(|| worst_of(bucket, now));
        bucket[place] =
            Entry { cell: Some(hash), void_until: now, sent: now, received: now, ..Entry::default() };
    }

    /// Refusals that had to go before their time, since the start.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    fn find(&self, cell: &CachedCell<'_>) -> Option<Entry> {
        self.find_under_any_limit(cell.hash).filter(|entry| entry.version == cell.version)
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

/// What each cell says where one of them is known to be refused. Other cores write what is known while it is read here: the
/// refusal that was found must be the one that is returned, or a request would pass that nobody has admitted.
fn refusal_of<C: Copy>(
    cells: impl Iterator<Item = C> + Clone,
    refused: impl Fn(C) -> Option<Outcome>,
    last_seen: impl Fn(&C) -> Outcome,
) -> Option<Outcomes> {
    let (found, refusal) =
        cells.clone().enumerate().find_map(|(place, cell)| Some((place, refused(cell)?)))?;
    let outcomes = cells.enumerate().map(|(place, cell)| match place == found {
        true => refusal,
        false => refused(cell).unwrap_or_else(|| last_seen(&cell)),
    });
    Some(outcomes.collect())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_refusal_that_another_core_forgets_meanwhile_is_still_returned() {
        let outcome = |verdict| Outcome { verdict, remaining: 0, reset_after: Micros::ZERO };
        let refusal = outcome(Verdict::Refused { retry_after: None });
        let known = Cell::new(true);
        // The first to look sees the refusal; by the second look it is gone.
        let refused = |place: usize| (place == 1 && known.replace(false)).then_some(refusal);
        let last_seen = |_: &usize| outcome(Verdict::Admitted { delay: Micros::ZERO });
        let outcomes = refusal_of(0..3, refused, last_seen).expect("it was refused");
        let admitted: Vec<bool> = outcomes.iter().map(Outcome::is_admitted).collect();
        assert_eq!(admitted, [true, false, true]);
    }
}
