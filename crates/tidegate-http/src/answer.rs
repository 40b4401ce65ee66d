//! Answers to callers on every HTTP surface: status, headers, and the reason of a refusal.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use smallvec::SmallVec;
use tidegate_core::{Algorithm, Micros, Timestamp};
use tidegate_limiter::{
    Decision, LimitReport, OVERRIDE, Report, ReportKind, Shed, Source, TraceContext, Traced, Transport,
};
use tidegate_rules::{Mode, Policy as PolicyNumber, Rule};

use crate::headers::{HeaderSets, Partition, Policy, Reported, write_retry_after};
use crate::problem::{Kind, Problem};

/// The status of a refusal by a rule that must not decide without its store (`closed`), and has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClosedStatus {
    /// 503, the default: the caller may have quota, so the fault is not its own. Clients and gateways that try another server
    /// do so, and whoever watches errors sees an outage.
    #[default]
    ServiceUnavailable,
    /// 429, as if the limit were reached: for clients that slow down on nothing else.
    TooManyRequests,
}

impl ClosedStatus {
    /// The status.
    #[must_use]
    pub fn code(self) -> StatusCode {
        match self {
            Self::ServiceUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
        }
    }
}

/// 200, 429, or `closed` if a rule that must not decide without its store refused for that reason.
#[must_use]
pub fn status(decision: &Decision, closed: ClosedStatus) -> StatusCode {
    match refusal_kind(decision) {
        None => StatusCode::OK,
        Some(Kind::StoreUnavailable) => closed.code(),
        Some(kind) => kind.status(),
    }
}

/// The kind of refusal, if the decision is one.
#[must_use]
pub fn refusal_kind(decision: &Decision) -> Option<Kind> {
    match decision.allowed {
        true => None,
        false if decision.source.is_unavailable() => Some(Kind::StoreUnavailable),
        false if decision.reports().iter().any(is_ban) => Some(Kind::AbnormalUsage),
        false => Some(Kind::QuotaExceeded),
    }
}

/// Whether an enforced ban refused, whatever else matched.
fn is_ban(report: &Report) -> bool {
    report.mode != Mode::Shadow && matches!(report.kind, ReportKind::Banned { .. })
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
        _ if decision.is_refused_by_hidden() => "too many requests".into(),
        _ => detail(decision).into(),
    }
}

/// Whose quota each report of a decision is about; empty where nobody wants to know.
#[derive(Clone, Debug, Default)]
pub struct Partitions(SmallVec<[Option<Partition>; 2]>);

impl Partitions {
    /// Those of `decision`, if `sets` has them. `value_of` finds an attribute in the descriptor at an index of the request.
    pub fn of<'v>(
        decision: &Decision,
        sets: HeaderSets,
        value_of: impl Fn(usize, &str) -> Option<&'v [u8]>,
    ) -> Self {
        let Some(secret) = sets.partitions() else { return Partitions::default() };
        let of_report = |report: &Report| {
            let rule = decision.rule_of(report).filter(|rule| !rule.key().is_empty())?;
            let values: Option<SmallVec<[&[u8]; 4]>> =
                rule.key().iter().map(|name| value_of(report.descriptor, name)).collect();
            let names = [rule.domain().as_bytes(), rule.name().as_bytes()];
            Some(secret.partition(names.into_iter().chain(values?)))
        };
        Partitions(decision.reports().iter().map(of_report).collect())
    }

    fn at(&self, place: usize) -> Option<Partition> {
        self.0.get(place).copied().flatten()
    }
}

/// An attribute of a descriptor.
#[must_use]
pub fn value_in<'v>(entries: &[(&str, &'v [u8])], name: &str) -> Option<&'v [u8]> {
    entries.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

/// Adds the headers of `sets`, and `Retry-After` to a refusal. Headers that are there already are kept, or replaced by
/// stricter ones. `asked_at` is from before the decision: with a later time, the reported second in which a window ends would
/// vary by one.
pub fn write_headers(
    decision: &Decision,
    sets: HeaderSets,
    asked_at: Timestamp,
    partitions: &Partitions,
    headers: &mut HeaderMap,
) {
    let since_epoch = Duration::from(asked_at.since(Timestamp::default()));
    let reported =
        governing_limit(decision).map(|(report, limit)| reported(decision, report, limit, partitions));
    sets.write(policies(decision, partitions), reported.as_ref(), since_epoch, headers);
    if let Some(retry_after) = retry_after(decision) {
        write_retry_after(retry_after.into(), headers);
    }
}

