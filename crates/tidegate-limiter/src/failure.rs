//! What is answered when the store does not: each rule's own policy.
//!
//! A closed rule refuses the whole request; otherwise open rules let it pass and local ones decide on this node, with its
//! share of the limit. Rules on trial refuse nothing here either.

use smallvec::SmallVec;
use tidegate_core::{Micros, Outcome, Stance, Timestamp, Verdict};
use tidegate_rules::OnStoreFailure;
use tidegate_store::Clock;

use crate::decision::Source;
use crate::layer::{Answer, Asking, Places, Refused, Terms, known_of};
use crate::own::{Own, Reserved, Why};
use crate::shared::Shared;

/// Decides a request none of whose cells can be asked.
pub(crate) fn without_the_store<'p>(
    shared: &'p Shared,
    spends: &'p [tidegate_store::Spend<'p>],
    terms: impl Iterator<Item = Terms>,
) -> Answer {
    let mut asking = Asking::new(shared, spends, known_of(shared, spends, 0), terms);
    asking.ask = (0..spends.len()).collect();
    asking.without_store()
}

impl<'p> Asking<'p> {
    /// The store did not answer for the cells that it was asked.
    pub(crate) fn without_store(&mut self) -> Answer {
        let now = self.shared.clock.now();
        let (reserved, away) = (self.reserved.take(), std::mem::take(&mut self.ask));
        match self.take(&[], &away, now) {
            Ok(also_reserved) => {
                also_reserved.keep();
                reserved.into_iter().for_each(Reserved::keep);
            }
            Err(Refused) => self.undo(reserved),
        }
        self.answer()
    }

    /// Spends from `own` cells, and from those whose store is `away` as their rules want it.
    pub(crate) fn take(
        &mut self,
        own: &[Own<'p>],
        away: &[usize],
        now: Timestamp,
    ) -> Result<Reserved<'p, 'p>, Refused> {
        let shared = self.shared;
        if self.outcomes.is_empty() {
            // Until somebody decides, each cell says what it said last.
            self.outcomes = shared.all_last_seen(&self.known);
        }
        if let Some(source) = away.iter().map(|place| self.policy_at(*place)).reduce(Source::or_weaker) {
            self.source = self.source.or_weaker(source);
            shared.observer.fell_back(source);
        }
        let closed: Places =
            away.iter().copied().filter(|place| self.policy_at(*place) == Source::FallbackClosed).collect();
        if !closed.is_empty() {
            closed.iter().for_each(|place| self.outcomes[*place] = UNAVAILABLE);
            // Nothing is spent, so what was taken out of a share goes back into it.
            drop(shared.own.reserve(own, shared.fleet.size()));
            return Err(Refused);
        }
        let local = |place: &&usize| self.terms[**place].on_store_failure == OnStoreFailure::Local;
        let mut all: SmallVec<[Own<'p>; 2]> = own.into();
        for place in away.iter().filter(local) {
            let known = &self.known[*place];
            let left = shared.recall.left(known.cell, known.limit, known.under, now);
            let last_seen = left.map(|outcome| outcome.remaining);
            all.push(self.own(*place, Why::StoreIsAway { last_seen }));
        }
        let reserved = shared.own.reserve(&all, shared.fleet.size());
        for (place, outcome) in reserved.outcomes() {
            self.outcomes[place] = outcome;
        }
        if reserved.passes() { Ok(reserved) } else { Err(Refused) }
    }

    /// What decides for a cell whose store is away.
    fn policy_at(&self, place: usize) -> Source {
        match self.terms[place].on_store_failure {
            OnStoreFailure::Closed if self.spends[place].touch.stance == Stance::Enforced => {
                Source::FallbackClosed
            }
            OnStoreFailure::Closed | OnStoreFailure::Open => Source::FallbackOpen,
            OnStoreFailure::Local => Source::FallbackLocal,
        }
    }
}

/// How a closed rule refuses: nobody knows until when.
const UNAVAILABLE: Outcome =
    Outcome { verdict: Verdict::Refused { retry_after: None }, remaining: 0, reset_after: Micros::ZERO };
