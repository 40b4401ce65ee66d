//! From the answer to a plan to the decision on the request.

use std::sync::Arc;

use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_rules::{Mode, Rule};
use tidegate_store::Outcomes;

use super::plan::{Asks, MatchedLimit, Plan};
use crate::answer::Answer;
use crate::cell_hash::CellHasher;
use crate::decision::{Decision, LimitReport, Report, ReportKind};
use crate::lease::LeaseToken;
use crate::lease::keys::LeaseKeys;
use crate::source::Source;
use crate::spent::SpentToken;

impl Decision {
    /// Fills in the decision from the plan and its answer.
    pub(crate) fn fill(
        &mut self,
        plan: &Plan<'_>,
        answer: &Answer,
        keys: &Arc<LeaseKeys>,
        hasher: &CellHasher,
    ) {
        self.source = match plan.spends.is_empty() {
            true if plan.banned => Source::Local,
            true => Source::None,
            false => answer.source,
        };
        (self.decided_at, self.nth) = (answer.decided_at, answer.nth);
        self.reports.extend(plan.limits().iter().map(|entry| report(entry, plan, &answer.outcomes)));
        // A penalty that does not apply has no numbers to report.
        let penalties = plan.penalties().iter().map(|entry| report(entry, plan, &answer.outcomes));
        self.reports.extend(penalties.filter(Report::is_refusal));
        self.allowed =
            !(self.reports.iter().any(Report::refuses_request) || every_quota_is_spent(&self.reports));
        if self.allowed {
            self.delay = self.reports.iter().map(Report::delay).max().unwrap_or_default();
            let ends_with_client = plan.leases_end_with_client();
            let taken = |lease| LeaseToken::new(lease, plan.leases(), ends_with_client, keys, hasher);
            self.lease = plan.lease.and_then(taken);
            self.spent = spent(plan, answer, self.asked_at);
        }
    }
}

/// What a later refund of an allowed request needs.
fn spent(plan: &Plan<'_>, answer: &Answer, asked_at: Timestamp) -> Option<SpentToken> {
    if answer.source == Source::FallbackOpen {
        return None;
    }
    let (mut is_spent, mut refilled_after, mut unspent) = (false, None, Hits::ZERO);
    for place in plan.refundable() {
        let (touch, outcome) = (&plan.spends[place].touch, &answer.outcomes[place]);
        if touch.ask.hits == Hits::ZERO || touch.limit.takes_lease() || !outcome.is_admitted() {
            continue;
        }
        is_spent = true;
        unspent = unspent.max(touch.ask.hits.saturating_sub(outcome.spent_of(touch.ask.hits)));
        if touch.limit.refills() {
            refilled_after = Some(
                refilled_after.map_or(outcome.reset_after, |first: Micros| first.min(outcome.reset_after)),
            );
        }
    }
    is_spent.then(|| SpentToken::new(asked_at, refilled_after, unspent))
}

fn report(entry: &MatchedLimit<'_>, plan: &Plan<'_>, outcomes: &Outcomes) -> Report {
    let kind = match entry.asks {
        Asks::Unlimited => ReportKind::Unlimited,
        Asks::KeyMissing(then) => ReportKind::KeyMissing(then),
        Asks::Banned { retry_after } => ReportKind::Banned { retry_after },
        Asks::Limit { limit, spend } => {
            // If several descriptors name the cell, this limit satisfies them all.
            let touch = &plan.spends[spend].touch;
            let (quota, window) = (touch.limit.quota(), touch.limit.quota_window());
            let (algorithm, cost) = (touch.limit.algorithm(), touch.ask.hits);
            let (outcome, policy) = (outcomes[spend], limit.policy);
            ReportKind::Limited(LimitReport { outcome, quota, window, algorithm, cost, policy })
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

/// Quotas refuse together: the request passes while any of them has hits left.
fn every_quota_is_spent(reports: &[Report]) -> bool {
    let is_quota = |report: &&Report| report.mode == Mode::Quota && report.kind != ReportKind::Unlimited;
    let mut quotas = reports.iter().filter(is_quota).peekable();
    quotas.peek().is_some() && quotas.all(Report::is_refusal)
}
