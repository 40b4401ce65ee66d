//! The limiter's answer, and which of its numbers a caller sees.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Hits, Micros, Outcome, Timestamp};
use tidegate_rules::{Mode, OnMissingKey, Policy, Rule, Variant};

use crate::lease::LeaseToken;
use crate::rule_watcher::RuleResult;
use crate::snapshot::Snapshot;
use crate::source::Source;
use crate::spent::SpentToken;

/// The name of a limit that came with the request: it has no rule.
pub const OVERRIDE: &str = "override";

/// The decision on one request.
///
/// Of a concurrency limit it has the lease, which nothing gives back by itself: [`Limiter::release`](crate::Limiter::release) does,
/// or the limit's `ttl` runs out and the place is lost until then. So take [`lease`](Self::lease) out of every decision that may have
/// one; who only reads `allowed` loses it. `tidegate::Ask::check` returns a guard instead. To drop a decision unread is an error here:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use tidegate_limiter::{CheckRequest, Limiter};
/// # async fn loses(limiter: &Limiter, request: &CheckRequest<'_>) -> Result<(), tidegate_rules::UnknownDomain> {
/// limiter.check(request).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a place of a concurrency limit is lost until its `ttl` ends, unless `lease` is released"]
pub struct Decision {
    /// Whether the request passes.
    pub allowed: bool,
    /// What made the decision.
    pub source: Source,
    /// How long the caller must wait before it proceeds (leaky buckets).
    pub delay: Micros,
    /// Set if the request took a concurrency slot: release it when the request is done, or nobody else has the slot until the
    /// limit's `ttl` ends.
    pub lease: Option<LeaseToken>,
    /// One report per matched limit, in descriptor order. Inline capacity 2: capacity 4 costs a one-limit check 8 % more
    /// instructions and saves a four-limit check, which then allocates less, only 1 %.
    pub(crate) reports: SmallVec<[Report; 2]>,
    /// When the check arrived, by the clock of the node that decided.
    pub(crate) asked_at: Timestamp,
    /// When the store decided, by the store's clock.
    pub(crate) decided_at: Option<Timestamp>,
    pub(crate) nth: Option<u32>,
    /// What a later refund needs; `None` if nothing refundable was spent.
    pub(crate) spent: Option<SpentToken>,
    snapshot: Arc<Snapshot>,
}

/// The result of one matched rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Index of the descriptor that the rule matched.
    pub descriptor: usize,
    /// The rule's index in the snapshot; `None` for a limit supplied by the caller.
    pub rule: Option<usize>,
    /// The rule's mode: whether it may refuse.
    pub mode: Mode,
    /// The request's side of the rule's experiment, if the rule has one.
    pub variant: Option<Variant>,
    /// The result.
    pub kind: ReportKind,
}

/// The result of a matched rule, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReportKind {
    /// A limit decided.
    Limited(LimitReport),
    /// The rule has no limit for this request.
    Unlimited,
    /// The request lacks an attribute of the key.
    KeyMissing(OnMissingKey),
    /// The key is banned.
    Banned {
        /// Time until the ban ends; `None` if it never does.
        retry_after: Option<Micros>,
    },
}

/// The outcome of one limit, with the numbers a caller may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitReport {
    /// The outcome of its cell.
    pub outcome: Outcome,
    /// The limit's quota.
    pub quota: u64,
    /// The period in which the quota refills, if the limit has one.
    pub window: Option<Micros>,
    /// How the limit counts.
    pub algorithm: Algorithm,
    /// What the request asked of it.
    pub cost: Hits,
    /// What callers know it by; [`Decision::policy_name`] has the name.
    pub policy: Policy,
}

/// The decision on one descriptor of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorDecision {
    /// Whether its rules refuse it.
    pub over_limit: bool,
    /// Whether a matched rule has no limit.
    pub unlimited: bool,
    /// The report whose numbers represent the descriptor.
    pub governing: Option<Report>,
}

impl Decision {
    /// A request with nothing decided yet.
    #[inline]
    pub(crate) fn not_yet(snapshot: &Arc<Snapshot>, asked_at: Timestamp) -> Self {
        Decision {
            allowed: true,
            source: Source::None,
            delay: Micros::ZERO,
            lease: None,
            reports: SmallVec::new(),
            asked_at,
            decided_at: None,
            nth: None,
            spent: None,
            snapshot: Arc::clone(snapshot),
        }
    }

