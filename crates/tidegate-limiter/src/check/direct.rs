//! Limits that no rule states: the caller supplies the cells and the limits (`CL.THROTTLE`).
//!
//! There is nothing to match and nothing to report by rule. What remains is the local layer, the store, and this node's
//! memory if the store fails.

use std::future::Future;
use std::pin::Pin;

use tidegate_store::{BatchOutcomes, Outcomes, Reply, Request, StoreError};

use super::fallback::without_the_store;
use super::pending::{Begun, begin_direct, settle_together};
use crate::answer::Answer;
use crate::cell::CellPolicy;
use crate::limiter::Limiter;
use crate::rule_watcher::{RequestResult, RuleResult};
use crate::source::Source;

/// The answer to a batch of direct requests: ready, or pending.
pub enum Direct<'a> {
    /// Ready: one outcome per spend, in order, and their source.
    Now(Outcomes, Source),
    /// Pending.
    Later(Pin<Box<dyn Future<Output = (Outcomes, Source)> + Send + 'a>>),
}

impl Direct<'_> {
    /// The answer, awaited if pending.
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
    /// Decides requests whose cells and limits the caller supplies, in order, in one store call. If that fails, this node
    /// decides alone.
    ///
    /// The scopes of their cells must not be those of a rule.
    pub fn decide_direct<'a>(&'a self, batch: &'a [Request<'a>]) -> Direct<'a> {
        let Some(remote) = &self.remote else {
            return match self.store.decide(batch) {
                // The common case, with as few moves as possible.
                Reply::Now(Ok(told)) => {
                    self.tell_direct(&told, Source::Store);
                    Direct::Now(told.outcomes, Source::Store)
                }
                Reply::Now(answer) => {
                    let (outcomes, source) = self.direct_in_memory(batch, answer);
                    Direct::Now(outcomes, source)
                }
                Reply::Later(answer) => {
                    Direct::Later(Box::pin(async move { self.direct_in_memory(batch, answer.await) }))
                }
            };
        };
        let begun: Vec<Begun<'a>> =
            batch.iter().map(|request| begin_direct(self, remote, request.spends)).collect();
        if begun.iter().any(|begun| matches!(begun, Begun::AskStore(_))) {
            return Direct::Later(Box::pin(async move {
                self.direct_answer(settle_together(remote, begun).await.into_iter())
            }));
        }
        let decided = begun.into_iter().filter_map(|begun| match begun {
            Begun::Decided(answer) => Some(answer),
            Begun::AskStore(_) => None,
        });
        let (outcomes, source) = self.direct_answer(decided);
        Direct::Now(outcomes, source)
    }

    fn direct_in_memory(
        &self,
        batch: &[Request<'_>],
        answer: Result<BatchOutcomes, StoreError>,
    ) -> (Outcomes, Source) {
        match answer {
            Ok(told) => {
                self.tell_direct(&told, Source::Store);
                (told.outcomes, Source::Store)
            }
            Err(error) => {
                self.observer.store_failed(&error);
                let alone = |request: &Request<'_>| {
                    let policies = request.spends.iter().map(|_| CellPolicy::CALLER_LIMIT);
                    without_the_store(self, request.spends, policies)
                };
                self.direct_answer(batch.iter().map(alone))
            }
        }
    }

    /// All outcomes, and the source with the weakest guarantee.
    fn direct_answer(&self, answers: impl Iterator<Item = Answer>) -> (Outcomes, Source) {
        let (mut outcomes, mut source) = (Outcomes::new(), Source::None);
        for answer in answers {
            self.tell_direct(&answer.outcomes, answer.source);
            outcomes.extend(answer.outcomes);
            source = source.or_weaker(answer.source);
        }
        (outcomes, source)
    }

    fn tell_direct(&self, outcomes: &Outcomes, source: Source) {
        for outcome in outcomes {
            let result = if outcome.is_admitted() { RuleResult::Allowed } else { RuleResult::Refused };
            self.observer.request("", RequestResult::of(outcome.is_admitted()), source);
            self.observer.decided_directly(result, source);
        }
    }
}
