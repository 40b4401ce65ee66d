//! Hits that a client takes ahead and spends without asking.
//!
//! A take is a check of several hits, decided by whoever decides checks: the store, this node, or a failure policy. The counter is
//! the ledger: what a client took is spent there, whatever becomes of the client. Which rules lend, and for how long, they say.

use std::sync::Arc;

use tidegate_core::{Algorithm, Hits, Micros};
use tidegate_rules::{Descriptor, Match, MatchedLimits, UnknownDomain};

use crate::check::Matched;
use crate::decision::{Decision, Report};
use crate::limiter::Limiter;
use crate::request::{CheckRequest, DescriptorAsk};
use crate::snapshot::Snapshot;

/// How long hits may be held that no limit counts: then rules may have changed.
const UNCOUNTED_HELD: Micros = Micros::from_secs(1);

/// The answer to a client that takes hits.
#[derive(Debug)]
pub enum Take {
    /// These hits are the client's; none if the decision refuses.
    Decided {
        /// How many, at most as many as it asked for.
        granted: u64,
        /// How long it may hold them, from before it asked.
        held: Micros,
        /// The numbers, for the granted hits or, if there are none, for one.
        decision: Box<Decision>,
    },
    /// A rule that counts these requests lends no hits: ask for each of them.
    Ask {
        /// The rule, if callers may know of it.
        rule: Option<String>,
    },
}

impl Limiter {
    /// Takes up to `hits` for requests with these attributes: as many as every limit has, at most as many as one of them holds. One
    /// or two checks.
    ///
    /// # Errors
    /// When no rule set has this domain.
    pub async fn take(
        &self,
        domain: &str,
        descriptor: Descriptor<'_>,
        hits: Hits,
    ) -> Result<Take, UnknownDomain> {
        let snapshot = self.rules.load_full();
        let of_one = [DescriptorAsk::of(descriptor)];
        let matched = Matched::of(&snapshot, &CheckRequest::new(domain, &of_one), self)?;
        if let Some(asks) = matched.matches().iter().find(|found| !lends(found)) {
            let rule = asks.rule;
            return Ok(Take::Ask { rule: rule.is_visible().then(|| rule.name().to_owned()) });
        }
        let limits = || matched.matches().iter().flat_map(limits_of);
        let most = limits().map(|limit| limit.limit.quota()).min().unwrap_or(u64::MAX);
        let held = limits().filter_map(|limit| limit.held).min().unwrap_or(UNCOUNTED_HELD);
        let (granted, decision) =
            self.take_some(&snapshot, &matched, (domain, descriptor), hits.get().min(most)).await;
        let held = decision.reports().iter().filter_map(window_ends).fold(held, Micros::min);
        Ok(Take::Decided { granted, held, decision: Box::new(decision) })
    }

    /// Asks for all `hits` and, if they do not fit, for those that remain: at least one, so that a refusal says when one passes.
    async fn take_some(
        &self,
        snapshot: &Arc<Snapshot>,
        matched: &Matched<'_>,
        (domain, descriptor): (&str, Descriptor<'_>),
        hits: u64,
    ) -> (u64, Decision) {
        let all = self.take_all(snapshot, matched, (domain, descriptor), hits).await;
        if all.allowed || hits == 1 {
            return (if all.allowed { hits } else { 0 }, all);
        }
        let remaining = all.reports().iter().filter_map(Report::limit).map(|limit| limit.outcome.remaining);
        let fewer = remaining.min().unwrap_or_default().clamp(1, hits - 1);
        let some = self.take_all(snapshot, matched, (domain, descriptor), fewer).await;
        (if some.allowed { fewer } else { 0 }, some)
    }

    async fn take_all(
        &self,
        snapshot: &Arc<Snapshot>,
        matched: &Matched<'_>,
        (domain, descriptor): (&str, Descriptor<'_>),
        hits: u64,
    ) -> Decision {
        let descriptors = [DescriptorAsk::of(descriptor).cost(Hits::new(hits))];
        let mut decision = Decision::not_yet(snapshot, matched.asked_at);
        self.decide(matched, &CheckRequest::new(domain, &descriptors), &mut decision).await;
        decision
    }
}

/// Whether hits can be taken past this rule: what it counts, it lends.
fn lends(found: &Match<'_>) -> bool {
    limits_of(found).iter().all(|limit| limit.held.is_some())
}

fn limits_of<'r>(found: &Match<'r>) -> &'r [tidegate_rules::RuleLimit] {
    match found.limits {
        MatchedLimits::Enforce(limits) => limits,
        _ => &[],
    }
}

/// When the window ends that hits of this limit were taken from: the next one does not know of them.
fn window_ends(report: &Report) -> Option<Micros> {
    let limit = report.limit()?;
    (limit.algorithm == Algorithm::FixedWindow).then_some(limit.outcome.reset_after)
}
