//! What the store last said of one cell, and how long its refusal may be repeated.

use tidegate_core::{Hits, LastAnswer, LimitFingerprint, Micros, RefusalHolds, Timestamp};
use tidegate_store::HELD_RETRY_AFTER;

use super::AnsweredCell;
use crate::cell_hash::CellHash;

/// A refusal is repeated for at most this long. A refund, a reset or a raised limit elsewhere is honoured after that: within
/// a second, the call that asks again included.
const LONGEST_REFUSAL: Micros = Micros::new(950_000);

/// Entries whose cells hash alike; one look-up reads one of these.
pub(super) type Bucket = [Entry; WIDTH];

pub(super) const WIDTH: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    /// None while there is nothing here.
    pub(super) cell: Option<CellHash>,
    pub(super) version: LimitFingerprint,
    /// Answers to questions sent until then are no longer true: the cell was changed since.
    pub(super) void_until: Timestamp,
    pub(super) sent: Timestamp,
    /// When `last` came: it is of some moment since `sent`, and numbers returned later go on from the latest possible one.
    pub(super) received: Timestamp,
    pub(super) last: LastAnswer,
    /// The number of the limit that `last` is about.
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
    /// Whether it is repeated only for those who had asked by then.
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
        // A clock that stepped back ends it: better one question too many.
        now >= self.sent && now.since(self.sent) < self.lasts()
    }

    /// Whether the store refused after `arrival`: whoever waits since then would have been refused just the same.
    pub(super) fn came_after(&self, arrival: Timestamp, now: Timestamp) -> bool {
        now >= self.sent && self.sent > arrival
    }

    /// How long a caller who asks now has to wait, at least as long as the store would say: the store may have decided when
    /// its answer was already on the way here. It is repeated for a round trip less.
    pub(super) fn wait_at(&self, now: Timestamp) -> Option<Micros> {
        self.retry_after.map(|span| span.saturating_sub(now.since(self.received)))
    }

    /// A moment of the store's clock at which it refuses whoever is refused now: as long after the refusal as has passed since
    /// the answer came, which is no later than now. Where the refusal no longer holds, or is of a moment, that moment itself.
    pub(super) fn decided_at(&self, now: Timestamp) -> Option<Timestamp> {
        let since = if self.holds_at(now) { now.since(self.received) } else { Micros::ZERO };
        self.decided_at.map(|at| at + since)
    }

    /// Whether it is still what the store would say, unless somebody changed the cell.
    pub(super) fn may_hold_at(&self, now: Timestamp) -> bool {
        let longest = LONGEST_REFUSAL + LONGEST_REFUSAL;
        !self.is_of_a_moment
            && now >= self.sent
            && now.since(self.sent) < self.retry_after.unwrap_or(longest).min(longest)
    }
}

impl Entry {
    /// How many eighths of its quota were spent when the store last said; none once all is back.
    fn spent_eighths(&self, now: Timestamp) -> u128 {
        if now.since(self.received) >= self.last.reset_after {
            return 0;
        }
        let spent = u128::from(self.quota.saturating_sub(self.last.remaining));
        8 * spent / u128::from(self.quota.max(1))
    }

    /// Learns of a refusal that begins with a charge. A request that was sent after the charge may have overtaken it, so what it
    /// was answered is no reason to doubt.
    pub(super) fn learn_charged(&mut self, answer: &AnsweredCell<'_>) {
        let is_void = answer.sent <= self.void_until && self.void_until > Timestamp::default();
        if !is_void {
            let newest = self.sent.max(answer.sent);
            self.sent = self.sent.min(answer.sent);
            self.learn(answer);
            self.sent = newest;
        }
    }

    pub(super) fn learn(&mut self, answer: &AnsweredCell<'_>) {
        // Answers overtake each other. One from before the cell was changed, or older than what is known, tells nothing.
        if answer.sent < self.sent
            || (answer.sent == self.void_until && self.void_until > Timestamp::default())
        {
            return;
        }
        if self.version != answer.version {
            *self = Entry { cell: self.cell, version: answer.version, ..Entry::default() };
        }
        (self.sent, self.received) = (answer.sent, answer.received);
        (self.last, self.quota) = (LastAnswer::of(&answer.outcome), answer.limit.quota());
        let hits = Hits::new(answer.hits.get().max(1));
        if answer.outcome.is_admitted() {
            // What is admitted now is not refused any more, nor what costs less.
            self.refusal = self.refusal.filter(|refusal| refusal.hits > hits);
        } else if answer.limit.refusal_holds() != RefusalHolds::Never
            // What another request holds for a moment may be back at any time.
            && answer.outcome.retry_after() != Some(HELD_RETRY_AFTER)
        {
            let new = Refusal {
                is_of_a_moment: answer.limit.refusal_holds() == RefusalHolds::AtThatMoment,
                sent: answer.sent,
                received: answer.received,
                decided_at: answer.decided_at,
                hits,
                retry_after: answer.outcome.retry_after(),
            };
            let says_more =
                |old: &Refusal| old.hits <= hits && old.sent + old.lasts() >= answer.sent + new.lasts();
            self.refusal = self.refusal.filter(says_more).or(Some(new));
        }
    }
}

/// The entry that is missed least: none at all, then of whom least was spent, the oldest of them first; those of refusals
/// that still hold last. Who is forgotten may spend a share anew while the store is unavailable.
pub(super) fn worst_of(bucket: &Bucket, now: Timestamp) -> usize {
    let worth = |entry: &Entry| {
        let holds = entry.refusal.is_some_and(|refusal| refusal.holds_at(now));
        (entry.cell.is_some(), holds, entry.spent_eighths(now), entry.sent)
    };
    (0..WIDTH).min_by_key(|place| worth(&bucket[*place])).unwrap_or(0)
}
