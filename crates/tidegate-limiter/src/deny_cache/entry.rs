//! The store's last answer about one cell, and how long its refusal may be repeated.

use tidegate_core::{Hits, LastAnswer, LimitFingerprint, Micros, Outcome, RefusalHolds, Timestamp};
use tidegate_store::HELD_RETRY_AFTER;

use super::AnswerTimes;
use crate::cell::CellAsk;
use crate::cell_hash::CellHash;

/// A refusal is repeated for at most this long. After that a refund, a reset or a raised limit elsewhere takes effect: within
/// a second, including the call that asks again.
const LONGEST_REFUSAL: Micros = Micros::new(950_000);

/// Entries whose cells share a hash bucket; one lookup reads one bucket.
pub(super) type Bucket = [Entry; WIDTH];

pub(super) const WIDTH: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    /// `None` if the entry is empty.
    pub(super) cell: Option<CellHash>,
    pub(super) version: LimitFingerprint,
    /// Answers to calls sent up to then are stale: the cell was changed since.
    pub(super) void_until: Timestamp,
    pub(super) sent: Timestamp,
    /// When `last` arrived. The store decided after `sent`; later numbers extrapolate from the latest possible moment.
    pub(super) received: Timestamp,
    pub(super) last: LastAnswer,
    /// The quota of the limit that `last` is about.
    pub(super) quota: u64,
    pub(super) refusal: Option<Refusal>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    pub(super) sent: Timestamp,
    pub(super) received: Timestamp,
    /// When the store refused, by its own clock.
    pub(super) decided_at: Option<Timestamp>,
    pub(super) hits: Hits,
    pub(super) retry_after: Option<Micros>,
    /// Whether it is repeated only for requests that had arrived by then.
    pub(super) is_of_a_moment: bool,
}

impl Refusal {
    fn lasts(&self) -> Micros {
        if self.is_of_a_moment {
            return Micros::ZERO;
        }
        self.retry_after.unwrap_or(LONGEST_REFUSAL).min(LONGEST_REFUSAL)
    }

    pub(super) fn holds_at(&self, now: Timestamp) -> bool {
        // A clock that stepped back ends it: one extra store call is the safer error.
        now >= self.sent && now.since(self.sent) < self.lasts()
    }

    /// Whether the store refused after `arrival`: a request waiting since then would have been refused too.
    pub(super) fn came_after(&self, arrival: Timestamp, now: Timestamp) -> bool {
        now >= self.sent && self.sent > arrival
    }

    /// How long a caller that asks now must wait, at least as long as the store would say: the store may have decided when
    /// its answer was already on the way here. The refusal itself is repeated for one round trip less.
    pub(super) fn wait_at(&self, now: Timestamp) -> Option<Micros> {
        self.retry_after.map(|span| span.saturating_sub(now.since(self.received)))
    }

    /// A moment of the store's clock at which it refuses a request refused now: as long after the refusal as since the answer
    /// arrived, so never later than now. For a refusal that no longer holds or is of a moment, that moment.
    pub(super) fn decided_at(&self, now: Timestamp) -> Option<Timestamp> {
        let since = if self.holds_at(now) { now.since(self.received) } else { Micros::ZERO };
        self.decided_at.map(|at| at + since)
    }

    /// Whether the store would still refuse, unless the cell was changed.
    pub(super) fn may_hold_at(&self, now: Timestamp) -> bool {
        let longest = LONGEST_REFUSAL + LONGEST_REFUSAL;
        !self.is_of_a_moment
            && now >= self.sent
            && now.since(self.sent) < self.retry_after.unwrap_or(longest).min(longest)
    }
}

impl Entry {
    /// Eighths of the quota spent at the store's last answer; 0 once the whole quota is back.
    fn spent_eighths(&self, now: Timestamp) -> u128 {
        if now.since(self.received) >= self.last.reset_after {
            return 0;
        }
        let spent = u128::from(self.quota.saturating_sub(self.last.remaining));
        8 * spent / u128::from(self.quota.max(1))
    }

    pub(super) fn learn(&mut self, cell: &CellAsk<'_>, outcome: Outcome, when: AnswerTimes) {
        let (limit, version) = (cell.limit(), cell.limit().fingerprint());
        // What is from after this answer's arrival is not newer: the clock was set back since.
        if self.sent > when.received {
            (self.sent, self.refusal) = (when.sent, None);
        }
        // Answers overtake each other. One from before the cell was changed, or older than the entry, is ignored.
        if when.sent < self.sent || (when.sent == self.void_until && self.void_until > Timestamp::default()) {
            return;
        }
        if self.version != version {
            *self = Entry { cell: self.cell, version, ..Entry::default() };
        }
        (self.sent, self.received) = (when.sent, when.received);
        (self.last, self.quota) = (LastAnswer::of(&outcome), limit.quota());
        let hits = Hits::new(cell.needs().get().max(1));
        if outcome.is_admitted() {
            // An admission voids the refusal of the same or a smaller cost.
            self.refusal = self.refusal.filter(|refusal| refusal.hits > hits);
        } else if limit.refusal_holds() != RefusalHolds::Never
            // Hits that another request holds for a moment may be returned at any time.
            && outcome.retry_after() != Some(HELD_RETRY_AFTER)
        {
            let new = Refusal {
                is_of_a_moment: limit.refusal_holds() == RefusalHolds::AtThatMoment,
                sent: when.sent,
                received: when.received,
                decided_at: when.decided,
                hits,
                retry_after: outcome.retry_after(),
            };
            let says_more =
                |old: &Refusal| old.hits <= hits && old.sent + old.lasts() >= when.sent + new.lasts();
            self.refusal = self.refusal.filter(says_more).or(Some(new));
        }
    }
}

/// The entry to evict: an empty one first, then the one with the least spent, the oldest first; refusals that still hold come
/// last. An evicted cell may spend a share anew while the store is unavailable.
pub(super) fn worst_of(bucket: &Bucket, now: Timestamp) -> usize {
    let worth = |entry: &Entry| {
        let holds = entry.refusal.is_some_and(|refusal| refusal.holds_at(now));
        (entry.cell.is_some(), holds, entry.spent_eighths(now), entry.sent)
    };
    (0..WIDTH).min_by_key(|place| worth(&bucket[*place])).unwrap_or(0)
}
