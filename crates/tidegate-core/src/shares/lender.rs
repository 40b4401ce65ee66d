//! What is lent, to whom, until when.

use std::collections::BTreeMap;

use super::divide::divide;
use crate::units::{Micros, Timestamp};

/// What becomes of a share that is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lending {
    /// The hits of a window: used hits are gone, and the holder reports them. What it did not report when its share ends counts as
    /// used, because it may have been.
    Hits,
    /// Capacity that is kept while it is lent: the places of a concurrency limit, or a part of a bucket (burst and rate). It comes
    /// back whole when the share ends.
    Capacity,
}

/// A holder's request for a share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The [`Share::serial`] that it now holds; 0 if none. Confirms that it has forgotten every earlier one.
    pub holds: u64,
    /// All hits that it ever used, a count that only grows. 0 for [`Lending::Capacity`].
    pub used: u64,
    /// How much it would use until its next renewal.
    pub wants: u64,
}

/// An answer to a [`Claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The number of this share, for the next claim.
    pub serial: u64,
    /// The holder may use until its count of used hits reaches this; for [`Lending::Capacity`], its part.
    pub ceiling: u64,
    /// It ends this long after the *claim was made*.
    pub lasts: Micros,
}

/// Lends one budget in shares that never sum to more than what there is.
///
/// 1. What holders may still use, together, is at most the `capacity` of the last call that lent any. (If it shrinks, shares that
///    were lent stay lent until they end.)
/// 2. A lost, late or repeated claim or share changes nothing about that.
/// 3. A holder that does not renew loses its share after `term`.
#[derive(Clone, Debug)]
pub struct Lender<H> {
    lending: Lending,
    term: Micros,
    most_holders: usize,
    serial: u64,
    loans: BTreeMap<H, Loan>,
}

/// All that one holder may believe it has.
#[derive(Clone, Debug, Default)]
struct Loan {
    wants: u64,
    /// Of the hits that this holder ever used, those that the budget was charged for.
    charged: u64,
    /// The shares that the holder may be using: the one that it confirmed, and newer ones whose answer may be lost.
    offers: Vec<Offer>,
}

#[derive(Clone, Copy, Debug)]
struct Offer {
    serial: u64,
    ceiling: u64,
    until: Timestamp,
}

/// More offers than this without a confirmation are counted as one: the largest and latest.
const MOST_OFFERS: usize = 4;

impl<H: Ord + Clone> Lender<H> {
    /// A lender whose shares last `term`, to at most `most_holders`.
    #[must_use]
    pub fn new(lending: Lending, term: Micros, most_holders: usize) -> Self {
        Lender { lending, term, most_holders, serial: 0, loans: BTreeMap::new() }
    }

    /// What holders may still use.
    #[must_use]
    pub fn lent(&self) -> u64 {
        self.loans.values().map(Loan::exposure).fold(0, u64::saturating_add)
    }

    /// What `holder` may still use, and when the last of it ends. None if nothing is lent to it.
    #[must_use]
    pub fn lent_to(&self, holder: &H) -> Option<(u64, Timestamp)> {
        let loan = self.loans.get(holder)?;
        loan.ends().map(|ends| (loan.exposure(), ends))
    }

    /// The number of holders.
    #[must_use]
    pub fn holders(&self) -> usize {
        self.loans.len()
    }

    /// Ends the shares whose time is over. Returns the hits to charge for: those of [`Lending::Hits`] that may have been used.
    #[must_use]
    pub fn expire(&mut self, now: Timestamp) -> u64 {
        let lending = self.lending;
        let mut charge: u64 = 0;
        self.loans.retain(|_, loan| {
            let ended = loan.end_offers(now);
            if lending == Lending::Hits {
                charge = charge.saturating_add(ended.saturating_sub(loan.charged));
                loan.charged = loan.charged.max(ended);
            }
            !loan.offers.is_empty()
        });
        charge
    }

