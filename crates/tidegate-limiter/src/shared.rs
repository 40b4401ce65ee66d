//! What all cores of a node know together: rules, cells of its own, what the store last said, whether it answers.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_core::{Hits, LeaseId, Limit, Micros, Outcome, Stance, Timestamp, Verdict};
use tidegate_store::{Clock, Outcomes};

use crate::breaker::Breakers;
use crate::cell_hash::CellHash;
use crate::node_clock::NodeClock;
use crate::observer::Observer;
use crate::own::OwnCells;
use crate::recall::{Answer, Certainty, Recall, Under};
use crate::remote::Orphans;
use crate::remote::owned::OwnedSpend;
use crate::snapshot::Snapshot;

/// What all cores of a node know together.
pub(crate) struct Shared {
    pub(crate) snapshot: ArcSwap<Snapshot>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) clock: NodeClock,
    pub(crate) lease_ids: LeaseIds,
    pub(crate) own: OwnCells,
    pub(crate) recall: Recall,
    pub(crate) breakers: Breakers,
    pub(crate) fleet: Fleet,
    pub(crate) orphans: Orphans,
}

/// Names leases: random, so that nobody can guess another's, and never zero.
pub(crate) struct LeaseIds {
    random: RandomState,
    next: AtomicU64,
}

/// How many limiters share the store, as far as is known.
pub(crate) struct Fleet {
    /// This one's own name among them.
    pub(crate) member: u64,
    size: AtomicU64,
    /// Why the store did not take the last heartbeat.
    unheard: Mutex<Option<String>>,
}

impl Shared {
    /// Remembers one answer of the store.
    pub(crate) fn learn(&self, spend: &OwnedSpend, answer: &Answer<'_>) {
        self.recall.remember(spend.hash, answer);
        if spend.approximate {
            self.hear(spend, &answer.outcome);
        }
    }

    /// Takes over what the store said of an approximate cell.
    pub(crate) fn hear(&self, spend: &OwnedSpend, outcome: &Outcome) {
        let heard = self.own.approximate.heard(spend.hash, outcome, self.fleet.size(), self.clock.now());
        if let Some(view) = heard {
            self.own.set(spend.as_spend(), view.spent);
        }
    }

    /// How a request with these spends is refused, where that is known already.
    pub(crate) fn known_refusal(&self, spends: &[OwnedSpend], how: Certainty) -> Option<Outcomes> {
        let known = spends.iter().map(|spend| Known {
            cell: spend.hash,
            under: spend.under,
            limit: &spend.cell.limit,
            hits: spend.ask.hits,
            stance: spend.stance,
        });
        self.refusal(known, (self.clock.now(), how))
    }

    /// How a request is refused, where that is known already: all that is known of each of its cells.
    pub(crate) fn refusal<'a>(
        &self,
        spends: impl Iterator<Item = Known<'a>> + Clone,
        (now, how): (Timestamp, Certainty),
    ) -> Option<Outcomes> {
        let refused = |known: Known<'_>| match known.stance {
            Stance::Enforced => {
                self.recall.refusal(known.cell, known.limit, known.under, known.hits, (now, how))
            }
            Stance::Advisory => None,
        };
        refusal_of(spends, refused, |known| self.last_seen(known, now))
    }

    /// What is left of each cell as far as is known.
    pub(crate) fn all_last_seen(&self, cells: &[Known<'_>]) -> Outcomes {
        let now = self.clock.now();
        cells.iter().map(|known| self.last_seen(known, now)).collect()
    }

    /// What is left of a cell as far as is known; an unknown one is full.
    fn last_seen(&self, known: &Known<'_>, now: Timestamp) -> Outcome {
        let seen = self.recall.left(known.cell, known.limit, known.under, now);
        seen.unwrap_or(Outcome {
            verdict: Verdict::Admitted { delay: Micros::ZERO },
            remaining: known.limit.quota(),
            reset_after: Micros::ZERO,
        })
    }
}

/// What each spend is told where one of them is known to be refused. Other cores write what is known while it is read
/// here: the refusal that was found must be the one that is told, or a request would pass that nobody has admitted.
fn refusal_of<K: Copy>(
    spends: impl Iterator<Item = K> + Clone,
    refused: impl Fn(K) -> Option<Outcome>,
    last_seen: impl Fn(&K) -> Outcome,
) -> Option<Outcomes> {
    let (found, refusal) =
        spends.clone().enumerate().find_map(|(place, known)| Some((place, refused(known)?)))?;
    let told = spends.enumerate().map(|(place, known)| match place == found {
        true => refusal,
        false => refused(known).unwrap_or_else(|| last_seen(&known)),
    });
    Some(told.collect())
}

/// A cell about which something may be known.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub(crate) cell: CellHash,
    pub(crate) under: Under,
    pub(crate) limit: &'a Limit,
    pub(crate) hits: Hits,
    pub(crate) stance: Stance,
}

impl LeaseIds {
    pub(crate) fn new() -> Self {
        LeaseIds { random: RandomState::new(), next: AtomicU64::new(0) }
    }

    pub(crate) fn next(&self) -> LeaseId {
        let hash = self.random.hash_one(self.next.fetch_add(1, Ordering::Relaxed));
        LeaseId(NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN))
    }
}

impl Fleet {
    pub(crate) fn new(member: u64) -> Self {
        Fleet { member, size: AtomicU64::new(1), unheard: Mutex::new(None) }
    }

    /// The last known number of limiters, this one included.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// The store took a heartbeat, and counts so many.
    pub(crate) fn heard(&self, size: usize) {
        self.size.store(u64::try_from(size).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
        *self.unheard.lock() = None;
    }

    /// The store did not take a heartbeat. The number stays what it was. True if it took the one before.
    pub(crate) fn unheard(&self, why: String) -> bool {
        self.unheard.lock().replace(why).is_none()
    }

    pub(crate) fn why_unheard(&self) -> Option<String> {
        self.unheard.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_refusal_that_another_core_forgets_meanwhile_is_still_told() {
        let outcome = |verdict| Outcome { verdict, remaining: 0, reset_after: Micros::ZERO };
        let refusal = outcome(Verdict::Refused { retry_after: None });
        let known = Cell::new(true);
        // The first to look sees the refusal; by the second look it is gone.
        let refused = |place: usize| (place == 1 && known.replace(false)).then_some(refusal);
        let last_seen = |_: &usize| outcome(Verdict::Admitted { delay: Micros::ZERO });
        let told = refusal_of(0..3, refused, last_seen).expect("it was refused");
        let admitted: Vec<bool> = told.iter().map(Outcome::is_admitted).collect();
        assert_eq!(admitted, [true, false, true]);
    }
}
