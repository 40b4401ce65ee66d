//! Whether to admit a request at all: decided after its rules are known, which may give it a priority, and before anything is
//! spent.

use std::sync::Arc;

use tidegate_rules::{Priority, UnknownDomain};
use tidegate_shed::{Permit, Shed, Shedder};

use super::matched::Matched;
use crate::decision::Decision;
use crate::limiter::Limiter;
use crate::request::CheckRequest;
use crate::rule_watcher::RequestResult;
use crate::source::Source;

impl Limiter {
    /// Sheds a request, or admits it past `shedder` and decides it: by the most critical priority that its rules give it, or
    /// by its class if they give none. A shed request spends nothing. Rules are matched once for both.
    ///
    /// # Errors
    /// When it is shed.
    pub async fn admit_and_check(
        &self,
        request: &CheckRequest<'_>,
        shedder: &Arc<Shedder>,
    ) -> Result<(Permit, Result<Decision, UnknownDomain>), Shed> {
        let snapshot = self.rules.load();
        let mut matched = Matched::new();
        let found = matched.find(&snapshot, request, self);
        let priority = matched.priority().unwrap_or_else(|| class_of(request, shedder));
        let permit = shedder.enter(priority).inspect_err(|shed| {
            self.observer.shed(shed.priority);
            if found.is_ok() {
                self.observer.request(request.domain, RequestResult::Shed, Source::None);
            }
        })?;
        let decided = match found {
            Ok(()) => {
                let mut decision = Decision::not_yet(&snapshot, matched.asked_at);
                self.decide(&matched, request, &mut decision).await;
                Ok(decision)
            }
            Err(unknown) => Err(unknown),
        };
        Ok((permit, decided))
    }
}

/// The class of a request whose rules state no priority.
fn class_of(request: &CheckRequest<'_>, shedder: &Shedder) -> Priority {
    let classes = request.descriptors.iter().map(|ask| shedder.class_of(ask.descriptor.entries));
    classes.min().unwrap_or(Priority::P2)
}
