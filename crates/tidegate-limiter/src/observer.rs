//! The receivers of decisions: metrics, logs, top offenders. The limiter knows none of them.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_rules::{Match, Priority, Rule, RuleSet};
use tidegate_store::StoreError;

use crate::decision::{Decision, Report};
use crate::lease::LeaseToken;
use crate::request::CheckRequest;
use crate::rule_watcher::{RequestResult, RuleHits, RuleResult, RuleWatcher};
use crate::snapshot::Watchers;
use crate::source::Source;
use crate::trace::{Traced, Transport};

/// Receives events of the limiter. An [`Arc`] of an observer is an observer too, for owners that query it later.
pub trait Observer: Send + Sync + 'static {
    /// Whether it wants to receive decisions now: asked for each. Without, a decision costs less, and none of
    /// [`Observer::request`], [`Observer::no_rule_matched`], [`Observer::looked`], [`Observer::decided`] and the rules' watchers is
    /// called for it, nor is [`Observer::decided_directly`].
    fn wants_decisions(&self) -> bool {
        true
    }

    /// Rules are about to come into use. [`RuleSet::warnings`] lists what compiles but may not be what was meant; nothing
    /// else reports it.
    fn rules_in_use(&self, _rules: &RuleSet) {}

    /// Called once per rule when a rule set comes into use, so that requests need no lookup. The returned watcher receives
    /// the rule's decisions; the default ignores them.
    fn watch_rule(&self, _rule: &Rule) -> Arc<dyn RuleWatcher> {
        Arc::new(NoObserver)
    }

    /// A request named a domain that has no rules.
    fn unknown_domain(&self) {}

    /// A request of a known domain was answered, or shed: called exactly once per request, whatever number of rules it
    /// matched, except for looks. A limit that came with the request has no domain: then `domain` is empty.
    fn request(&self, _domain: &str, _result: RequestResult, _source: Source) {}

    /// No rule matched a request.
    fn no_rule_matched(&self) {}

    /// A request only looked at what is left and spent nothing: neither watchers nor [`Observer::decided`] are called.
    fn looked(&self) {}

    /// Rules decided a request: called once per request, after the watchers of those rules. The borrowed data identifies the
    /// caller, so that a log or a list of top callers needs no lookup.
    fn decided(&self, _decided: &Decided<'_>) {}

    /// What is left of limits changed other than by a decision: a lease was released or renewed, hits were refunded.
    fn settled(&self, _settled: &Settled<'_>) {}

    /// A limit decided that no rule states: the caller supplied it.
    fn decided_directly(&self, _result: RuleResult, _source: Source) {}

    /// The store did not answer.
    fn store_failed(&self, _error: &StoreError) {}

    /// A store call over a network answered or failed after `took`. Memory calls are too frequent to report.
    fn store_called(&self, _call: StoreCall, _took: Micros) {}

    /// One store call carried this many requests, counted before folding.
    fn batch_sent(&self, _requests: usize) {}

    /// Requests could not wait for a store that answers others: failure policies decide, from what is known. Or
    /// ([`Overload::OwnLag`]) they waited past their deadline because this node did not run: then the store has decided.
    fn overloaded(&self, _why: Overload, _requests: usize) {}

    /// A store call ended after its requests had stopped waiting.
    fn late_call(&self, _end: LateCall) {}

    /// This node refused a request because the store refused it a moment ago.
    fn deny_cache_hit(&self) {}

    /// A request was shed: the backend is overloaded.
    fn shed(&self, _priority: Priority) {}

    /// A store node stopped answering, or answers again.
    fn breaker_changed(&self, _endpoint: &str, _state: BreakerState) {}

    /// A failure policy decided a request, at least in part, because the store did not answer.
    fn fell_back(&self, _source: Source) {}

    /// The store counts this many live limiters, this one included.
    fn fleet_counted(&self, _limiters: u64) {}

    /// The store stopped taking heartbeats: called once, until [`Observer::fleet_counted`] reports that it does again.
    fn heartbeat_lost(&self, _why: &str) {}

    /// Debts from while the store was unavailable were charged there: the count of cells and hits. With an error it is
    /// unknown whether they were; the charge is not retried.
    fn debts_paid(&self, _cells: usize, _hits: u64, _error: Option<&StoreError>) {}

    /// A transport answered a request `took` after receiving all of it. Called by transports, not by the limiter.
    fn answered(&self, _transport: Transport, _took: Duration) {}

    /// A transport answered `requests` at once, each `took` after receiving all of them.
    fn answered_together(&self, transport: Transport, took: Duration, requests: u64) {
        (0..requests).for_each(|_| self.answered(transport, took));
    }

    /// A transport answered a request of a sampled trace: called in addition to [`Observer::answered`].
    fn traced(&self, _request: &Traced<'_>) {}
}

/// Tells `observer` of rules that are about to come into use, and asks for their watchers.
pub(crate) fn watch_rules(observer: &dyn Observer, rules: &RuleSet) -> Watchers {
    observer.rules_in_use(rules);
    rules.rules().map(|rule| observer.watch_rule(rule)).collect()
}

/// A request, the rules it matched, and the decision.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Decided<'a> {
    /// The request.
    pub request: &'a CheckRequest<'a>,
    /// The rules it matched, each with the caller's key.
    pub matches: &'a [Match<'a>],
    /// The decision.
    pub decision: &'a Decision,
    /// Whether its descriptors are readings of one request ([`CheckRequest::readings`](crate::CheckRequest::readings)).
    pub of_readings: bool,
}

