//! Approximate rules: each node decides on its own count, which it periodically syncs with the store's.
//!
//! After each answer of the store a node may admit `ceil(remaining / fleet)` hits before the next one; when they are used up
//! it reports them at once, and what does not fit meanwhile goes to the store, like any exact request. So a node never has
//! more than `ceil(limit / fleet)` unreported hits, and a fleet admits less than twice the limit plus one hit per node,
//! however many nodes there are and whatever they know of each other. If one node has all the traffic, it gets all of the
//! limit.

use tidegate_core::{Hits, Micros, Outcome, Timestamp};

use super::cell_map::{CellMap, HasRoom};
use crate::cell::{CellAsk, KeptCell};
use crate::cell_hash::CellHash;

/// The cells of approximate rules that this node has seen.
pub(crate) struct Approximate(CellMap<Share>);

struct Share {
    cell: KeptCell,
    sync_every: Micros,
    /// Hits that may still be admitted before the next store answer.
    left: u64,
    /// Admitted hits that the store does not know of.
    unreported: u64,
    /// Hits in a report in flight: store answers that arrive meanwhile may not include them.
    reporting: u64,
    /// How many of those may never reach the store, and until when they count anyway.
    doubtful: (u64, Timestamp),
    heard: Timestamp,
    /// It refused since the store last answered, which may know better.
    wants_to_hear: bool,
}

/// Hits that must be reported to the store.
#[derive(Clone)]
pub(crate) struct Unreported {
    pub(crate) cell: KeptCell,
    pub(crate) hits: u64,
}

impl Approximate {
    pub(crate) fn new(most: usize) -> Self {
        Approximate(CellMap::new(most))
    }

    /// Whether `ask` fits into this node's share. Takes nothing.
    pub(crate) fn has_room(&self, ask: &CellAsk<'_>, fleet: u64) -> bool {
        // Leases end by ID, on any node: a count alone cannot track them.
        if ask.limit().takes_lease() {
            return false;
        }
        let whole = ask.limit().quota().div_ceil(fleet.max(1));
        let hits = ask.spend.touch.ask.hits.get();
        self.0.look(ask.hash, |share, HasRoom(has_room)| match share {
            Some(share) if share.cell.limit() == ask.limit() => share.left >= hits,
            Some(share) => share.left.min(whole) >= hits,
            None => has_room && whole >= hits,
        })
    }

    /// Takes `ask` from this node's share; false if it does not fit. A look takes nothing.
    pub(crate) fn take(&self, ask: &CellAsk<'_>, sync_every: Micros, fleet: u64, now: Timestamp) -> bool {
        let whole = ask.limit().quota().div_ceil(fleet.max(1));
        let new = || Share::new(ask, sync_every, whole, now);
        let take = |share: &mut Share| {
            let hits = ask.spend.touch.ask.hits.get();
            if share.cell.limit() != ask.limit() {
                share.cell = ask.cell();
                share.left = share.left.min(whole);
            }
            share.sync_every = sync_every;
            if share.left < hits {
                return false;
            }
            share.left -= hits;
            share.unreported += hits;
            true
        };
        self.0.change_or_insert(ask.hash, new, take).unwrap_or(false)
    }

    /// Counts `ask`, whatever its share: it is decided by all that is known here. False if there is no room to count it.
    pub(crate) fn count(&self, ask: &CellAsk<'_>, sync_every: Micros, now: Timestamp) -> bool {
        let new = || Share::new(ask, sync_every, ask.limit().quota(), now);
        let count = |share: &mut Share| {
            if share.cell.limit() != ask.limit() {
                share.cell = ask.cell();
            }
            share.sync_every = sync_every;
            share.unreported += ask.spend.touch.ask.hits.get();
        };
        self.0.change_or_insert(ask.hash, new, count).is_some()
    }

    /// It refuses: the store is asked when it is due, though nothing may be left to report.
    pub(crate) fn wants_to_hear(&self, hash: CellHash) {
        self.0.change(hash, |share| share.wants_to_hear = true);
    }

    /// The report for a share that `hits` did not fit into: due at once, because the store decides what comes next.
    pub(crate) fn used_up(&self, hash: CellHash, hits: Hits, now: Timestamp) -> Option<Unreported> {
        let is_due = |share: &Share| share.left < hits.get() && share.unreported > 0;
        self.0.change(hash, |share| is_due(share).then(|| share.report(now)))?
    }

