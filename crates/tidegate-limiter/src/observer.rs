//! Who hears of decisions: metrics, logs, top offenders. The limiter knows none of them.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_rules::{Match, Priority, Rule, RuleSet, Variant};
use tidegate_store::StoreError;

use crate::decision::{Decision, Report, Source};
use crate::lease::LeaseToken;
use crate::penalty::Penalty;
use crate::remote::breaker::BreakerState;
use crate::request::CheckRequest;
use crate::trace::Traced;

/// Hears what the limiter does. An [`Arc`] of one is one too, for who wants to ask it later what it has heard.
pub trait Observer: Send + Sync + 'static {
    /// Rules are about to come into use. What compiles and may not be what was meant is in [`RuleSet::warnings`], and nobody else
    /// tells of it.
    fn rules_in_use(&self, _rules: &RuleSet) {}

    /// Called once per rule when a rule set comes into use, so that nothing need be looked up per request. What it returns
    /// hears of the rule's decisions: nobody by default.
    fn watch_rule(&self, _rule: &Rule) -> Arc<dyn RuleWatcher> {
        Arc::new(NoObserver)
    }

    /// A request came for a domain that no rule speaks of.
    fn unknown_domain(&self) {}

    /// No rule matched a request.
    fn no_rule_matched(&self) {}

    /// Somebody looked at what is left and spent nothing: no request was decided, and neither watchers nor
    /// [`Observer::decided`] hear of it.
    fn looked(&self) {}

    /// A request was decided by its rules: called once per request, after the watchers of those rules. What is borrowed
    /// here names the caller, so that a log or a list of top callers need look nothing up.
    fn decided(&self, _decided: &Decided<'_>) {}

    /// What is left of limits has changed beside a decision: a lease was released or renewed, hits were given back.
    fn settled(&self, _settled: &Settled<'_>) {}

    /// A limit decided that no rule states: the caller brought it along.
    fn decided_directly(&self, _result: RuleResult, _source: Source) {}

    /// The store did not answer.
    fn store_failed(&self, _error: &StoreError) {}

    /// A store over a network was asked, and answered or failed so long after. Memory is asked too often to tell.
    fn store_called(&self, _call: StoreCall, _took: Micros) {}

    /// So many requests went to the store in one call, equal ones folded into one.
    fn batch_sent(&self, _requests: usize) {}

    /// So many requests could not wait for a store that answers others: their rules' failure policies decide, from what is
    /// known. Or they did, for longer than they should, because this node did not run: then the store has decided.
    fn overloaded(&self, _why: Overload, _requests: usize) {}

    /// A call to the store that nobody waited for any more has ended.
    fn late_call(&self, _end: LateCall) {}

    /// A request was refused here because the store had refused it a moment ago.
    fn deny_cache_hit(&self) {}

    /// A request was shed: the service behind has more to do than it can.
    fn shed(&self, _priority: Priority) {}

    /// A node of the store has stopped answering, or answers again.
    fn breaker_changed(&self, _endpoint: &str, _state: BreakerState) {}

    /// A request was decided, in part at least, by what its rules say for a store that does not answer.
    fn fell_back(&self, _source: Source) {}

    /// The store counts so many limiters alive, this one included.
    fn fleet_counted(&self, _limiters: u64) {}

    /// The store has stopped to take heartbeats: told once, until [`Observer::fleet_counted`] says that it does again.
    fn heartbeat_lost(&self, _why: &str) {}

    /// What was spent here while the store was away was charged there: so many hits on so many cells. With an error nobody
    /// knows whether it was; it is not tried again.
    fn debts_paid(&self, _cells: usize, _hits: u64, _error: Option<&StoreError>) {}

    /// A transport answered a request, so long after it had the whole of it. Transports call this, not the limiter.
    fn answered(&self, _transport: Transport, _took: Duration) {}

    /// A transport answered `requests` at once, each of them so long after it had them all.
    fn answered_together(&self, transport: Transport, took: Duration, requests: u64) {
        (0..requests).for_each(|_| self.answered(transport, took));
    }

    /// A transport answered a request that belongs to a sampled trace: told beside [`Observer::answered`].
    fn traced(&self, _request: &Traced<'_>) {}
}

/// A request, the rules that it matched, and what was decided.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Decided<'a> {
    /// What was asked.
    pub request: &'a CheckRequest<'a>,
    /// The rules that it matched, each with the caller's key under it.
    pub matches: &'a [Match<'a>],
    /// The answer.
    pub decision: &'a Decision,
    /// Whether its descriptors are several readings of one request ([`Limiter::check_readings`](crate::Limiter::check_readings)).
    pub of_readings: bool,
}