impl Decided<'_> {
    /// Whether the request only looked: it had no cost and took no lease.
    #[must_use]
    #[inline]
    pub fn is_look(&self) -> bool {
        self.decision.lease.is_none() && self.request.descriptors.iter().all(|ask| ask.cost == Hits::ZERO)
    }
}

/// A change to what is left of limits, other than by a decision. Only changes that took effect are reported.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Settled<'a> {
    /// What changed.
    pub how: Settlement<'a>,
    /// When it was requested, by this node's clock. It is done by now.
    pub asked_at: Timestamp,
    /// When the store did it, by its own clock; `None` if unknown.
    pub done_at: Option<Timestamp>,
    /// The matched rules whose cells changed; empty for leases, which name their own cells.
    pub matches: &'a [Match<'a>],
}

/// A change to what is left of limits, other than by a decision.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Settlement<'a> {
    /// All remaining leases of a request were released early.
    Released(&'a LeaseToken),
    /// One lease of a request was released; the others follow.
    ReleasedPart(&'a LeaseToken),
    /// The leases of a request were renewed, at least those before one that had ended.
    Renewed(&'a LeaseToken),
    /// Hits refunded to every cell of a request, except those of the listed limits, which had refilled already.
    Refunded(&'a CheckRequest<'a>, Hits, SpentBefore, &'a [String]),
    /// Hits charged to every cell of a request.
    Charged(&'a CheckRequest<'a>, Hits, SpentBefore),
    /// The cells of a request have their full quota back.
    Reset(&'a CheckRequest<'a>),
}

/// How long ago hits were spent; `None` if unknown.
pub type SpentBefore = Option<Micros>;

impl<'a> Decided<'a> {
    /// The result of each matched rule for this caller, and the report of its limit with the least left. Rules that were
    /// skipped because a ban decided are omitted.
    pub fn by_match(&self) -> impl Iterator<Item = (&'a Match<'a>, RuleResult, &'a Report)> {
        let (matches, reports) = (self.matches, &self.decision.reports);
        matches.iter().filter_map(move |found| {
            let own = |report: &&Report| {
                report.rule == Some(found.rule.index()) && report.descriptor == found.descriptor
            };
            let mut of_rule = reports.iter().filter(own);
            let first = of_rule.next()?;
            let graver = |(said, least): (RuleResult, &'a Report), report: &'a Report| {
                let result = said.or_graver(report.result());
                (result, if left(report) < left(least) { report } else { least })
            };
            let (result, least) = of_rule.fold((first.result(), first), graver);
            Some((found, result, least))
        })
    }
}

impl Decided<'_> {
    /// Reports to each matched rule's watcher how many hits were requested. This scans every report, so only an observer that
    /// counts hits calls it.
    pub fn count_hits(&self) {
        for (found, result, report) in self.by_match() {
            let Some(limit) = report.limit() else { continue };
            let hits = self.request.descriptors[found.descriptor].cost.get();
            let (used, near) = (limit.quota.saturating_sub(limit.outcome.remaining), near(limit.quota));
            let near = match report.is_refusal() {
                true => 0,
                false => used.saturating_sub(near.max(used.saturating_sub(hits))),
            };
            let watcher = self.decision.snapshot().watcher(found.rule);
            watcher.hits(&RuleHits::new(result, self.decision.source, hits, near));
        }
    }
}

/// The hits above which a limit is near: four fifths, rounded down, as in envoyproxy/ratelimit.
fn near(quota: u64) -> u64 {
    u64::try_from(u128::from(quota) * 4 / 5).unwrap_or(u64::MAX)
}

/// The order of a rule's reports: refusals first, then the least left.
fn left(report: &Report) -> (bool, u64) {
    (!report.is_refusal(), report.limit().map_or(u64::MAX, |limit| limit.outcome.remaining))
}

/// Why a request could not wait for a store that answers others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overload {
    /// The queue is full.
    QueueFull,
    /// Its deadline passed, or would have passed before an answer.
    Deadline,
    /// It was answered late: this node was too busy to receive the answer in time.
    OwnLag,
}

impl Overload {
    /// All variants, for per-variant metrics.
    pub const ALL: [Overload; 3] = [Overload::QueueFull, Overload::Deadline, Overload::OwnLag];

    /// The name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Overload::QueueFull => "queue_full",
            Overload::Deadline => "deadline",
            Overload::OwnLag => "own_lag",
        }
    }
}

