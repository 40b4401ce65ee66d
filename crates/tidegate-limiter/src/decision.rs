//! What the limiter answers, and which of its numbers a caller is told.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Hits, Micros, Outcome, Timestamp};
use tidegate_rules::{Mode, OnMissingKey, Rule, Variant};
use tidegate_store::Outcomes;

use crate::check::{Asks, CheckAnswer, MatchedLimit, Plan};
use crate::lease::LeaseToken;
use crate::lease_key::LeaseKeys;
use crate::observer::RuleResult;
use crate::penalty::Penalty;
use crate::snapshot::Snapshot;
use crate::spent::SpentToken;

/// The answer to one request.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Whether it may pass.
    pub allowed: bool,
    /// Who answered.
    pub source: Source,
    /// How long the caller must wait before it goes on (leaky buckets).
    pub delay: Micros,
    /// To be given back when the request is done, where a concurrency limit was taken.
    pub lease: Option<LeaseToken>,
    /// What each matched rule said, in the order of the descriptors. Room for two: with room
    /// for four, a check of one limit takes 8 % more instructions, and one of four limits, which then allocates less, 1 % fewer.
    pub(crate) reports: SmallVec<[Report; 2]>,
    /// When it was asked for, by the clock of the node that decided.
    asked_at: Timestamp,
    /// When it was decided, by the clock of the store.
    decided_at: Option<Timestamp>,
    nth: Option<u32>,
    /// The penalty that begins with it.
    penalty: Option<Arc<Penalty>>,
    /// What a later refund must know; none where nothing was spent that can be given back.
    spent: Option<SpentToken>,
    snapshot: Arc<Snapshot>,
}

/// Who answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store.
    Store,
    /// This node, which remembers that the store refused a moment ago.
    DenyCache,
    /// This node, within the bound of an approximate rule.
    Approximate,
    /// This node alone, as the rule asks.
    Local,
    /// The store failed; the rule lets pass.
    FallbackOpen,
    /// The store failed; the rule refuses.
    FallbackClosed,
    /// The store failed; this node decided alone.
    FallbackLocal,
    /// The store was too busy; the rule lets pass.
    OverloadOpen,
    /// The store was too busy; the rule refuses.
    OverloadClosed,
    /// The store was too busy; this node decided alone.
    OverloadLocal,
    /// Nobody had to be asked.
    None,
}

impl Source {
    /// All there are, for those who count them one by one.
    pub const ALL: [Source; 11] = [
        Source::Store,
        Source::DenyCache,
        Source::Approximate,
        Source::Local,
        Source::FallbackOpen,
        Source::FallbackClosed,
        Source::FallbackLocal,
        Source::OverloadOpen,
        Source::OverloadClosed,
        Source::OverloadLocal,
        Source::None,
    ];

    /// Whether a rule refuses because its store cannot be asked, not because a limit is reached.
    #[must_use]
    pub fn is_unavailable(self) -> bool {
        matches!(self, Source::FallbackClosed | Source::OverloadClosed)
    }

    /// Who answered a request of which this one and `other` decided parts: the one that promises least.
    pub(crate) fn or_weaker(self, other: Source) -> Source {
        let weakness = |source: Source| match source {
            Source::None => 0,
            Source::Local => 1,
            Source::Approximate => 2,
            Source::Store => 3,
            Source::DenyCache => 4,
            Source::OverloadOpen => 5,
            Source::OverloadLocal => 6,
            Source::OverloadClosed => 7,
            Source::FallbackOpen => 8,
            Source::FallbackLocal => 9,
            Source::FallbackClosed => 10,
        };
        if weakness(other) > weakness(self) { other } else { self }
    }

    /// Whether a rule's policy decided in the place of a store that did not.
    #[must_use]
    pub fn is_without_the_store(self) -> bool {
        match self {
            Source::FallbackOpen | Source::FallbackClosed | Source::FallbackLocal => true,
            Source::OverloadOpen | Source::OverloadClosed | Source::OverloadLocal => true,
            Source::Store | Source::DenyCache | Source::Approximate | Source::Local | Source::None => false,
        }
    }

