//! How critical rules say a request is.

use tidegate_rules::{Limits, OnMissingKey, Priority, UnknownDomain};

use crate::limiter::Limiter;
use crate::matched::Matched;
use crate::request::CheckRequest;

impl Limiter {
    /// The most critical priority among the rules that match a request, if any of them states one. Nothing is spent, and
    /// no store is asked: this is for those who shed load before they [`check`](Limiter::check).
    ///
    /// # Errors
    /// When no rule speaks of the domain.
    pub fn priority(&self, request: &CheckRequest<'_>) -> Result<Option<Priority>, UnknownDomain> {
        let snapshot = self.shared.snapshot.load();
        let mut matched = Matched::new();
        matched.find(&snapshot, request, &self.shared)?;
        let speaks = matched.matches().iter().filter(|found| {
            // A rule that is skipped because its key is missing does not speak of this request.
            !matches!(found.limits, Limits::KeyMissing(OnMissingKey::Skip))
        });
        Ok(speaks.filter_map(|found| found.rule.priority()).min())
    }
}
