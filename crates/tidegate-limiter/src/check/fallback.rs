//! The answer when the store gives none, or none in time: each rule's own failure policy.
//!
//! A closed rule refuses the whole request; otherwise open rules let it pass and local ones decide on this node, with its
//! share of the limit. Shadow rules refuse nothing here either.
//!
//! If the store has not failed but is too busy, the policy answers from what is known. What is known to be refused stays
//! refused. An open rule admits no more than its limit, as far as this node knows, and a local one no more than this node's
//! share. Both count what they admit, and the store is charged with it. A cost that was incurred already counts under every
//! policy. Whom the share refuses, and who asks a local rule for a
//! lease, is asked to retry soon: by then the store may decide.

use smallvec::SmallVec;
use tidegate_core::{Micros, Outcome, Over, Stance, Timestamp, Verdict};
use tidegate_rules::OnStoreFailure;
use tidegate_store::Clock;

use super::classify::{Cells, Places};
use super::pending::{PendingCheck, Refused};
use crate::answer::Answer;
use crate::deny_cache::Certainty;
use crate::limiter::Limiter;
use crate::local::{ASK_AGAIN, LocalHold, LocalReason, LocalSpend, Portion};
use crate::source::Source;

/// Decides a request none of whose cells can be asked at the store.
pub(crate) fn without_the_store<'p>(limiter: &'p Limiter, cells: Cells<'p>) -> Answer {
    let every_place = (0..cells.asks.len()).collect();
    let mut pending = PendingCheck::new(limiter, cells);
    pending.store = every_place;
    pending.without_store()
}

impl<'p> PendingCheck<'p> {
    /// The store did not answer for the cells it was asked about.
    pub(super) fn without_store(&mut self) -> Answer {
        self.decide_here(Cause::Failure)
    }

    /// The store answers others, but there was no room or no time to ask it for this request.
    pub(super) fn overloaded(&mut self) -> Answer {
        let now = self.limiter.clock.now();
        let cells = self.cells.asks.iter().copied();
        if let Some(refusal) = self.limiter.deny_cache.refusal(cells, (now, Certainty::Likely)) {
            let held = self.held.take();
            self.undo(held);
            self.limiter.observer.deny_cache_hit();
            return refusal;
        }
        self.decide_here(Cause::Overload)
    }

    fn decide_here(&mut self, cause: Cause) -> Answer {
        self.cause = cause;
        let now = self.limiter.clock.now();
        let (held, away) = (self.held.take(), std::mem::take(&mut self.store));
        match self.hold(SmallVec::new(), &away, now) {
            Ok(also_held) => {
                also_held.keep();
                held.into_iter().for_each(LocalHold::keep);
            }
            Err(Refused) => self.undo(held),
        }
        self.answer()
    }

    /// Spends from cells of this node, and from `away` cells as their rules' failure policies say.
    pub(super) fn hold(
        &mut self,
        mut local: SmallVec<[LocalSpend<'p>; 2]>,
        away: &[usize],
        now: Timestamp,
    ) -> Result<LocalHold<'p, 'p>, Refused> {
        let Limiter { deny_cache, local: cells, observer, .. } = self.limiter;
        if self.outcomes.is_empty() {
            // Until it is decided, each cell reports its last known outcome.
            self.outcomes = self.cells.asks.iter().map(|cell| deny_cache.last_seen(cell, now)).collect();
        }
        let away = &self.without_replaced(away)[..];
        if let Some(source) = away.iter().map(|place| self.policy_at(*place)).reduce(Source::precedence) {
            self.source = self.source.precedence(source);
            if self.cause == Cause::Failure {
                observer.fell_back(source);
            }
        }
        if self.refuse_at_once(away, now) {
            cells.put_back(&local);
            let unavailable = away.iter().map(|place| self.unavailable_spend(*place, now));
            self.owe_charges(local.into_iter().chain(unavailable));
            return Err(Refused);
        }
        let (counted, uncounted): (Places, Places) =
            away.iter().copied().partition(|place| self.portion_at(*place).is_some());
        self.owe_charges(uncounted.iter().map(|place| self.unavailable_spend(*place, now)));
        local.extend(counted.iter().map(|place| self.unavailable_spend(*place, now)));
        let held = cells.hold(&local);
        for (place, outcome) in held.outcomes() {
            self.outcomes[place] = self.or_ask_again(place, outcome, away);
        }
        if held.passes() { Ok(held) } else { Err(Refused) }
    }

    /// Of `away` cells those that decide: where the store is asked for another quota that replaces them, that one does, and
    /// they count as spent.
    fn without_replaced(&mut self, away: &[usize]) -> Places {
        let is_any_of = |place: &usize| self.cells.asks[*place].group().stance == Stance::AnyOf;
        let is_replaced = self.store.iter().any(is_any_of);
        let (gone, away) = away.iter().copied().partition(|place| is_replaced && is_any_of(place));
        let gone: Places = gone;
        gone.into_iter().for_each(|place| self.outcomes[place] = UNAVAILABLE);
        away
    }

    /// What the request spends here of a cell whose store cannot be asked.
    fn unavailable_spend(&self, place: usize, now: Timestamp) -> LocalSpend<'p> {
        if self.is_global(place) {
            // This node has no share of it but what it has paid for.
            return self.local_spend(place, LocalReason::Unpaid);
        }
        let portion = self.portion_at(place).unwrap_or(Portion::Whole);
        let left = self.limiter.deny_cache.left(&self.cells.asks[place], now);
        let last_seen = left.map(|outcome| outcome.remaining);
        self.local_spend(place, LocalReason::StoreUnavailable { last_seen, portion })
    }