/// Every limit that a request has to keep to and its caller may see, each once. Penalties are left out: they exist only while
/// they refuse, and this list does not change from answer to answer.
fn policies<'d>(decision: &'d Decision, partitions: &'d Partitions) -> impl Iterator<Item = Policy<'d>> {
    let limit_of = |report: &Report| {
        let limit = report.limit().copied().filter(|limit| limit.policy != PolicyNumber::PENALTY)?;
        decision.is_visible(report).then_some(limit)
    };
    let reports = decision.reports();
    let is_first = move |place: usize, limit: &LimitReport| {
        let is_same = |(at, earlier): (usize, &Report)| {
            earlier.rule == reports[place].rule
                && partitions.at(at) == partitions.at(place)
                && limit_of(earlier).is_some_and(|earlier| earlier.policy == limit.policy)
        };
        !reports[..place].iter().enumerate().any(is_same)
    };
    reports.iter().enumerate().filter_map(move |(place, report)| {
        let limit = limit_of(report).filter(|limit| is_first(place, limit))?;
        Some(policy(decision, report, &limit, partitions.at(place)))
    })
}

/// The problem document of a refusal, with every violated policy.
#[must_use]
pub fn refusal(decision: &Decision, closed: ClosedStatus) -> Problem {
    if refusal_kind(decision) == Some(Kind::StoreUnavailable) {
        return Problem::new(Kind::StoreUnavailable, message(decision))
            .with_status(closed.code())
            .hint("try again in a moment");
    }
    let mut violated: Vec<String> = Vec::new();
    for report in decision.reports().iter().filter(|one| one.is_refusal() && decision.is_visible(one)) {
        let name = match report.limit() {
            Some(limit) => decision.policy_name(report, limit),
            None if decision.rule_of(report).is_some_and(Rule::is_carrier) => continue,
            None => rule_name(decision, report).into(),
        };
        if !violated.iter().any(|known| **known == *name) {
            violated.push(name.into_owned());
        }
    }
    let mut problem = Problem::new(refusal_kind(decision).unwrap_or(Kind::QuotaExceeded), message(decision));
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
        _ if refusal_kind(decision) == Some(Kind::AbnormalUsage) => "this caller is banned".to_owned(),
        Some((_, limit)) => limit_detail(decision.source, limit),
        None => "the request lacks what the limit counts by".to_owned(),
    }
}

/// Why a limit refuses. Only what is known: a node that decides without its store does not know what others have spent.
fn limit_detail(source: Source, limit: &LimitReport) -> String {
    let (quota, left, cost) = (limit.quota, limit.outcome.remaining, limit.cost.get());
    let named = limit.window.map_or_else(|| quota.to_string(), |window| format!("{quota} per {window}"));
    if limit.outcome.retry_after().is_none() {
        return format!("this request asks for more than the {quota} that the limit ever admits");
    }
    match source {
        Source::OverloadLocal | Source::OverloadOpen => {
            return format!("too many requests at once: the limit of {named} could not be checked in time");
        }
        Source::FallbackLocal | Source::FallbackOpen => {
            return format!(
                "the store does not answer, and this node's share of the limit of {named} is used up"
            );
        }
        _ => {}
    }
    let algorithm = limit.algorithm;
    if algorithm == Algorithm::LeakyBucket {
        return match limit.window {
            Some(drains_in) => {
                format!("the queue of {quota}, which drains in {drains_in}, has no room for this request")
            }
            None => format!("the queue of {quota} has no room for this request"),
        };
    }
    if algorithm == Algorithm::Concurrency && left == 0 {
        format!("all {quota} places are taken")
    } else if algorithm == Algorithm::SlidingLog && left >= cost {
        format!("too soon after the last request: {left} of the limit of {named} are left")
    } else if left >= cost.max(1) {
        format!("the limit of {named} is held by other requests for a moment")
    } else if left > 0 {
        format!("this request costs {cost}, and {left} of the limit of {named} are left")
    } else {
        format!("the limit of {named} is used up")
    }
}

/// The limit whose numbers the caller receives, if there is one.
#[must_use]
pub fn governing_limit(decision: &Decision) -> Option<(&Report, &LimitReport)> {
    decision.reported().and_then(|report| Some((report, report.limit()?)))
}

/// The report that a body describes: none if a hidden rule refused.
#[must_use]
pub fn shown(decision: &Decision) -> Option<&Report> {
    if decision.is_refused_by_hidden() { None } else { decision.reported() }
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

fn policy<'d>(
    decision: &'d Decision,
    report: &Report,
    limit: &LimitReport,
    partition: Option<Partition>,
) -> Policy<'d> {
    Policy {
        partition,
        name: decision.policy_name(report, limit),
        quota: limit.quota,
        window: limit.window.map(Duration::from),
        algorithm: limit.algorithm,
        key: decision.rule_of(report).map_or(&[], Rule::key),
    }
}

