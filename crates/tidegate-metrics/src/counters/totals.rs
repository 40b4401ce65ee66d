//! Sums of decisions, as charts show them.

use tidegate_limiter::{RequestResult, RuleResult, Source};

/// A rule's decisions, or a domain's requests, since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Admitted, or not limited.
    pub allowed: u64,
    /// Refused; of a rule, by its limits: what a failure policy refuses says nothing about them, and is in `fallback` alone.
    pub refused: u64,
    /// Would have been refused, if the rule were not in shadow.
    pub shadow_refused: u64,
    /// Decided without the store, because it failed or was too busy.
    pub fallback: u64,
    /// Requests only: rules decide nothing of a shed request.
    pub shed: u64,
}

impl Totals {
    pub(super) fn add_requests(&mut self, result: RequestResult, source: Source, count: u64) {
        match result {
            RequestResult::Allowed => self.allowed += count,
            RequestResult::Refused => self.refused += count,
            _ => self.shed += count,
        }
        self.add_source(source, count);
    }

    pub(super) fn add(&mut self, result: RuleResult, source: Source, count: u64) {
        match result {
            RuleResult::Allowed | RuleResult::Unlimited => self.allowed += count,
            RuleResult::Refused | RuleResult::ShadowRefused if source.is_without_the_store() => {}
            RuleResult::Refused | RuleResult::KeyMissingRefused => self.refused += count,
            RuleResult::ShadowRefused => self.shadow_refused += count,
            _ => {}
        }
        self.add_source(source, count);
    }

    fn add_source(&mut self, source: Source, count: u64) {
        if source.is_without_the_store() {
            self.fallback += count;
        }
    }

    /// The increase since `before`.
    #[must_use]
    pub fn since(self, before: Totals) -> Totals {
        Totals {
            allowed: self.allowed.saturating_sub(before.allowed),
            refused: self.refused.saturating_sub(before.refused),
            shadow_refused: self.shadow_refused.saturating_sub(before.shadow_refused),
            fallback: self.fallback.saturating_sub(before.fallback),
            shed: self.shed.saturating_sub(before.shed),
        }
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Totals) -> Totals {
        Totals {
            allowed: self.allowed + other.allowed,
            refused: self.refused + other.refused,
            shadow_refused: self.shadow_refused + other.shadow_refused,
            fallback: self.fallback + other.fallback,
            shed: self.shed + other.shed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_without_the_store_is_none_of_a_rules_limit() {
        let mut rule = Totals::default();
        rule.add(RuleResult::Refused, Source::Store, 2);
        rule.add(RuleResult::Refused, Source::FallbackClosed, 10);
        rule.add(RuleResult::Refused, Source::OverloadLocal, 100);
        rule.add(RuleResult::Allowed, Source::FallbackLocal, 1_000);
        assert_eq!((rule.refused, rule.fallback, rule.allowed), (2, 1_110, 1_000));
    }

    #[test]
    fn a_request_that_a_policy_refused_was_refused() {
        let mut requests = Totals::default();
        requests.add_requests(RequestResult::Refused, Source::FallbackClosed, 10);
        assert_eq!((requests.refused, requests.fallback), (10, 10));
    }
}