    /// Answers `holder`'s `claim`. `capacity` is what may be lent in all: what is left of the limit, plus what is lent already.
    /// `ends_in` shortens the share, so that a window's hits end with the window.
    ///
    /// Returns the share and the hits that the holder used since its last claim, to charge for. None if there are too many holders:
    /// it goes on as a holder without a share does.
    ///
    /// Call [`Lender::expire`] first.
    #[must_use]
    pub fn renew(
        &mut self,
        now: Timestamp,
        capacity: u64,
        ends_in: Option<Micros>,
        holder: &H,
        claim: Claim,
    ) -> Option<(Share, u64)> {
        if !self.loans.contains_key(holder) && self.loans.len() >= self.most_holders {
            return None;
        }
        // A newcomer that used hits before used them of a share that ended, and what ended was charged for.
        let loan = self
            .loans
            .entry(holder.clone())
            .or_insert_with(|| Loan { charged: claim.used, ..Loan::default() });
        let used = loan.confirm(claim);
        let capacity = capacity.saturating_sub(used);
        let unlent = capacity.saturating_sub(self.lent());
        let fair = self.fair_part(capacity, holder);

        let loan = self.loans.get_mut(holder).expect("this claim's loan");
        // What the holder may use already is lent once, however many shares say so.
        let size = fair.min(loan.exposure().saturating_add(unlent));
        let lasts = ends_in.map_or(self.term, |ends_in| ends_in.min(self.term));
        self.serial += 1;
        let share = Share { serial: self.serial, ceiling: loan.charged.saturating_add(size), lasts };
        loan.offer(Offer { serial: share.serial, ceiling: share.ceiling, until: now + lasts });
        Some((share, used))
    }

    /// Moves up to `part` of what `from` may still use to `to`, which has proved to use it: the same holder under another name, as
    /// after its connection broke. It ends when it would have. Returns how much was moved. Only for [`Lending::Capacity`].
    pub fn hand_over(&mut self, from: &H, to: &H, part: u64) -> u64 {
        let has_room = self.loans.contains_key(to) || self.loans.len() < self.most_holders;
        let Some(giver) = self.loans.get_mut(from).filter(|_| has_room && from != to) else { return 0 };
        giver.wants = 0;
        let left = giver.exposure().saturating_sub(part);
        let moved = giver.exposure() - left;
        let until = giver.ends();
        giver.offers.iter_mut().for_each(|offer| offer.ceiling = offer.ceiling.min(left));
        let Some(until) = until else { return 0 };
        let taker = self.loans.entry(to.clone()).or_default();
        self.serial += 1;
        let ceiling = taker.exposure().saturating_add(moved);
        taker.offer(Offer { serial: self.serial, ceiling, until });
        moved
    }

    /// This holder's part if all shares were divided anew.
    fn fair_part(&self, capacity: u64, holder: &H) -> u64 {
        let wants: Vec<u64> = self.loans.values().map(|loan| loan.wants).collect();
        let place = self.loans.range(..holder.clone()).count();
        divide(capacity, &wants)[place]
    }
}

impl Loan {
    /// The most that the holder may still use beyond what was charged for.
    fn exposure(&self) -> u64 {
        let ceiling = self.offers.iter().map(|offer| offer.ceiling).max().unwrap_or(0);
        ceiling.saturating_sub(self.charged)
    }

    /// When the last of its offers ends.
    fn ends(&self) -> Option<Timestamp> {
        self.offers.iter().map(|offer| offer.until).max()
    }

    /// Forgets the offers whose time is over. Returns the highest of their ceilings.
    fn end_offers(&mut self, now: Timestamp) -> u64 {
        let mut highest = 0;
        self.offers.retain(|offer| {
            let ended = offer.until <= now;
            if ended {
                highest = highest.max(offer.ceiling);
            }
            !ended
        });
        highest
    }

    /// Takes in what the claim says. Returns the hits used since the last one.
    fn confirm(&mut self, claim: Claim) -> u64 {
        self.offers.retain(|offer| offer.serial >= claim.holds);
        self.wants = claim.wants;
        // A claim that was overtaken says less than is known.
        let used = claim.used.saturating_sub(self.charged);
        self.charged += used;
        used
    }

    fn offer(&mut self, offer: Offer) {
        self.offers.push(offer);
        if self.offers.len() > MOST_OFFERS {
            let first = self.offers.remove(0);
            let second = &mut self.offers[0];
            second.ceiling = second.ceiling.max(first.ceiling);
            second.until = second.until.max(first.until);
        }
    }
}
