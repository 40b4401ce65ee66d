//! Limits that no rule states: the caller supplies the cells and the limits (`CL.THROTTLE`).
//!
//! There is nothing to match and nothing to report by rule. What remains is the local layer, the store, and this node's
//! memory if the store fails.

use std::future::Future;
use std::pin::Pin;

use tidegate_store::{Outcomes, Reply, Request};

use super::classify::Cells;
use super::fallback::without_the_store;
use super::pending::{Answers, decide_together};
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
        let cells = |request: &'a Request<'a>| Cells::of_a_caller(&self.hasher, request.spends);
        if let Some(remote) = &self.remote {
            let decided = decide_together(self, remote, batch.iter().map(cells));
            return Direct::Later(Box::pin(async move { self.direct_answer(decided.await) }));
        }
        match self.store.decide(batch) {
            // The common case, with as few moves as possible.
            Reply::Now(Ok(decided)) => {
                self.tell_direct(&decided, Source::Store);
                Direct::Now(decided.outcomes, Source::Store)
            }
            reply => Direct::Later(Box::pin(async move {
                match reply.answer().await {
                    Ok(decided) => {
                        self.tell_direct(&decided, Source::Store);
                        (decided.outcomes, Source::Store)
                    }
                    Err(error) => {
                        self.observer.store_failed(&error);
                        self.direct_answer(
                            batch.iter().map(cells).map(|cells| without_the_store(self, cells)).collect(),
                        )
                    }
                }
            })),
        }
    }

    /// All outcomes, and the source with the weakest guarantee.
    fn direct_answer(&self, answers: Answers) -> (Outcomes, Source) {
        let (mut outcomes, mut source) = (Outcomes::new(), Source::None);
        for answer in answers {
            self.tell_direct(&answer.outcomes, answer.source);
            outcomes.extend(answer.outcomes);
            source = source.precedence(answer.source);
        }
        (outcomes, source)
    }

    fn tell_direct(&self, outcomes: &Outcomes, source: Source) {
        if !self.observer.wants_decisions() {
            return;
        }
        for outcome in outcomes {
            let result = if outcome.is_admitted() { RuleResult::Allowed } else { RuleResult::Refused };
            self.observer.request("", RequestResult::of(outcome.is_admitted()), source);
            self.observer.decided_directly(result, source);
        }
    }
}