impl Decided<'_> {
    /// Whether somebody only looked: nothing was to be spent, and no lease was taken.
    #[must_use]
    #[inline]
    pub fn is_look(&self) -> bool {
        self.decision.lease.is_none() && self.request.descriptors.iter().all(|ask| ask.cost == Hits::ZERO)
    }
}

/// Something that changed what is left of limits, beside a decision. Only what took effect is told.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Settled<'a> {
    /// What happened.
    pub how: Settlement<'a>,
    /// When it was asked for, by the clock of this node. By now it is done.
    pub asked_at: Timestamp,
    /// When the store did it, by its own clock; none where that is unknown.
    pub done_at: Option<Timestamp>,
    /// The rules that the request matches whose cells changed; none for leases, which name their cells themselves.
    pub matches: &'a [Match<'a>],
}

/// What changed what is left of limits, beside a decision.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Settlement<'a> {
    /// The leases of a request have ended before their time: all that are left of them.
    Released(&'a LeaseToken),
    /// One of the leases of a request has, and the others will.
    ReleasedPart(&'a LeaseToken),
    /// The leases of a request live on, those at least that came before one that had ended.
    Renewed(&'a LeaseToken),
    /// So many hits went back to every cell of a request but those of these limits, which had them back by themselves.
    Refunded(&'a CheckRequest<'a>, Hits, SpentBefore, &'a [String]),
    /// So many hits were taken from every cell of a request.
    Charged(&'a CheckRequest<'a>, Hits, SpentBefore),
    /// The cells of a request have their full quota back.
    Reset(&'a CheckRequest<'a>),
    /// A penalty has begun that a refused request caused.
    Penalized(&'a Penalty),
}

/// How long ago hits were spent; none where nobody knows.
pub type SpentBefore = Option<Micros>;

impl<'a> Decided<'a> {
    /// What each matched rule said to this caller, and the report of its limit that has the least left; rules that were not
    /// asked, because a ban decided, are left out.
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
    /// Tells the watcher of each matched rule how many hits were asked of it. It costs a request a look at every report,
    /// so only an observer that counts hits asks for it.
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

/// The hits above which a limit is near: four fifths, rounded down, as envoyproxy/ratelimit has it.
fn near(quota: u64) -> u64 {
    u64::try_from(u128::from(quota) * 4 / 5).unwrap_or(u64::MAX)
}

/// What orders the reports of one rule: a refusal first, then the least left.
fn left(report: &Report) -> (bool, u64) {
    (!report.is_refusal(), report.limit().map_or(u64::MAX, |limit| limit.outcome.remaining))
}

/// Why a request could not wait for a store that answers others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overload {
    /// As much waits as may.
    QueueFull,
    /// Its deadline passed, or would have before an answer.
    Deadline,
    /// It has its answer, late: this node was too busy to hear it in time.
    OwnLag,
}

impl Overload {
    /// All there are, for those who count them one by one.
    pub const ALL: [Overload; 3] = [Overload::QueueFull, Overload::Deadline, Overload::OwnLag];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Overload::QueueFull => "queue_full",
            Overload::Deadline => "deadline",
            Overload::OwnLag => "own_lag",
        }
    }
}

/// What became of a call after everybody was let go who waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateCall {
    /// The store answered. What it had spent for so many requests, which were decided without it, is given back.
    Answered {
        /// Those requests.
        given_back: u64,
    },
    /// It did not, or too many calls were late: what it may have spent stays spent.
    Lost,
}

/// What a store was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreCall {
    /// To decide requests.
    Decide,
    /// To take hits back.
    Refund,
    /// To take hits that were spent elsewhere.
    Charge,
    /// To forget cells.
    Reset,
    /// To prolong leases.
    Renew,
    /// To end leases.
    Release,
    /// To count who is alive.
    Heartbeat,
    /// Whether it answers again.
    Probe,
    /// To keep records: what named requests were answered.
    Record,
}