    /// Admitted hits that were not reported, if that covers `spent_at`.
    pub(crate) fn unreported_since(&self, hash: CellHash, spent_at: Timestamp) -> u64 {
        // What was spent before the last report was part of it.
        self.0.look(hash, |share, _| {
            share.filter(|share| spent_at >= share.heard).map_or(0, |share| share.unreported)
        })
    }

    /// Returns hits to the share that [`Approximate::take`] took and that were not spent after all: at most those not
    /// reported. Returns their count.
    pub(crate) fn put_back(&self, hash: CellHash, hits: Hits, spent_at: Timestamp) -> u64 {
        let put_back = |share: &mut Share| {
            // What was spent before the last report was part of it.
            let hits = if spent_at >= share.heard { hits.get().min(share.unreported) } else { 0 };
            share.unreported -= hits;
            share.left = share.left.saturating_add(hits);
            hits
        };
        self.0.change(hash, put_back).unwrap_or(0)
    }

    /// Whether the store's last answer about this cell is within its sync interval.
    pub(crate) fn is_fresh(&self, hash: CellHash, now: Timestamp) -> bool {
        let is_fresh = |share: &Share| now >= share.heard && now.since(share.heard) < share.sync_every;
        self.0.look(hash, |share, _| share.is_some_and(is_fresh))
    }

    /// Up to `most` cells with hits due for a report. They count as reported from here on.
    pub(crate) fn due(&self, most: usize, now: Timestamp) -> Vec<Unreported> {
        self.0.collect(most, |share| {
            let waited = now < share.heard || now.since(share.heard) >= share.sync_every;
            ((share.unreported > 0 || share.wants_to_hear) && waited).then(|| share.report(now))
        })
    }

    /// All unreported hits, whether or not due. They count as reported from here on.
    pub(crate) fn unreported(&self, now: Timestamp) -> Vec<Unreported> {
        self.0.collect(usize::MAX, |share| (share.unreported > 0).then(|| share.report(now)))
    }

    /// How many cells have unreported hits.
    pub(crate) fn unreported_cells(&self) -> usize {
        self.0.count(|share| share.unreported > 0)
    }

    /// Hits from [`Approximate::due`] that the store knows of now.
    pub(crate) fn was_told(&self, hash: CellHash, hits: u64) {
        self.0.change(hash, |share| share.reporting = share.reporting.saturating_sub(hits));
    }

    /// Hits from [`Approximate::due`] of which it is unknown whether they reached the store: late answers are common, so they
    /// count as in flight until the next report is due.
    pub(crate) fn may_have_been_told(&self, hash: CellHash, hits: u64, now: Timestamp) {
        self.0.change(hash, |share| share.doubtful = (share.doubtful.0 + hits, now + share.sync_every));
    }

    /// Hits from [`Approximate::due`] that certainly did not reach the store.
    pub(crate) fn was_not_told(&self, hash: CellHash, hits: u64) {
        self.0.change(hash, |share| {
            share.reporting = share.reporting.saturating_sub(hits);
            share.unreported += hits;
        });
    }

    /// Applies the store's answer about a cell. Returns what this node must count as spent, its own unreported hits included;
    /// `None` if it does not know the cell.
    pub(crate) fn heard(&self, hash: CellHash, outcome: &Outcome, fleet: u64, now: Timestamp) -> Option<u64> {
        self.0.change(hash, |share| {
            share.forget_doubts(now);
            // The store may have answered before it received the report in flight.
            let unknown = share.unreported + share.reporting;
            let remaining = outcome.remaining.saturating_sub(unknown);
            // Never more unreported than a share of the whole.
            let most = share.cell.limit().quota().div_ceil(fleet.max(1)).saturating_sub(unknown);
            share.left = remaining.div_ceil(fleet.max(1)).min(most);
            share.heard = now;
            share.wants_to_hear = false;
            share.cell.limit().quota().saturating_sub(remaining)
        })
    }

    /// Removes cells that were not spent from for a while.
    pub(crate) fn sweep(&self, now: Timestamp) {
        let idle = |share: &Share| {
            let quiet = share.sync_every + share.cell.limit().quota_window().unwrap_or_default();
            share.unreported + share.reporting == share.doubtful.0 && now.since(share.heard) > quiet + quiet
        };
        self.0.retain(|share| !idle(share));
    }
}

