//! The answer when the store gives none, or none in time: each rule's own failure policy.
//!
//! A closed rule refuses the whole request; otherwise open rules let it pass and local ones decide on this node, with its
//! share of the limit. Shadow rules refuse nothing here either.
//!
//! If the store has not failed but is too busy, the policy answers from what is known: a flood must not gain what is meant
//! for callers whose store has failed. What is known to be refused stays refused. An open rule admits no more than its limit,
//! as far as this node knows. A local one admits nothing: the store keeps deciding for others, and may already give them the
//! last hits. It asks the caller to retry soon.

use smallvec::SmallVec;
use tidegate_core::{Micros, Outcome, Stance, Timestamp, Verdict};
use tidegate_rules::OnStoreFailure;
use tidegate_store::Clock;

use super::classify::{CellPolicy, Cells};
use super::pending::{CheckAnswer, PendingCheck, Refused};
use crate::deny_cache::{CachedRefusal, Certainty};
use crate::limiter::Limiter;
use crate::local::{LocalHold, LocalReason, LocalSpend, Portion};
use crate::source::Source;

/// Decides a request none of whose cells can be asked at the store.
pub(crate) fn without_the_store<'p>(
    limiter: &'p Limiter,
    spends: &'p [tidegate_store::Spend<'p>],
    policies: impl Iterator<Item = CellPolicy>,
) -> CheckAnswer {
    let mut pending = PendingCheck::new(limiter, Cells::new(&limiter.hasher, spends, policies));
    pending.store = (0..spends.len()).collect();
    pending.without_store()
}

impl<'p> PendingCheck<'p> {
    /// The store did not answer for the cells it was asked about.
    pub(super) fn without_store(&mut self) -> CheckAnswer {
        self.decide_here(Cause::Failure)
    }

    /// The store answers others, but there was no room or no time to ask it for this request.
    pub(super) fn overloaded(&mut self) -> CheckAnswer {
        let now = self.limiter.clock.now();
        let cells = self.cells.cached.iter().copied();
        if let Some(refusal) = self.limiter.deny_cache.refusal(cells, (now, Certainty::Likely)) {
            let held = self.held.take();
            self.undo(held);
            self.limiter.observer.deny_cache_hit();
            let CachedRefusal { outcomes, decided_at } = refusal;
            return CheckAnswer::new(outcomes, Source::DenyCache, decided_at);
        }
        self.decide_here(Cause::Overload)
    }

    fn decide_here(&mut self, cause: Cause) -> CheckAnswer {
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
            self.outcomes = self.cells.cached.iter().map(|cell| deny_cache.last_seen(cell, now)).collect();
        }
        if let Some(source) = away.iter().map(|place| self.policy_at(*place)).reduce(Source::or_weaker) {
            self.source = self.source.or_weaker(source);
            if self.cause == Cause::Failure {
                observer.fell_back(source);
            }
        }
        if self.refuse_at_once(away, now) {
            cells.put_back(&local);
            return Err(Refused);
        }
        for &place in away {
            if let Some(portion) = self.portion_at(place) {
                let left = deny_cache.left(&self.cells.cached[place], now);
                let last_seen = left.map(|outcome| outcome.remaining);
                local.push(self.local_spend(place, LocalReason::StoreUnavailable { last_seen, portion }));
            }
        }
        let held = cells.hold(&local);
        for (place, outcome) in held.outcomes() {
            self.outcomes[place] = outcome;
        }
        if held.passes() { Ok(held) } else { Err(Refused) }
    }

    /// What this node may admit from a cell whose store cannot be asked; `None` if the policy decides without counting.
    fn portion_at(&self, place: usize) -> Option<Portion> {
        match self.policy_at(place) {
            Source::FallbackLocal => Some(Portion::Share),
            // Leases are not hits, and are not charged: they live here until they end.
            Source::OverloadOpen => Some(Portion::Whole),
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
                Source::OverloadLocal => self.ask_again(place),
                _ => None,
            };
            if let Some(refusal) = refusal {
                self.outcomes[place] = refusal;
                refused = true;
            }
        }
        refused
    }

    fn known_too_little(&self, place: usize, now: Timestamp) -> Option<Outcome> {
        let cell = &self.cells.cached[place];
        let left = self.limiter.deny_cache.left(cell, now)?;
        let too_little = cell.stance == Stance::Enforced && left.remaining < cell.hits.get().max(1);
        // The whole quota is back by then at the latest.
        let verdict = Verdict::Refused { retry_after: Some(left.reset_after) };
        too_little.then_some(Outcome { verdict, ..left })
    }

    fn ask_again(&self, place: usize) -> Option<Outcome> {
        (self.cells.spends[place].touch.stance == Stance::Enforced).then_some(ASK_AGAIN)
    }

    /// The policy for a cell whose store cannot be asked.
    fn policy_at(&self, place: usize) -> Source {
        let failed = self.cause == Cause::Failure;
        match self.cells.policies[place].on_store_failure {
            OnStoreFailure::Closed if self.cells.spends[place].touch.stance == Stance::Enforced => {
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

/// How a local rule refuses if the store could not be asked in time: retry soon.
const ASK_AGAIN: Outcome = Outcome {
    verdict: Verdict::Refused { retry_after: Some(Micros::from_millis(100)) },
    remaining: 0,
    reset_after: Micros::from_millis(100),
};

/// How a closed rule refuses: the retry time is unknown.
const UNAVAILABLE: Outcome =
    Outcome { verdict: Verdict::Refused { retry_after: None }, remaining: 0, reset_after: Micros::ZERO };
