//! A limit of any algorithm: asks the one that it is (`algorithm.rs`), and knows nothing of any of them.

use crate::algorithm::{Algorithm, Behaviour, Facts, Transitions};
use crate::cell::{Cell, CellForm, CounterBits};
use crate::concurrency::{Concurrency, LeaseId};
use crate::fixed_window::FixedWindow;
use crate::leaky_bucket::LeakyBucket;
use crate::meter::{Meter, Rate};
use crate::outcome::Outcome;
use crate::request::Ask;
use crate::sliding_log::{RefusedHits, SlidingLog};
use crate::sliding_window::SlidingWindow;
use crate::token_bucket::TokenBucket;
use crate::units::{EXACT_MAX, Hits, Micros, Timestamp};

/// A rule's limit, of any algorithm.
///
/// Exhaustive on purpose: a store that does not handle an algorithm should not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is documented by the type it holds")]
pub enum Limit {
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    LeakyBucket(LeakyBucket),
    Concurrency(Concurrency),
}

/// Asks the same of whichever algorithm a limit has.
macro_rules! ask {
    ($limit:expr, $of:ident => $question:expr) => {
        match $limit {
            Limit::TokenBucket($of) => $question,
            Limit::FixedWindow($of) => $question,
            Limit::SlidingWindow($of) => $question,
            Limit::SlidingLog($of) => $question,
            Limit::LeakyBucket($of) => $question,
            Limit::Concurrency($of) => $question,
        }
    };
}

/// Makes a limit of each type that an algorithm has for its own.
macro_rules! limit_from {
    ($($algorithm:ident),*) => {
        $(impl From<$algorithm> for Limit {
            fn from(limit: $algorithm) -> Self {
                Limit::$algorithm(limit)
            }
        })*
    };
}

limit_from!(TokenBucket, FixedWindow, SlidingWindow, SlidingLog, LeakyBucket, Concurrency);

/// Hits that were already spent, and count whether or not they fit.
///
/// They count from when they were spent, or from the cell's last change if later: a bucket has drained since, a window may be
/// over. A cell holds at most its quota plus the overdraft; any excess is dropped. A sliding log needs no overdraft: its newest
/// hits alone determine when there is room again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The number of hits.
    pub hits: Hits,
    /// How long ago they were spent.
    pub age: Micros,
    /// How many of them may exceed the quota.
    pub overdraft: Hits,
}

impl Charge {
    /// `hits` spent now, up to the whole quota.
    #[must_use]
    pub const fn now(hits: Hits) -> Self {
        Charge { hits, age: Micros::ZERO, overdraft: Hits::ZERO }
    }

    /// How many of the hits a cell that holds `held` of `quota` takes.
    pub(crate) fn fitting(&self, quota: u64, held: u64) -> u64 {
        let most = quota.saturating_add(self.overdraft.get()).min(EXACT_MAX - 1);
        self.hits.get().min(most.saturating_sub(held))
    }
}