fn reported<'d>(
    decision: &'d Decision,
    report: &Report,
    limit: &LimitReport,
    partitions: &Partitions,
) -> Reported<'d> {
    let place = decision.reports().iter().position(|one| one == report);
    Reported {
        policy: policy(decision, report, limit, place.and_then(|place| partitions.at(place))),
        remaining: limit.outcome.remaining,
        reset_after: limit.outcome.reset_after.into(),
        retry_after: retry_after(decision).map(Duration::from),
        cost: limit.cost.get(),
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use tidegate_core::Hits;
    use tidegate_limiter::{CheckRequest, DescriptorAsk, Limiter, LimiterConfig, NoObserver, Patience};
    use tidegate_rules::{Format, OverrideEffect, RuleSet, RuntimeOverride};
    use tidegate_store::{ManualClock, MemoryConfig, MemoryStore};

    use super::*;

    /// The answer to the last of these costs, at one moment.
    fn decide(limit: &str, costs: &[u64]) -> Decision {
        decide_by(rules(limit), costs)
    }

    fn rules(limit: &str) -> RuleSet {
        let text = format!("{{ domain: d, rules: [{{ name: r, limits: [{limit}] }}] }}");
        RuleSet::compile(&[tidegate_rules::Source::new("rules", text)], Format::Native).expect("rules")
    }

    fn decide_by(rules: RuleSet, costs: &[u64]) -> Decision {
        let store = MemoryStore::with_clock(MemoryConfig::default(), Arc::new(ManualClock::default()));
        let limiter = Limiter::new(LimiterConfig::new(rules, Arc::new(store), Arc::new(NoObserver)));
        let check = |cost: &u64| {
            let asks = [DescriptorAsk::one(&[("user", b"7")]).cost(Hits::new(*cost))];
            let request = CheckRequest::new("d", &asks).patience(Patience::Waits);
            let check = pin!(limiter.check(&request));
            match check.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(decision) => decision.expect("the rules have the domain"),
                Poll::Pending => panic!("memory answers at once"),
            }
        };
        costs.iter().map(check).reduce(|_, last| last).expect("something is asked")
    }

    #[track_caller]
    fn check(limit: &str, costs: &[u64], text: &str) {
        let decision = decide(limit, costs);
        assert_eq!((decision.allowed, message(&decision).as_ref()), (false, text));
    }

    #[test]
    fn a_refusal_says_what_is_so() {
        let log = "{ algorithm: sliding_log, limit: 100, window: 1m, min_interval: 1s }";
        check(log, &[1, 1], "too soon after the last request: 99 of the limit of 100 per 1m are left");
        check("3/minute", &[3, 1], "the limit of 3 per 1m is used up");
        check("3/minute", &[1, 3], "this request costs 3, and 2 of the limit of 3 per 1m are left");
        check("3/minute", &[4], "this request asks for more than the 3 that the limit ever admits");
        let leaky = "{ algorithm: leaky_bucket, rate: 2/s, max_delay: 1s }";
        check(leaky, &[1, 1, 1, 1], "the queue of 3, which drains in 1500ms, has no room for this request");
        check("{ algorithm: concurrency, limit: 2, ttl: 1m }", &[1, 1, 1], "all 2 places are taken");
    }

    #[test]
    fn a_refusal_without_the_store_does_not_say_that_the_caller_has_spent_all() {
        let decision = decide("3/minute", &[3, 1]);
        let limit = governing_limit(&decision).expect("a limit refused").1;
        assert_eq!(
            limit_detail(Source::OverloadLocal, limit),
            "too many requests at once: the limit of 3 per 1m could not be checked in time"
        );
        assert_eq!(
            limit_detail(Source::FallbackLocal, limit),
            "the store does not answer, and this node's share of the limit of 3 per 1m is used up"
        );
    }

    #[test]
    fn a_ban_is_the_problem_of_abnormal_usage_and_violates_the_rule_it_is_for() {
        let ban = RuntimeOverride {
            domain: "d".into(),
            rule: Some("r".into()),
            when: vec![("user".into(), "7".into())],
            effect: OverrideEffect::Ban,
            until: None,
        };
        let (rules, problems) = rules("3/minute").with_overrides(&[ban]);
        assert_eq!(problems, []);
        let problem = refusal(&decide_by(rules, &[1]), ClosedStatus::default());
        assert_eq!((problem.kind(), problem.status()), (Kind::AbnormalUsage, StatusCode::TOO_MANY_REQUESTS));
        assert_eq!(problem.violated_policies, ["r"]);
        assert_eq!(problem.detail, "this caller is banned");
    }

    #[test]
    fn a_refusal_names_the_policies_that_are_spent_and_no_others() {
        let problem = refusal(&decide("2/s, 5/minute", &[2, 1]), ClosedStatus::default());
        assert_eq!(problem.violated_policies, ["r/second"]);
    }
}