    /// Costs that were incurred already are owed to the store, whatever the policy or another rule says.
    fn owe_charges(&self, spends: impl Iterator<Item = LocalSpend<'p>>) {
        let is_charge = |own: &LocalSpend<'_>| own.ask.spend.touch.over() == Over::Charge;
        let charges: SmallVec<[LocalSpend<'p>; 2]> = spends.filter(is_charge).collect();
        if !charges.is_empty() {
            self.limiter.local.hold(&charges).keep();
        }
    }

    /// What this node may admit from a cell whose store cannot be asked; `None` if the policy decides without counting.
    fn portion_at(&self, place: usize) -> Option<Portion> {
        match self.policy_at(place) {
            Source::FallbackLocal => Some(Portion::Share),
            Source::OverloadLocal if !self.cells.asks[place].limit().takes_lease() => Some(Portion::Share),
            // Leases are not hits, and are not charged: they live here until they end. Nothing is owed to a home: it lends.
            Source::OverloadOpen if !self.is_global(place) => Some(Portion::Whole),
            _ => None,
        }
    }

    /// Whether a closed rule refuses because its store is unavailable, or another because the store is too busy and too
    /// little is known to be left.
    fn refuse_at_once(&mut self, away: &[usize], now: Timestamp) -> bool {
        let mut refused = false;
        for &place in away {
            let refusal = match self.policy_at(place) {
                Source::FallbackClosed | Source::OverloadClosed => Some(UNAVAILABLE),
                Source::OverloadOpen => self.known_too_little(place, now),
                Source::OverloadLocal => self.lease_later(place),
                _ => None,
            };
            if let Some(refusal) = refusal {
                self.outcomes[place] = refusal;
                refused = true;
            }
        }
        refused
    }

    fn is_global(&self, place: usize) -> bool {
        self.limiter.local.home(&self.cells.asks[place]).is_some()
    }

    fn known_too_little(&self, place: usize, now: Timestamp) -> Option<Outcome> {
        let cell = &self.cells.asks[place];
        let left = self.limiter.deny_cache.left(cell, now)?;
        let too_little =
            cell.group().stance == Stance::Enforced && left.remaining < cell.needs().get().max(1);
        // The whole quota is back by then at the latest.
        let verdict = Verdict::Refused { retry_after: Some(left.reset_after) };
        too_little.then_some(Outcome { verdict, ..left })
    }

    /// In overload a local rule gives out hits, which time repays, but no leases: the store may already have given out all.
    fn lease_later(&self, place: usize) -> Option<Outcome> {
        let ask = &self.cells.asks[place];
        (ask.limit().takes_lease() && ask.group().stance == Stance::Enforced).then_some(ASK_AGAIN)
    }

    /// `outcome` of a cell that is decided here; in overload, one of the `away` cells that refuses says to retry soon.
    fn or_ask_again(&self, place: usize, outcome: Outcome, away: &[usize]) -> Outcome {
        let asks_again =
            !outcome.is_admitted() && away.contains(&place) && self.policy_at(place) == Source::OverloadLocal;
        if asks_again { ASK_AGAIN } else { outcome }
    }

    /// The policy for a cell whose store cannot be asked.
    fn policy_at(&self, place: usize) -> Source {
        let failed = self.cause == Cause::Failure;
        match self.cells.asks[place].policy.on_store_failure {
            OnStoreFailure::Closed if self.cells.asks[place].group().stance == Stance::Enforced => {
                if failed {
                    Source::FallbackClosed
                } else {
                    Source::OverloadClosed
                }
            }
            OnStoreFailure::Closed | OnStoreFailure::Open => {
                if failed {
                    Source::FallbackOpen
                } else {
                    Source::OverloadOpen
                }
            }
            OnStoreFailure::Local => {
                if failed {
                    Source::FallbackLocal
                } else {
                    Source::OverloadLocal
                }
            }
        }
    }
}

/// Why a request is decided without its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The store does not answer.
    Failure,
    /// It answers others, but was too busy for this request.
    Overload,
}

/// How a closed rule refuses: the retry time is unknown.
const UNAVAILABLE: Outcome =
    Outcome { verdict: Verdict::Refused { retry_after: None }, remaining: 0, reset_after: Micros::ZERO };
