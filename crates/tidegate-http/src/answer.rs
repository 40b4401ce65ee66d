//! Answers to callers on every HTTP surface: status, headers, and the reason of a refusal.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tidegate_core::{Micros, Timestamp};
use tidegate_limiter::{Decision, LimitReport, Report, ReportKind, Shed, TraceContext, Traced, Transport};
use tidegate_rules::{Mode, Rule};

use crate::headers::{HeaderSets, Reported, write_retry_after};
use crate::problem::{Kind, Problem};

/// The name of a limit that came with the request: it has no rule.
pub const OVERRIDE: &str = "override";

/// 200, 429, or 503 if a rule that must not decide without its store refused for that reason.
#[must_use]
pub fn status(decision: &Decision) -> StatusCode {
    refusal_kind(decision).map_or(StatusCode::OK, Kind::status)
}

/// The kind of refusal, if the decision is one.
#[must_use]
pub fn refusal_kind(decision: &Decision) -> Option<Kind> {
    match decision.allowed {
        true => None,
        false if decision.source.is_unavailable() => Some(Kind::StoreUnavailable),
        false => Some(Kind::QuotaExceeded),
    }
}

/// When to retry after a refusal for lack of a store: about as often as a node checks whether its store is back.
const WITHOUT_STORE: Micros = Micros::from_secs(1);

/// When a refused request may be retried; `None` if waiting does not help.
#[must_use]
pub fn retry_after(decision: &Decision) -> Option<Micros> {
    match refusal_kind(decision)? {
        Kind::StoreUnavailable => Some(WITHOUT_STORE),
        _ => decision.governing()?.retry_after(),
    }
}

/// The reason of a refusal, in a sentence.
#[must_use]
pub fn message(decision: &Decision) -> Cow<'static, str> {
    match refusal_kind(decision) {
        Some(Kind::StoreUnavailable) => "the store of this limit does not answer".into(),
        _ => detail(decision).into(),
    }
}

/// Appends the headers of `sets`, and `Retry-After` to a refusal. `asked_at` is from before the decision: with a later time,
/// the reported second in which a window ends would vary by one.
pub fn write_headers(decision: &Decision, sets: HeaderSets, asked_at: Timestamp, headers: &mut HeaderMap) {
    if let Some((report, limit)) = governing_limit(decision) {
        let since_epoch = Duration::from(asked_at.since(Timestamp::default()));
        reported(decision, report, limit).write(sets, since_epoch, headers);
    }
    if let Some(retry_after) = retry_after(decision) {
        write_retry_after(retry_after.into(), headers);
    }
}

/// The problem document of a refusal, with every violated policy.
#[must_use]
pub fn refusal(decision: &Decision) -> Problem {
    if refusal_kind(decision) == Some(Kind::StoreUnavailable) {
        return Problem::new(Kind::StoreUnavailable, message(decision)).hint("try again in a moment");
    }
    let refusing =
        decision.reports().iter().filter(|report| report.mode != Mode::Shadow && report.is_refusal());
    let mut violated: Vec<String> = Vec::new();
    for report in refusing {
        let name = rule_name(decision, report);
        if !violated.iter().any(|known| known == name) {
            violated.push(name.to_owned());
        }
    }
    let mut problem = Problem::new(Kind::QuotaExceeded, detail(decision));
    problem.violated_policies = violated;
    problem
}

/// The problem document of a shed request, and the headers that say when to retry.
#[must_use]
pub fn shed(shed: &Shed) -> (Problem, HeaderMap) {
    let mut headers = HeaderMap::with_capacity(1);
    write_retry_after(shed.retry_after.into(), &mut headers);
    let hint = "it spent nothing: try again later, and at longer and longer intervals";
    (Problem::new(Kind::Shed, shed.to_string()).hint(hint), headers)
}

fn detail(decision: &Decision) -> String {
    match governing_limit(decision) {
        Some((_, limit)) => match (limit.outcome.retry_after(), limit.window) {
            (None, _) => {
                format!("this request asks for more than the {} that the limit ever admits", limit.quota)
            }
            (Some(_), Some(window)) => format!("the limit of {} per {window} is used up", limit.quota),
            (Some(_), None) => format!("the limit of {} is used up", limit.quota),
        },
        None if decision
            .governing()
            .is_some_and(|report| matches!(report.kind, ReportKind::Banned { .. })) =>
        {
            "this caller is banned".to_owned()
        }
        None => "the request lacks what the limit counts by".to_owned(),
    }
}

/// The limit whose numbers the caller receives, if there is one.
#[must_use]
pub fn governing_limit(decision: &Decision) -> Option<(&Report, &LimitReport)> {
    decision.governing().and_then(|report| Some((report, report.limit()?)))
}

/// A rule's name for callers.
#[must_use]
pub fn rule_name<'d>(decision: &'d Decision, report: &Report) -> &'d str {
    decision.rule_of(report).map_or(OVERRIDE, Rule::name)
}

/// The trace of a decision: without the caller's identity.
#[must_use]
pub fn traced<'d>(
    context: TraceContext,
    transport: Transport,
    time: (Timestamp, Duration),
    domain: &'d str,
    decision: &'d Decision,
) -> Traced<'d> {
    let mut traced = Traced::new(context, transport, time, domain, decision.allowed);
    traced.rule = decision.governing().map(|report| rule_name(decision, report));
    traced.source = Some(decision.source);
    traced
}

fn reported<'d>(decision: &'d Decision, report: &Report, limit: &LimitReport) -> Reported<'d> {
    Reported {
        policy: rule_name(decision, report),
        limit: limit.quota,
        remaining: limit.outcome.remaining,
        window: limit.window.map(Duration::from),
        reset_after: limit.outcome.reset_after.into(),
    }
}
