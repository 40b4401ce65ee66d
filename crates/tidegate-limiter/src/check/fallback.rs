//! What is answered when the store does not: each rule's own policy.
//!
//! A closed rule refuses the whole request; otherwise open rules let it pass and local ones decide on this node, with its
//! share of the limit. Rules on trial refuse nothing here either.

use smallvec::SmallVec;
use tidegate_core::{Micros, Outcome, Stance, Timestamp, Verdict};
use tidegate_rules::OnStoreFailure;
use tidegate_store::Clock;

use super::classify::{CellPolicy, Cells};
use super::pending::{Answer, PendingCheck, Refused};
use crate::decision::Source;
use crate::limiter::Limiter;
use crate::local::{LocalHold, LocalReason, LocalSpend};

/// Decides a request none of whose cells can be asked.
pub(crate) fn without_the_store<'p>(
    limiter: &'p Limiter,
    spends: &'p [tidegate_store::Spend<'p>],
    policies: impl Iterator<Item = CellPolicy>,
) -> Answer {
    let mut pending = PendingCheck::new(limiter, Cells::new(&limiter.hasher, spends, 0, policies));
    pending.store = (0..spends.len()).collect();
    pending.without_store()
}

impl<'p> PendingCheck<'p> {
    /// The store did not answer for the cells that it was asked.
    pub(super) fn without_store(&mut self) -> Answer {
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

    /// Spends from cells of this node, and from those whose store is `away` as their rules want it.
    pub(super) fn hold(
        &mut self,
        mut local: SmallVec<[LocalSpend<'p>; 2]>,
        away: &[usize],
        now: Timestamp,
    ) -> Result<LocalHold<'p, 'p>, Refused> {
        let Limiter { deny_cache, local: cells, observer, .. } = self.limiter;
        if self.outcomes.is_empty() {
            // Until somebody decides, each cell says what it said last.
            self.outcomes = self.cells.cached.iter().map(|cell| deny_cache.last_seen(cell, now)).collect();
        }
        if let Some(source) = away.iter().map(|place| self.policy_at(*place)).reduce(Source::or_weaker) {
            self.source = self.source.or_weaker(source);
            observer.fell_back(source);
        }
        if self.refuse_closed(away) {
            cells.put_back(&local);
            return Err(Refused);
        }
        for &place in away.iter().filter(|place| self.policy_at(**place) == Source::FallbackLocal) {
            let last_seen = deny_cache.left(&self.cells.cached[place], now).map(|outcome| outcome.remaining);
            local.push(self.local_spend(place, LocalReason::StoreUnavailable { last_seen }));
        }
        let held = cells.hold(&local);
        for (place, outcome) in held.outcomes() {
            self.outcomes[place] = outcome;
        }
        if held.passes() { Ok(held) } else { Err(Refused) }
    }

    /// Whether a closed rule refuses because its store is away.
    fn refuse_closed(&mut self, away: &[usize]) -> bool {
        let mut refused = false;
        for &place in away {
            if self.policy_at(place) == Source::FallbackClosed {
                self.outcomes[place] = UNAVAILABLE;
                refused = true;
            }
        }
        refused
    }

    /// What decides for a cell whose store is away.
    fn policy_at(&self, place: usize) -> Source {
        match self.cells.policies[place].on_store_failure {
            OnStoreFailure::Closed if self.cells.spends[place].touch.stance == Stance::Enforced => {
                Source::FallbackClosed
            }
            OnStoreFailure::Closed | OnStoreFailure::Open => Source::FallbackOpen,
            OnStoreFailure::Local => Source::FallbackLocal,
        }
    }
}

/// How a closed rule refuses: until when is unknown.
const UNAVAILABLE: Outcome =
    Outcome { verdict: Verdict::Refused { retry_after: None }, remaining: 0, reset_after: Micros::ZERO };
