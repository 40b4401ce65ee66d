//! What a caller has left under every matching rule: a look at each of its cells that spends nothing.
//!
//! For people and for clients that plan ahead; a request that wants to pass calls [`Limiter::check`].

use tidegate_core::{Hits, Micros, Outcome, Timestamp};
use tidegate_rules::{Descriptor, Explanation, LimitExplanation, Mode, RuleOutcome, UnknownDomain};
use tidegate_store::Clock;

use crate::decision::{Decision, ReportKind};
use crate::limiter::Limiter;
use crate::request::{CheckRequest, DescriptorAsk};
use crate::source::Source;

/// What a caller has left.
#[derive(Clone, Debug)]
pub struct Usage {
    /// What made the decision.
    pub source: Source,
    /// Every cell of the caller.
    pub cells: Vec<CellUsage>,
    /// How every rule of the domain applies to the caller, as `explain` reports it.
    pub explanation: Explanation,
}

/// One cell of a caller.
#[derive(Clone, Debug)]
pub struct CellUsage {
    /// The rule.
    pub rule: String,
    /// The rule's mode: whether it may refuse.
    pub mode: Mode,
    /// The limit's name and algorithm.
    pub limit: LimitExplanation,
    /// Where the limit comes from: `limits`, a tier, an override.
    pub from: String,
    /// The cell's key: each part with its value.
    pub key: Vec<String>,
    /// The limit's quota.
    pub quota: u64,
    /// The period in which the quota refills, if the limit has one.
    pub window: Option<Micros>,
    /// The outcome that one more hit would get.
    pub outcome: Outcome,
}

impl Limiter {
    /// Looks at every cell of a caller: the decision that one more hit would get.
    ///
    /// # Errors
    /// When no rule has the domain.
    pub async fn look(&self, domain: &str, descriptor: Descriptor<'_>) -> Result<Decision, UnknownDomain> {
        let descriptors = [DescriptorAsk::of(descriptor).cost(Hits::ZERO)];
        let request = CheckRequest::new(domain, &descriptors).asking_every_cell();
        self.check(&request).await
    }

    /// What a caller has left under every rule.
    ///
    /// # Errors
    /// When no rule has the domain.
    pub async fn usage(&self, domain: &str, descriptor: Descriptor<'_>) -> Result<Usage, UnknownDomain> {
        Usage::of(&self.look(domain, descriptor).await?, domain, &descriptor, self.clock.now())
    }
}

impl Usage {
    /// What `looked`, of [`Limiter::look`], says rule by rule. It takes longer the more rules the domain has.
    ///
    /// # Errors
    /// When no rule has the domain.
    pub fn of(
        looked: &Decision,
        domain: &str,
        descriptor: &Descriptor<'_>,
        now: Timestamp,
    ) -> Result<Self, UnknownDomain> {
        let explanation = looked.snapshot().rules().explain(domain, descriptor, now)?;
        let mut cells = Vec::new();
        for explained in &explanation.rules {
            let RuleOutcome::Counts { mode, limits, from, key, .. } = &explained.outcome else { continue };
            let of_rule = looked
                .reports
                .iter()
                .filter(|report| looked.rule_of(report).is_some_and(|rule| rule.name() == explained.rule));
            // Both list a rule's limits in file order.
            for (limit, report) in limits.iter().zip(of_rule) {
                let ReportKind::Limited(numbers) = &report.kind else { continue };
                cells.push(CellUsage {
                    rule: explained.rule.clone(),
                    mode: *mode,
                    limit: limit.clone(),
                    from: from.clone(),
                    key: key.clone(),
                    quota: numbers.quota,
                    window: numbers.window,
                    outcome: numbers.outcome,
                });
            }
        }
        Ok(Usage { source: looked.source, cells, explanation })
    }
}