    /// Its name in answers and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Source::Store => "store",
            Source::DenyCache => "deny_cache",
            Source::Approximate => "approximate",
            Source::Local => "local",
            Source::FallbackOpen => "fallback_open",
            Source::FallbackClosed => "fallback_closed",
            Source::FallbackLocal => "fallback_local",
            Source::OverloadOpen => "overload_open",
            Source::OverloadClosed => "overload_closed",
            Source::OverloadLocal => "overload_local",
            Source::None => "none",
        }
    }
}

/// What one matched rule said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Which descriptor it matched.
    pub descriptor: usize,
    /// The rule's index in the snapshot; none for a limit that the caller brought along.
    pub rule: Option<usize>,
    /// Whether it may refuse.
    pub mode: Mode,
    /// The side of the rule's experiment that the request is on, where it has one.
    pub variant: Option<Variant>,
    /// What it said.
    pub kind: ReportKind,
}

/// What a matched rule said, by what it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReportKind {
    /// One of its limits decided.
    Limited(LimitReport),
    /// It has no limit for this request.
    Unlimited,
    /// The request lacks an attribute of the key.
    KeyMissing(OnMissingKey),
    /// The key is banned.
    Banned {
        /// How much longer; none for ever.
        retry_after: Option<Micros>,
    },
}

/// What one limit said, with the numbers a caller may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitReport {
    /// What it said.
    pub outcome: Outcome,
    /// The limit's number.
    pub quota: u64,
    /// The time in which the quota comes back, where that is a span.
    pub window: Option<Micros>,
}

/// What the rules said to one descriptor of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorDecision {
    /// Whether its rules refuse it.
    pub over_limit: bool,
    /// Whether a rule matched that has no limit.
    pub unlimited: bool,
    /// The report whose numbers stand for it.
    pub governing: Option<Report>,
}

