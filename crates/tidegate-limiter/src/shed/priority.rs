//! How critical rules say a request is, and whether it may come in at all: asked before anything is spent.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_rules::{Descriptor, Limits, Matches, OnMissingKey, Priority};
use tidegate_store::Clock;

use super::shedder::{Place, Shed, Shedder};
use crate::limiter::Limiter;
use crate::request::CheckRequest;

impl Limiter {
    /// The most critical priority among the rules that match a request, if any of them states one. Nothing is spent, no
    /// store is asked, and nobody is told of a domain that no rule speaks of: the check that follows will.
    #[must_use]
    pub fn priority(&self, request: &CheckRequest<'_>) -> Option<Priority> {
        let snapshot = self.shared.snapshot.load();
        let descriptors: SmallVec<[Descriptor<'_>; 2]> =
            request.descriptors.iter().map(|ask| ask.descriptor).collect();
        let mut matches = Matches::new();
        let now = self.shared.clock.now();
        snapshot.rules().matches(request.domain, &descriptors, now, &mut matches).ok()?;
        // A rule that is skipped because its key is missing does not speak of this request.
        let speaks =
            matches.iter().filter(|found| !matches!(found.limits, Limits::KeyMissing(OnMissingKey::Skip)));
        speaks.filter_map(|found| found.rule.priority()).min()
    }

    /// Lets a request in past `shedder`, or turns it away: by the priority that rules give it, or by its class where they
    /// give it none. To be asked before [`check`](Limiter::check): what is shed spends nothing.
    ///
    /// # Errors
    /// When it is shed.
    pub fn admit(&self, request: &CheckRequest<'_>, shedder: &Arc<Shedder>) -> Result<Place, Shed> {
        let by_attributes = || {
            let classes = request.descriptors.iter().map(|ask| shedder.class_of(ask.descriptor.entries));
            classes.min().unwrap_or(Priority::P2)
        };
        let priority = self.priority(request).unwrap_or_else(by_attributes);
        shedder.enter(priority).inspect_err(|shed| self.shared.observer.shed(shed.priority))
    }
}