    /// Whether the request may pass.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Hits left in the governing limit; `None` if no limit counted.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        Some(self.governing()?.limit()?.outcome.remaining)
    }

    /// The quota of the governing limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        Some(self.governing()?.limit()?.quota)
    }

    /// Time until the governing limit's quota is full again.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        Some(self.governing()?.limit()?.outcome.reset_after.into())
    }

    /// How long a refused caller must wait before a retry can pass; `None` if it was not refused or can never pass.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.governing().filter(|_| !self.allowed)?.retry_after().map(Duration::from)
    }

    /// How long an allowed caller must wait before it proceeds (leaky buckets); usually zero.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.delay.into()
    }

    /// The name of the governing rule: the one that refused, or has the least left.
    #[must_use]
    pub fn rule(&self) -> Option<&str> {
        self.rule_of(self.governing()?).map(Rule::name)
    }

    /// The result of each matched rule, in descriptor order.
    #[must_use]
    pub fn reports(&self) -> &[Report] {
        &self.reports
    }

    /// The report whose numbers the caller sees. If refused: the one with the longest wait. If allowed: the one with the
    /// least left, on a tie the one that resets last. Shadow rules are never reported.
    #[must_use]
    pub fn governing(&self) -> Option<&Report> {
        let told = self.reports.iter().filter(|report| report.mode != Mode::Shadow);
        if self.allowed { least_left(told) } else { longest_wait(told) }
    }

    /// The report whose numbers a response shows: the governing one, among the rules that callers may see.
    ///
    /// If a hidden rule refused, the numbers are of the visible limit with the least left.
    #[must_use]
    pub fn reported(&self) -> Option<&Report> {
        let visible = || self.reports.iter().filter(|report| self.is_visible(report));
        match self.allowed {
            true => least_left(visible()),
            false => longest_wait(visible()).or_else(|| least_left(visible())),
        }
    }

    /// Whether callers may know of a report: its rule is neither hidden nor in shadow mode.
    #[must_use]
    pub fn is_visible(&self, report: &Report) -> bool {
        report.mode != Mode::Shadow && self.rule_of(report).is_none_or(Rule::is_visible)
    }

    /// Whether the refusal is of a hidden rule, so that its reason is no caller's business.
    #[must_use]
    pub fn is_refused_by_hidden(&self) -> bool {
        !self.allowed && self.governing().is_some_and(|report| !self.is_visible(report))
    }

    /// What callers know a limit by: its rule's name and, if several limits apply together, which one it is.
    #[must_use]
    pub fn policy_name<'d>(&'d self, report: &Report, limit: &LimitReport) -> Cow<'d, str> {
        self.rule_of(report).map_or(Cow::Borrowed(OVERRIDE), |rule| rule.policy_name(limit.policy))
    }

    /// The rule of a report; `None` for a limit supplied by the caller.
    #[must_use]
    pub fn rule_of(&self, report: &Report) -> Option<&Rule> {
        report.rule.map(|index| self.snapshot.rules().rule(index))
    }

    /// The rules that did not count the request because it lacks an attribute of their key.
    pub fn skipped(&self) -> impl Iterator<Item = &Rule> {
        let skips = |report: &&Report| report.kind == ReportKind::KeyMissing(OnMissingKey::Skip);
        self.reports.iter().filter(skips).filter_map(|report| self.rule_of(report))
    }

    /// The decision on the descriptor at this index of the request.
    #[must_use]
    pub fn descriptor(&self, descriptor: usize) -> DescriptorDecision {
        let own = || self.reports.iter().filter(move |report| report.descriptor == descriptor);
        let enforced = || own().filter(|report| report.mode != Mode::Shadow);
        let over_limit = enforced().any(Report::is_refusal);
        let governing = if over_limit { longest_wait(enforced()) } else { least_left(enforced()) };
        let unlimited = own().any(|report| report.kind == ReportKind::Unlimited);
        // A descriptor matched only by shadow rules still shows their numbers: that is the purpose of shadow rules.
        DescriptorDecision {
            over_limit,
            unlimited,
            governing: governing.or_else(|| least_left(own())).copied(),
        }
    }

    /// The result of each matched rule, once per rule, however many limits it has and descriptors it matched.
    pub(crate) fn rule_results(&self) -> impl Iterator<Item = (&Rule, RuleResult, Option<Variant>)> {
        let said = |report: &Report| Some((report.rule?, report.result(), report.variant));
        let mut results: SmallVec<[(usize, RuleResult, Option<Variant>); 4]> =
            self.reports.iter().filter_map(said).collect();
        // Rules match in order and seldom twice: only another descriptor, or a penalty (these come last), repeats one.
        if !results.is_sorted_by_key(|(rule, ..)| *rule) {
            results.sort_by_key(|(rule, ..)| *rule);
        }
        results.dedup_by(|later, first| {
            let same = later.0 == first.0;
            if same {
                first.1 = first.1.or_graver(later.1);
            }
            same
        });
        let rules = self.snapshot.rules();
        results.into_iter().map(|(rule, result, variant)| (rules.rule(rule), result, variant))
    }

    /// When the check arrived, by the clock of the node that decided.
    #[must_use]
    pub fn asked_at(&self) -> Timestamp {
        self.asked_at
    }

    /// When the store decided, by the store's clock, which may differ from every other clock: use it only to replay logs. For
    /// a cached refusal, a moment between that refusal and now at which the store still refuses. `None` if the store did not
    /// decide all of it, or not at one moment of one clock.
    #[must_use]
    pub fn decided_at(&self) -> Option<Timestamp> {
        self.decided_at
    }

    /// The request's position, from 0, among those that one store call decided in sequence at that moment; `None` if it was
    /// alone.
    #[must_use]
    pub fn decided_nth(&self) -> Option<u32> {
        self.nth
    }

    /// What a later refund needs, for callers that cannot keep the decision itself. `None` if nothing refundable was spent:
    /// the request was refused, was a look, took only leases, or was not counted.
    #[must_use]
    pub fn spent(&self) -> Option<SpentToken> {
        self.spent
    }

    /// The version of the rules that decided: their published version or, if unpublished, the count of rule sets used so far.
    #[must_use]
    pub fn rules_version(&self) -> u64 {
        self.snapshot.rules().published().unwrap_or(self.snapshot.version())
    }

    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}