impl Decision {
    /// A request of which nothing is decided yet.
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
            penalty: None,
            spent: None,
            snapshot: Arc::clone(snapshot),
        }
    }

    /// Says what `answer` says to `plan`.
    pub(crate) fn fill(&mut self, plan: &Plan<'_>, answer: &CheckAnswer, keys: &Arc<LeaseKeys>) {
        self.source = match plan.spends.is_empty() {
            true if plan.banned => Source::Local,
            true => Source::None,
            false => answer.source,
        };
        (self.decided_at, self.nth) = (answer.decided_at, answer.nth);
        self.penalty.clone_from(&answer.penalty);
        self.reports.extend(plan.limits().iter().map(|entry| report(entry, plan, &answer.outcomes)));
        // A penalty that does not apply has no numbers to tell.
        let penalties = plan.penalties().iter().map(|entry| report(entry, plan, &answer.outcomes));
        self.reports.extend(penalties.filter(Report::is_refusal));
        self.allowed =
            !(self.reports.iter().any(Report::refuses_request) || every_quota_is_spent(&self.reports));
        if self.allowed {
            self.delay = self.reports.iter().map(Report::delay).max().unwrap_or_default();
            self.lease = plan.lease.and_then(|lease| LeaseToken::new(lease, plan.leases(), keys));
            self.spent = spent(plan, answer, self.asked_at);
        }
    }

    /// How many hits are left of the limit that the caller is told of; none where no limit counted.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        Some(self.governing()?.limit()?.outcome.remaining)
    }

    /// The number of that limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        Some(self.governing()?.limit()?.quota)
    }

    /// How long until that limit's whole quota is back.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        Some(self.governing()?.limit()?.outcome.reset_after.into())
    }

    /// How long a refused caller must wait before another try can pass; none where it was not refused, or never will
    /// pass.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.governing().filter(|_| !self.allowed)?.retry_after().map(Duration::from)
    }

    /// How long an allowed caller must wait before it goes on (leaky buckets); mostly not at all.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.delay.into()
    }

    /// The name of the rule that the caller is told of: the one that refused, or has the least left.
    #[must_use]
    pub fn rule(&self) -> Option<&str> {
        self.rule_of(self.governing()?).map(Rule::name)
    }

    /// What each matched rule said, in the order of the descriptors.
    #[must_use]
    pub fn reports(&self) -> &[Report] {
        &self.reports
    }

    /// The report whose numbers the caller is told. Refused: the one with the longest wait. Allowed: the one with the
    /// least left, of those the one that resets last. Shadow rules tell nothing.
    #[must_use]
    pub fn governing(&self) -> Option<&Report> {
        let told = self.reports.iter().filter(|report| report.mode != Mode::Shadow);
        if self.allowed { least_left(told) } else { longest_wait(told) }
    }

    /// The rule that a report is about; none for a limit that the caller brought along.
    #[must_use]
    pub fn rule_of(&self, report: &Report) -> Option<&Rule> {
        report.rule.map(|index| self.snapshot.rules().rule(index))
    }

    /// What the rules said to the descriptor at this place in the request.
    #[must_use]
    pub fn descriptor(&self, descriptor: usize) -> DescriptorDecision {
        let own = || self.reports.iter().filter(move |report| report.descriptor == descriptor);
        let enforced = || own().filter(|report| report.mode != Mode::Shadow);
        let over_limit = enforced().any(Report::is_refusal);
        let governing = if over_limit { longest_wait(enforced()) } else { least_left(enforced()) };
        let unlimited = own().any(|report| report.kind == ReportKind::Unlimited);
        // A descriptor that only shadow rules matched still shows their numbers: that is what one looks at them for.
        DescriptorDecision {
            over_limit,
            unlimited,
            governing: governing.or_else(|| least_left(own())).copied(),
        }
    }

    /// What each matched rule said, once, whatever the number of its limits and of the descriptors it matched.
    pub(crate) fn rule_results(&self) -> impl Iterator<Item = (&Rule, RuleResult, Option<Variant>)> {
        let said = |report: &Report| Some((report.rule?, report.result(), report.variant));
        let mut results: SmallVec<[(usize, RuleResult, Option<Variant>); 4]> =
            self.reports.iter().filter_map(said).collect();
        // Rules match in their order, and seldom twice: only another descriptor or a penalty, which comes last, names one
        // again.
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

    pub(crate) fn is_refused_by_quotas_alone(&self) -> bool {
        !self.allowed && !self.reports.iter().any(Report::refuses_request)
    }

    /// When it was asked for, by the clock of the node that decided.
    #[must_use]
    pub fn asked_at(&self) -> Timestamp {
        self.asked_at
    }

    /// When the store decided it, by the store's own clock, which may differ from all others: for logs that are played again,
    /// and for nothing else. Of a refusal that this node repeats, a moment between that refusal and now at which the store
    /// still refuses. None where the store did not decide all of it, or not at one moment of one clock.
    #[must_use]
    pub fn decided_at(&self) -> Option<Timestamp> {
        self.decided_at
    }

    /// Which it was, from 0, of the requests that one call to the store decided at that moment, one after the other; none where it
    /// was the only one.
    #[must_use]
    pub fn decided_nth(&self) -> Option<u32> {
        self.nth
    }

    /// The penalty that begins with it, where it was refused and caused one.
    #[must_use]
    pub fn penalty(&self) -> Option<&Arc<Penalty>> {
        self.penalty.as_ref()
    }

    /// What a later refund must know, for who cannot keep the decision itself. None where nothing was spent that can be given
    /// back: it was refused, a look, took only leases, or nobody counted.
    #[must_use]
    pub fn spent(&self) -> Option<SpentToken> {
        self.spent
    }

    /// The version of the rules that decided: that as which they were published or, where they were not, how many sets of
    /// rules have been in use so far.
    #[must_use]
    pub fn rules_version(&self) -> u64 {
        self.snapshot.rules().published().unwrap_or(self.snapshot.version())
    }

    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}

impl Report {
    /// The numbers, where a limit decided.
    #[must_use]
    pub fn limit(&self) -> Option<&LimitReport> {
        match &self.kind {
            ReportKind::Limited(limit) => Some(limit),
            ReportKind::Unlimited | ReportKind::KeyMissing(_) | ReportKind::Banned { .. } => None,
        }
    }