impl Limit {
    #[inline]
    pub(crate) fn facts(&self) -> Facts<'_> {
        ask!(self, limit => limit.facts())
    }

    /// The algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.facts().algorithm
    }

    /// The limit reported to a caller: the most hits that an idle key may spend at once.
    #[must_use]
    pub fn quota(&self) -> u64 {
        self.facts().quota
    }

    /// The refill time of the quota, as reported to a caller; none if it is not a fixed span (a calendar).
    #[must_use]
    pub fn quota_window(&self) -> Option<Micros> {
        ask!(self, limit => limit.quota_window())
    }

    /// The span that is part of a cell's identity: a limit with another span cannot read its cells. None for a calendar
    /// (identified by unit and zone) and for concurrency (each lease carries its own end).
    #[must_use]
    pub fn period(&self) -> Option<Micros> {
        self.facts().period
    }

    /// Whether its quota refills continuously at its rate, not per window.
    #[must_use]
    pub fn refills(&self) -> bool {
        self.facts().meter.is_some()
    }

    /// The shortest time between two requests; zero if there is none.
    #[must_use]
    pub fn min_interval(&self) -> Micros {
        self.facts().min_interval
    }

    /// Whether refused requests count in its cells.
    #[must_use]
    #[inline]
    pub fn counts_refused(&self) -> bool {
        self.facts().refused == RefusedHits::Count
    }

    /// Whether an admitted request holds a lease until it is done.
    #[must_use]
    #[inline]
    pub fn takes_lease(&self) -> bool {
        self.lease_ttl().is_some()
    }

    /// How long such a lease lives unless renewed; none if the limit has no leases.
    #[must_use]
    #[inline]
    pub fn lease_ttl(&self) -> Option<Micros> {
        self.facts().lease_ttl
    }

    /// Whether hits can be refunded: not the slots of a leaky bucket, because later callers already know their time, nor leases,
    /// which are released.
    #[must_use]
    pub fn takes_refunds(&self) -> bool {
        self.facts().takes_refunds
    }

    /// Whether its cells are counters: a few words, whatever the traffic.
    #[must_use]
    #[inline]
    pub fn is_counter(&self) -> bool {
        self.form() == CellForm::Counter
    }

    /// What its cells hold.
    #[must_use]
    #[inline]
    pub fn form(&self) -> CellForm {
        self.facts().form
    }

    /// The rate at which it refills continuously; none if it does not.
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        self.facts().meter.map(Meter::rate)
    }

    /// The start and end of the window around `now`, of a limit that forgets all when its window ends.
    #[must_use]
    pub fn window_around(&self, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let Limit::FixedWindow(limit) = self else { return None };
        Some(limit.window_around(now))
    }

    /// The share of this limit for each of `nodes`, when the nodes of a fleet cannot communicate: rounded up, so that together
    /// they spend less than the limit plus one per node, and a node always gets some of a small limit. The refill per period is
    /// divided too.
    #[must_use]
    pub fn divided(&self, nodes: u64) -> Limit {
        if nodes <= 1 {
            return self.clone();
        }
        // A valid limit with a smaller number stays valid.
        ask!(self, limit => limit.divided(nodes).map_or_else(|_| self.clone(), Limit::from))
    }

    /// The limit to take hits under that are spent up to `held` later; none if they cannot be taken before they are spent.
    pub(crate) fn paid_ahead(&self, held: Micros) -> Option<Limit> {
        ask!(self, limit => limit.paid_ahead(held).and_then(Result::ok).map(Limit::from))
    }

    /// The limit that admits no more than this one and no more than `other`, number by number: either of two tiers of a
    /// rule may be the stricter in some number. None if the family of the algorithms or the period differ, because they then
    /// use different cells.
    #[must_use]
    pub fn strictest(&self, other: &Limit) -> Option<Limit> {
        if self.period() != other.period() {
            return None;
        }
        // Valid limits with smaller numbers stay valid.
        ask!(self, limit => limit.strictest(other)).and_then(Result::ok)
    }

    /// The same for a caller that cannot wait in a queue; none if the limit has no queue.
    #[must_use]
    pub fn without_waiting(&self) -> Option<Limit> {
        if let Limit::LeakyBucket(bucket) = self {
            return Some(bucket.without_waiting().into());
        }
        None
    }

    /// The same with at most `most` leases at once; limits without leases are unchanged.
    #[must_use]
    pub fn with_leases_at_most(&self, most: u64) -> Limit {
        if let Limit::Concurrency(limit) = self {
            let fewer = Concurrency::new(limit.limit().min(most), limit.ttl(), limit.refused_hits());
            return fewer.map_or_else(|_| self.clone(), Limit::Concurrency);
        }
        self.clone()
    }

    /// Decides `ask` at `now`; a refusal spends nothing.
    pub fn decide(&self, cell: &mut Cell, now: Timestamp, ask: Ask) -> Outcome {
        ask!(self, limit => limit.spend(cell, now, ask))
    }

    /// Decides on a counter's bare state: the shortest path for a store that keeps counters separately.
    ///
    /// # Panics
    /// If this limit is not [a counter](Limit::is_counter).
    #[must_use]
    #[inline]
    pub fn decide_counter(
        &self,
        bits: Option<CounterBits>,
        now: Timestamp,
        hits: Hits,
    ) -> (Outcome, Option<CounterBits>) {
        ask!(self, limit => limit.step_bits(bits, now, hits)).expect("only a counter is decided as one")
    }

    /// The outcome at `now`. Changes nothing.
    #[must_use]
    pub fn look(&self, cell: &Cell, now: Timestamp, ask: Ask) -> Outcome {
        ask!(self, limit => limit.outlook(cell, now, ask))
    }

    /// Refunds `hits` that were spent `age` ago, at most what was spent. A leaky bucket's slot cannot be refunded, and a lease
    /// is released by its ID.
    pub fn refund(&self, cell: &mut Cell, now: Timestamp, hits: Hits, age: Micros) {
        ask!(self, limit => limit.put_back(cell, now, hits, age));
    }

    /// Charges hits that were already spent, whether or not they fit: see [`Charge`].
    pub fn charge(&self, cell: &mut Cell, now: Timestamp, charge: Charge) {
        ask!(self, limit => limit.take_anyway(cell, now, charge));
    }

    /// Records `count` refused requests, if they count.
    pub fn note_refused(&self, cell: &mut Cell, now: Timestamp, ask: Ask, count: u32) {
        if ask.hits > Hits::ZERO && count > 0 && self.counts_refused() {
            ask!(self, limit => limit.note(cell, now, ask.hits, count));
        }
    }

    /// Moves a cell from the future, written before the clock stepped back, to now. Every decision does this to its cells, or a
    /// refusal would last until the clock had caught up.
    pub(crate) fn rebase(&self, cell: &mut Cell, now: Timestamp) {
        ask!(self, limit => limit.bring_to_now(cell, now));
    }

    /// Extends a lease by its TTL; false if it has ended, or this is not a concurrency limit.
    pub fn renew(&self, cell: &mut Cell, now: Timestamp, id: LeaseId) -> bool {
        let Limit::Concurrency(limit) = self else { return false };
        limit.in_leases(cell, |leases| limit.renew(leases, now, id))
    }

    /// Ends a lease; false if it had already ended, or this is not a concurrency limit.
    pub fn release(&self, cell: &mut Cell, now: Timestamp, id: LeaseId) -> bool {
        let Limit::Concurrency(limit) = self else { return false };
        limit.in_leases(cell, |leases| limit.release(leases, now, id))
    }
}
