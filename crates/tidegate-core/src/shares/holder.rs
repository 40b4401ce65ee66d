//! A share as its holder sees it.

use super::demand::Demand;
use super::lender::{Claim, Share};
use crate::units::{Micros, Timestamp};

/// Spends from a share of a window's hits, and says when and what to claim.
#[derive(Clone, Debug)]
pub struct Holder {
    used: u64,
    serial: u64,
    ceiling: u64,
    /// What the share had when it came.
    size: u64,
    until: Timestamp,
    lasts: Micros,
    demand: Demand,
}

impl Holder {
    /// A holder without a share, of a lender whose shares last `term`.
    #[must_use]
    pub fn new(term: Micros, now: Timestamp) -> Self {
        Holder {
            used: 0,
            serial: 0,
            ceiling: 0,
            size: 0,
            until: now,
            lasts: term,
            demand: Demand::new(term, now),
        }
    }

    /// Spends `hits` if the share has them and has not ended.
    #[must_use]
    pub fn spend(&mut self, now: Timestamp, hits: u64) -> bool {
        self.demand.note(now, hits);
        let fits = now < self.until && hits <= self.left();
        if fits {
            self.used += hits;
        }
        fits
    }

    /// Whether to claim now: a third of the share's time is left, or a quarter of its hits.
    #[must_use]
    pub fn is_due(&self, now: Timestamp) -> bool {
        let left = if now < self.until { (self.until - now).get() } else { 0 };
        left <= self.lasts.get() / 3 || self.left() <= self.size / 4
    }

    /// What to ask for at `now`. The answer goes to [`Holder::receive`] with the same `now`.
    #[must_use]
    pub fn claim(&mut self, now: Timestamp) -> Claim {
        Claim { holds: self.serial, used: self.used, wants: self.demand.next_term(now) }
    }

    /// Takes the share that answers the claim made at `claimed`. An older one than it has changes nothing.
    pub fn receive(&mut self, share: Share, claimed: Timestamp) {
        if share.serial <= self.serial {
            return;
        }
        self.serial = share.serial;
        self.ceiling = share.ceiling;
        self.size = self.left();
        self.until = claimed + share.lasts;
        self.lasts = share.lasts;
    }

    /// The hits that the share still has, if it has not ended.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.ceiling.saturating_sub(self.used)
    }
}