impl StoreCall {
    /// All there are, for those who count them one by one.
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

    /// Its name in metrics.
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

/// How a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// Envoy's rate limit service.
    Grpc,
    /// JSON over HTTP.
    Http,
    /// The Redis protocol.
    Resp,
    /// Forward-auth.
    Auth,
    /// The reverse proxy.
    Proxy,
    /// Middleware inside a Rust service.
    Tower,
}

impl Transport {
    /// All there are, for those who count them one by one.
    pub const ALL: [Transport; 6] = [
        Transport::Grpc,
        Transport::Http,
        Transport::Resp,
        Transport::Auth,
        Transport::Proxy,
        Transport::Tower,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Transport::Grpc => "grpc",
            Transport::Http => "http",
            Transport::Resp => "resp",
            Transport::Auth => "auth",
            Transport::Proxy => "proxy",
            Transport::Tower => "tower",
        }
    }
}

/// Hears what becomes of the requests that one rule matched.
pub trait RuleWatcher: Send + Sync {
    /// The rule was part of a decision: once per request, refused if any of its limits refused.
    fn decided(&self, result: RuleResult, source: Source);

    /// The same, for a request that is on one side of the rule's experiment; called beside [`RuleWatcher::decided`].
    fn decided_in_experiment(&self, _variant: Variant, _result: RuleResult) {}

    /// What an observer tells it of one descriptor's hits ([`Decided::count_hits`]); the limiter itself does not.
    fn hits(&self, _hits: &RuleHits) {}
}

/// The hits that one descriptor asked of one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleHits {
    /// How many.
    pub hits: u64,
    /// How many of them lie above four fifths of the limit, and within it; none where they were refused.
    pub near: u64,
    /// What the rule said.
    pub result: RuleResult,
    /// Who answered.
    pub source: Source,
}

impl RuleHits {
    /// So many hits of which the rule said this, and how many of them were near its limit.
    #[must_use]
    pub fn new(result: RuleResult, source: Source, hits: u64, near: u64) -> Self {
        RuleHits { hits, near, result, source }
    }
}

/// What one rule said to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RuleResult {
    /// Its limits let the request pass.
    Allowed,
    /// One of its limits refused.
    Refused,
    /// One of its limits would have refused, had the rule not been a shadow.
    ShadowRefused,
    /// It matched, and has no limit for this request.
    Unlimited,
    /// It was skipped because an attribute of its key is missing.
    KeyMissingSkipped,
    /// It refused because an attribute of its key is missing.
    KeyMissingRefused,
}

impl RuleResult {
    /// All there are, for those who count them one by one.
    pub const ALL: [RuleResult; 6] = [
        RuleResult::Allowed,
        RuleResult::Refused,
        RuleResult::ShadowRefused,
        RuleResult::Unlimited,
        RuleResult::KeyMissingSkipped,
        RuleResult::KeyMissingRefused,
    ];

    /// What a rule said of which this and `other` are parts: a refusal, where there is one.
    pub(crate) fn or_graver(self, other: RuleResult) -> RuleResult {
        let gravity = |result: RuleResult| match result {
            RuleResult::Unlimited => 0,
            RuleResult::KeyMissingSkipped => 1,
            RuleResult::Allowed => 2,
            RuleResult::ShadowRefused => 3,
            RuleResult::KeyMissingRefused => 4,
            RuleResult::Refused => 5,
        };
        if gravity(other) > gravity(self) { other } else { self }
    }

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RuleResult::Allowed => "allowed",
            RuleResult::Refused => "refused",
            RuleResult::ShadowRefused => "shadow_refused",
            RuleResult::Unlimited => "unlimited",
            RuleResult::KeyMissingSkipped => "key_missing_skipped",
            RuleResult::KeyMissingRefused => "key_missing_refused",
        }
    }
}

/// Hears nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoObserver;

impl Observer for NoObserver {}

impl RuleWatcher for NoObserver {
    fn decided(&self, _result: RuleResult, _source: Source) {}
}