impl Report {
    /// The numbers, if a limit decided.
    #[must_use]
    pub fn limit(&self) -> Option<&LimitReport> {
        match &self.kind {
            ReportKind::Limited(limit) => Some(limit),
            ReportKind::Unlimited | ReportKind::KeyMissing(_) | ReportKind::Banned { .. } => None,
        }
    }

    /// How long to wait before a retry; `None` if a retry would pass now or can never pass.
    #[must_use]
    pub fn retry_after(&self) -> Option<Micros> {
        match &self.kind {
            ReportKind::Limited(limit) => limit.outcome.retry_after(),
            ReportKind::Banned { retry_after } => *retry_after,
            ReportKind::Unlimited | ReportKind::KeyMissing(_) => None,
        }
    }

    /// Whether this rule refused, even if its mode does not let it refuse the request.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match &self.kind {
            ReportKind::Limited(limit) => !limit.outcome.is_admitted(),
            ReportKind::KeyMissing(then) => *then == OnMissingKey::Refuse,
            ReportKind::Banned { .. } => true,
            ReportKind::Unlimited => false,
        }
    }

    /// The result as metrics name it.
    #[must_use]
    pub fn result(&self) -> RuleResult {
        match (&self.kind, self.is_refusal()) {
            (ReportKind::Unlimited, _) => RuleResult::Unlimited,
            (ReportKind::KeyMissing(OnMissingKey::Skip), _) => RuleResult::KeyMissingSkipped,
            (_, true) if self.mode == Mode::Shadow => RuleResult::ShadowRefused,
            (ReportKind::KeyMissing(OnMissingKey::Refuse), _) => RuleResult::KeyMissingRefused,
            (ReportKind::Limited(_) | ReportKind::Banned { .. }, true) => RuleResult::Refused,
            (ReportKind::Limited(_) | ReportKind::Banned { .. }, false) => RuleResult::Allowed,
        }
    }

    pub(crate) fn refuses_request(&self) -> bool {
        let may_refuse = match self.kind {
            // Quotas refuse only together; a ban refuses alone.
            ReportKind::Banned { .. } => self.mode != Mode::Shadow,
            _ => self.mode == Mode::Enforce,
        };
        may_refuse && self.is_refusal()
    }

    pub(crate) fn delay(&self) -> Micros {
        let enforced = self.limit().filter(|_| self.mode != Mode::Shadow);
        enforced.map_or(Micros::ZERO, |limit| limit.outcome.delay())
    }
}

fn longest_wait<'r>(reports: impl Iterator<Item = &'r Report>) -> Option<&'r Report> {
    // Refusals without a retry time (never fits, missing key) count as the longest wait.
    let wait = |report: &Report| report.retry_after().unwrap_or(Micros::new(u64::MAX));
    // Ties go to the first: a limit rather than the penalty behind it.
    reports.filter(|report| report.is_refusal()).min_by_key(|report| Reverse(wait(report)))
}

fn least_left<'r>(reports: impl Iterator<Item = &'r Report>) -> Option<&'r Report> {
    let numbers = |report: &Report| {
        report.limit().map(|limit| (limit.outcome.remaining, Reverse(limit.outcome.reset_after), limit.quota))
    };
    reports.filter(|report| report.limit().is_some()).min_by_key(|report| numbers(report))
}