/// The end of a call after its requests had stopped waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateCall {
    /// The store answered. What it spent for requests that were decided without it is refunded.
    Answered {
        /// The count of those requests.
        given_back: u64,
    },
    /// The store did not answer, or too many calls were late: what the call may have spent stays spent.
    Lost,
}

/// The kind of a store call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreCall {
    /// Decide requests.
    Decide,
    /// Refund hits.
    Refund,
    /// Charge hits that were spent elsewhere.
    Charge,
    /// Reset cells.
    Reset,
    /// Renew leases.
    Renew,
    /// Release leases.
    Release,
    /// Heartbeat: count the live limiters.
    Heartbeat,
    /// Probe whether it answers again.
    Probe,
    /// Store records: the answers to named requests.
    Record,
}

impl StoreCall {
    /// All variants, for per-variant metrics.
    pub const ALL: [StoreCall; 9] = [
        StoreCall::Decide,
        StoreCall::Refund,
        StoreCall::Charge,
        StoreCall::Reset,
        StoreCall::Renew,
        StoreCall::Release,
        StoreCall::Heartbeat,
        StoreCall::Probe,
        StoreCall::Record,
    ];

    /// The name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StoreCall::Decide => "decide",
            StoreCall::Refund => "refund",
            StoreCall::Charge => "charge",
            StoreCall::Reset => "reset",
            StoreCall::Renew => "renew",
            StoreCall::Release => "release",
            StoreCall::Heartbeat => "heartbeat",
            StoreCall::Probe => "probe",
            StoreCall::Record => "record",
        }
    }
}

/// What a breaker lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Everything: the node answers.
    Closed,
    /// Nothing: the node does not answer.
    Open,
    /// One request, as a trial.
    HalfOpen,
}

impl BreakerState {
    /// The name in metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::HalfOpen => "half_open",
        }
    }
}

/// Ignores every event.
#[derive(Clone, Copy, Debug)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn wants_decisions(&self) -> bool {
        false
    }
}

impl RuleWatcher for NoObserver {
    fn decided(&self, _result: RuleResult, _source: Source) {}
}
