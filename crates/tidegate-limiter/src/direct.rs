//! Limits that no rule states: the caller names the cells and the limits itself (`CL.THROTTLE`).
//!
//! There is nothing to match and nothing to report by rule. What is left of the way is the store, and this node's memory
//! where the store fails.

use std::future::Future;
use std::pin::Pin;

use tidegate_store::{Outcomes, Reply, Request, Store, StoreError};

use crate::decision::Source;
use crate::limiter::Limiter;
use crate::observer::RuleResult;

/// What a batch of direct requests was answered: there already, or to be waited for.
pub enum Direct<'a> {
    /// Here it is: one outcome per spend, in order, and who answered.
    Now(Outcomes, Source),
    /// It will come.
    Later(Pin<Box<dyn Future<Output = (Outcomes, Source)> + Send + 'a>>),
}

impl Direct<'_> {
    /// The answer, waited for where it has yet to come.
    pub async fn answer(self) -> (Outcomes, Source) {
        match self {
            Direct::Now(outcomes, source) => (outcomes, source),
            Direct::Later(answer) => answer.await,
        }
    }
}

impl std::fmt::Debug for Direct<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Direct::Now(..) => "Direct::Now",
            Direct::Later(_) => "Direct::Later",
        })
    }
}

impl Limiter {
    /// Decides requests whose cells and limits are the caller's own, in order, in one call to the store. Where that fails,
    /// this node decides alone.
    ///
    /// The scopes of their cells must not be those of a rule.
    pub fn decide_direct<'a>(&'a self, batch: &'a [Request<'a>]) -> Direct<'a> {
        match self.store.decide(batch) {
            Reply::Now(answer) => {
                let (outcomes, source) = self.direct_or_local(batch, answer);
                Direct::Now(outcomes, source)
            }
            Reply::Later(answer) => {
                Direct::Later(Box::pin(async move { self.direct_or_local(batch, answer.await) }))
            }
        }
    }

    fn direct_or_local(
        &self,
        batch: &[Request<'_>],
        answer: Result<Outcomes, StoreError>,
    ) -> (Outcomes, Source) {
        let (outcomes, source) = match answer {
            Ok(outcomes) => (outcomes, Source::Store),
            Err(error) => {
                self.observer.store_failed(&error);
                (self.decide_locally(batch), Source::FallbackLocal)
            }
        };
        for outcome in &outcomes {
            let result = if outcome.is_admitted() { RuleResult::Allowed } else { RuleResult::Refused };
            self.observer.decided_directly(result, source);
        }
        (outcomes, source)
    }

    fn decide_locally(&self, batch: &[Request<'_>]) -> Outcomes {
        match self.fallback.decide(batch) {
            Reply::Now(Ok(outcomes)) => outcomes,
            Reply::Now(Err(_)) | Reply::Later(_) => unreachable!("memory answers at once"),
        }
    }
}