impl Share {
    fn new(ask: &CellAsk<'_>, sync_every: Micros, left: u64, now: Timestamp) -> Self {
        Share {
            cell: ask.cell(),
            sync_every,
            left,
            unreported: 0,
            reporting: 0,
            doubtful: (0, now),
            heard: now,
            wants_to_hear: false,
        }
    }

    /// A report of unknown fate has by now arrived or is lost.
    fn forget_doubts(&mut self, now: Timestamp) {
        let (hits, until) = self.doubtful;
        if hits > 0 && now >= until {
            self.reporting = self.reporting.saturating_sub(hits);
            self.doubtful = (0, now);
        }
    }

    /// The report of all unreported hits, which count as reported from now on.
    fn report(&mut self, now: Timestamp) -> Unreported {
        self.heard = now;
        let hits = std::mem::take(&mut self.unreported);
        self.reporting += hits;
        Unreported { cell: self.cell.clone(), hits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::CellPolicy;
    use crate::cell_hash::CellHasher;
    use tidegate_core::{Ask, FixedWindow, Group, Limit, Scope, Touch, Verdict};
    use tidegate_store::{CellKey, Spend};

    #[test]
    fn what_the_store_said_before_it_heard_of_a_report_gives_no_second_share() {
        let limit = Limit::FixedWindow(FixedWindow::new(10, Micros::from_secs(3_600)).unwrap());
        let scope = Scope::new(&[b"rule"]);
        let cell = CellKey { scope: &scope, key: b"key", tag: b"key" };
        let touch = Touch { limit: &limit, ask: Ask::hits(1), group: Group::ENFORCED };
        let ask = CellAsk::new(&CellHasher::new([1, 2]), Spend { cell, touch }, CellPolicy::CALLER_LIMIT);
        let hash = ask.hash;
        let (approximate, now) = (Approximate::new(10), Timestamp::from_micros(1_000_000));
        let take = || approximate.take(&ask, Micros::from_secs(1), 1, now);
        let says = |remaining| {
            let verdict = Verdict::Admitted { delay: Micros::ZERO };
            let outcome = Outcome { verdict, remaining, reset_after: Micros::ZERO };
            approximate.heard(hash, &outcome, 1, now).unwrap();
        };
        assert_eq!((0..20).filter(|_| take()).count(), 10);
        let report = approximate.used_up(hash, Hits::ONE, now).unwrap();
        assert_eq!(report.hits, 10);
        says(10);
        assert!(!take(), "the store has yet to hear of ten");
        approximate.was_told(hash, report.hits);
        says(0);
        assert!(!take());
        says(4);
        assert_eq!((0..20).filter(|_| take()).count(), 4, "others gave some back");
    }

    #[test]
    fn a_report_of_unknown_fate_counts_until_the_next_is_due() {
        let limit = Limit::FixedWindow(FixedWindow::new(10, Micros::from_secs(3_600)).unwrap());
        let scope = Scope::new(&[b"rule"]);
        let cell = CellKey { scope: &scope, key: b"key", tag: b"key" };
        let touch = Touch { limit: &limit, ask: Ask::hits(10), group: Group::ENFORCED };
        let ask = CellAsk::new(&CellHasher::new([1, 2]), Spend { cell, touch }, CellPolicy::CALLER_LIMIT);
        let hash = ask.hash;
        let (approximate, sync_every) = (Approximate::new(10), Micros::from_secs(1));
        let takes_after_the_store_says_ten = |now| {
            let verdict = Verdict::Admitted { delay: Micros::ZERO };
            let outcome = Outcome { verdict, remaining: 10, reset_after: Micros::ZERO };
            approximate.heard(hash, &outcome, 1, now);
            approximate.take(&ask, sync_every, 1, now)
        };
        let now = Timestamp::from_micros(1_000_000);
        assert!(approximate.take(&ask, sync_every, 1, now));
        let report = approximate.used_up(hash, Hits::ONE, now).unwrap();
        approximate.may_have_been_told(hash, report.hits, now);
        assert!(!takes_after_the_store_says_ten(now + Micros::from_millis(999)));
        assert!(takes_after_the_store_says_ten(now + sync_every), "they are lost");
    }
}