    /// How long to wait before another try; none where it would pass now, or never will.
    #[must_use]
    pub fn retry_after(&self) -> Option<Micros> {
        match &self.kind {
            ReportKind::Limited(limit) => limit.outcome.retry_after(),
            ReportKind::Banned { retry_after } => *retry_after,
            ReportKind::Unlimited | ReportKind::KeyMissing(_) => None,
        }
    }

    /// Whether this rule said no, whether or not it may.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match &self.kind {
            ReportKind::Limited(limit) => !limit.outcome.is_admitted(),
            ReportKind::KeyMissing(then) => *then == OnMissingKey::Refuse,
            ReportKind::Banned { .. } => true,
            ReportKind::Unlimited => false,
        }
    }

    /// What metrics call this.
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

    fn refuses_request(&self) -> bool {
        let may_refuse = match self.kind {
            // Quotas refuse together; a ban needs no company.
            ReportKind::Banned { .. } => self.mode != Mode::Shadow,
            _ => self.mode == Mode::Enforce,
        };
        may_refuse && self.is_refusal()
    }

    fn delay(&self) -> Micros {
        let enforced = self.limit().filter(|_| self.mode != Mode::Shadow);
        enforced.map_or(Micros::ZERO, |limit| limit.outcome.delay())
    }
}

/// What a later refund of an allowed request must know.
fn spent(plan: &Plan<'_>, answer: &CheckAnswer, asked_at: Timestamp) -> Option<SpentToken> {
    if answer.source == Source::FallbackOpen {
        return None;
    }
    let (mut is_spent, mut refilled_after) = (false, None);
    for place in plan.refundable() {
        let (touch, outcome) = (&plan.spends[place].touch, &answer.outcomes[place]);
        if touch.ask.hits == Hits::ZERO || touch.limit.takes_lease() || !outcome.is_admitted() {
            continue;
        }
        is_spent = true;
        if touch.limit.refills() {
            refilled_after = Some(
                refilled_after.map_or(outcome.reset_after, |first: Micros| first.min(outcome.reset_after)),
            );
        }
    }
    is_spent.then(|| SpentToken::new(asked_at, refilled_after))
}

fn report(entry: &MatchedLimit<'_>, plan: &Plan<'_>, outcomes: &Outcomes) -> Report {
    let kind = match entry.asks {
        Asks::Unlimited => ReportKind::Unlimited,
        Asks::KeyMissing(then) => ReportKind::KeyMissing(then),
        Asks::Banned { retry_after } => ReportKind::Banned { retry_after },
        Asks::Limit { spend, .. } => {
            // Where several descriptors name the cell, the limit that keeps them all.
            let limit = plan.spends[spend].touch.limit;
            let (quota, window) = (limit.quota(), limit.quota_window());
            ReportKind::Limited(LimitReport { outcome: outcomes[spend], quota, window })
        }
    };
    Report {
        descriptor: entry.descriptor,
        rule: entry.rule.map(Rule::index),
        mode: entry.rule.map_or(Mode::Enforce, Rule::mode),
        variant: entry.variant,
        kind,
    }
}

/// Quotas refuse together: as long as one of them has something left, the request passes.
fn every_quota_is_spent(reports: &[Report]) -> bool {
    let is_quota = |report: &&Report| report.mode == Mode::Quota && report.kind != ReportKind::Unlimited;
    let mut quotas = reports.iter().filter(is_quota).peekable();
    quotas.peek().is_some() && quotas.all(Report::is_refusal)
}

fn longest_wait<'r>(reports: impl Iterator<Item = &'r Report>) -> Option<&'r Report> {
    // What never passes, and a missing key, wait longest of all.
    let wait = |report: &Report| report.retry_after().unwrap_or(Micros::new(u64::MAX));
    // Of several that wait as long, the first: a limit, and not the penalty behind it.
    reports.filter(|report| report.is_refusal()).min_by_key(|report| Reverse(wait(report)))
}

fn least_left<'r>(reports: impl Iterator<Item = &'r Report>) -> Option<&'r Report> {
    let numbers = |report: &Report| {
        report.limit().map(|limit| (limit.outcome.remaining, Reverse(limit.outcome.reset_after), limit.quota))
    };
    reports.filter(|report| report.limit().is_some()).min_by_key(|report| numbers(report))
}
