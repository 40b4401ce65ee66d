//! What every transport shares: the limiter, a clock, and how answers are dressed.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Micros, Timestamp};
use tidegate_limiter::{Decision, LimitReport, Limiter, Observer, Report, Source, Transport};
use tidegate_rules::Rule;
use tidegate_store::Clock;

use crate::connection::HttpLimits;
use crate::headers::{HeaderSet, HeaderSets, Reported, write_retry_after};

/// What every transport shares; one per process.
pub struct Service {
    /// Decides.
    pub limiter: Arc<Limiter>,
    /// Hears how long answers took.
    pub observer: Arc<dyn Observer>,
    /// For `X-RateLimit-Reset`, for how long answers took, and for how long named requests are remembered.
    pub clock: Arc<dyn Clock>,
    /// How answers look, and what a connection may take.
    pub settings: ServiceSettings,
}

/// How answers look, and what a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct ServiceSettings {
    /// The header sets of HTTP answers.
    pub headers: HeaderSets,
    /// The header set that Envoy is asked to add to its responses, if any.
    pub rls_headers: Option<HeaderSet>,
    /// Bounds of every connection.
    pub limits: HttpLimits,
}

impl Default for ServiceSettings {
    fn default() -> Self {
        Self { headers: HeaderSets::ALL, rls_headers: None, limits: HttpLimits::default() }
    }
}

impl Service {
    /// Tells the observer how long a request took that was there, whole, at `began`.
    pub(crate) fn answered(&self, transport: Transport, began: Timestamp) {
        let took = self.clock.now().since(began);
        self.observer.answered(transport, Duration::from_micros(took.get()));
    }

    /// Appends the headers of `sets`, and `Retry-After` to a refusal. `asked_at` is from before the decision: with a later
    /// time, the second in which a window ends would be told now as that one and now as the next.
    pub(crate) fn write_headers(
        &self,
        decision: &Decision,
        sets: HeaderSets,
        asked_at: Timestamp,
        headers: &mut http::HeaderMap,
    ) {
        let Some((report, limit)) = governing_limit(decision) else { return };
        reported(decision, report, limit).write(sets, span(since_epoch(asked_at)), headers);
        if let Some(retry_after) = limit.outcome.retry_after().filter(|_| !decision.allowed) {
            write_retry_after(span(retry_after), headers);
        }
    }
}

/// The report whose numbers a caller is told, if a limit has any.
pub(crate) fn governing_limit(decision: &Decision) -> Option<(&Report, &LimitReport)> {
    decision.governing().and_then(|report| Some((report, report.limit()?)))
}

/// The name that a caller knows a rule by.
pub(crate) fn rule_name<'d>(decision: &'d Decision, report: &Report) -> &'d str {
    decision.rule_of(report).map_or(OVERRIDE, Rule::name)
}

/// What a limit is called that the caller brought along: it has no rule.
pub(crate) const OVERRIDE: &str = "override";

/// Whether a rule that must not decide without its store refused for that reason.
pub(crate) fn is_unavailable(decision: &Decision) -> bool {
    decision.source == Source::FallbackClosed
}

pub(crate) fn span(micros: Micros) -> Duration {
    Duration::from_micros(micros.get())
}

fn since_epoch(now: Timestamp) -> Micros {
    now.since(Timestamp::default())
}

fn reported<'d>(decision: &'d Decision, report: &Report, limit: &LimitReport) -> Reported<'d> {
    Reported {
        policy: rule_name(decision, report),
        limit: limit.quota,
        remaining: limit.outcome.remaining,
        window: limit.window.map(span),
        reset_after: span(limit.outcome.reset_after),
    }
}
