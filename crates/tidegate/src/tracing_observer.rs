//! Logs with `tracing` what happens between a limiter and its store: a line per change, never one per request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate_limiter::{BreakerState, Observer, Overload, RuleResult, RuleWatcher, Source};
use tidegate_rules::{Diagnostic, Diagnostics, Rule, RuleSet};
use tidegate_store::StoreError;

/// Logs what an operator must know: rule warnings, that a store stopped answering and answers again, that requests were
/// decided without it, how many limiters share it. Single decisions are events of the level TRACE.
///
/// ```
/// let setup = tidegate::Setup::new("{ domain: api, rules: [{ name: all, limits: [10/s] }] }")
///     .observer(tidegate::TracingObserver::new());
/// # drop(setup);
/// ```
#[derive(Debug, Default)]
pub struct TracingObserver {
    /// The last number of limiters that was logged.
    fleet: AtomicU64,
    /// Whether it was logged, since the store last took a heartbeat, that requests are decided without it.
    fell_back: AtomicBool,
    overloaded: AtomicBool,
}

impl TracingObserver {
    /// Creates an observer.
    #[must_use]
    pub fn new() -> Self {
        TracingObserver::default()
    }
}

impl Observer for TracingObserver {
    fn wants_decisions(&self) -> bool {
        tracing::enabled!(tracing::Level::TRACE)
    }

    fn rules_in_use(&self, rules: &RuleSet) {
        for warning in rules.warnings().into_iter().flat_map(Diagnostics::iter) {
            let Diagnostic { file, line, hint, message, .. } = warning;
            tracing::warn!(file, line, hint, "rule warning: {message}");
        }
    }

    fn watch_rule(&self, rule: &Rule) -> Arc<dyn RuleWatcher> {
        Arc::new(TracedRule { domain: rule.domain().to_owned(), rule: rule.name().to_owned() })
    }

    fn unknown_domain(&self) {
        tracing::debug!("unknown domain in a check");
    }

    fn store_failed(&self, error: &StoreError) {
        tracing::debug!(%error, "the store did not answer");
    }

    fn overloaded(&self, why: Overload, requests: usize) {
        if !self.overloaded.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                why = why.name(),
                requests,
                "the store is overloaded: requests do not get their answers in time"
            );
        }
    }

    fn breaker_changed(&self, node: &str, state: BreakerState) {
        match state {
            BreakerState::Open => {
                tracing::warn!(node, "the store does not answer: rules decide by their failure policy");
            }
            BreakerState::HalfOpen => tracing::debug!(node, "sending one trial request to the store"),
            BreakerState::Closed => tracing::info!(node, "the store answers again"),
        }
    }

    fn fell_back(&self, source: Source) {
        if !self.fell_back.swap(true, Ordering::Relaxed) {
            tracing::warn!(source = source.name(), "requests are decided without the store");
        }
    }

    fn fleet_counted(&self, limiters: u64) {
        self.fell_back.store(false, Ordering::Relaxed);
        self.overloaded.store(false, Ordering::Relaxed);
        if self.fleet.swap(limiters, Ordering::Relaxed) != limiters {
            tracing::info!(limiters, "limiters that share the store");
        }
    }

    fn heartbeat_lost(&self, why: &str) {
        self.fleet.store(0, Ordering::Relaxed);
        tracing::warn!(
            why,
            "the store does not accept heartbeats: the number of limiters that share it is unknown"
        );
    }

    fn debts_paid(&self, cells: usize, hits: u64, error: Option<&StoreError>) {
        match error {
            None => {
                tracing::info!(
                    cells,
                    hits,
                    "the hits that were spent locally while the store was unavailable are now charged to it"
                )
            }
            Some(error) => {
                tracing::warn!(cells, hits, %error, "hits that were spent locally while the store was unavailable may not be charged to it");
            }
        }
    }
}

struct TracedRule {
    domain: String,
    rule: String,
}

impl RuleWatcher for TracedRule {
    fn decided(&self, result: RuleResult, source: Source) {
        let (result, source) = (result.name(), source.name());
        tracing::trace!(domain = self.domain, rule = self.rule, result, source, "decided");
    }
}
