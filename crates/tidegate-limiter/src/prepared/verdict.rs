//! The answer to a prepared check.

use std::time::Duration;

use tidegate_core::{Micros, Outcome};

use super::shortcut::Shortcut;
use crate::decision::Decision;
use crate::source::Source;

/// The answer to a check of a [`Prepared`](super::Prepared): the numbers of the rule that decided. They are those of the
/// [`Decision`] that the same check gets otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a refused request must not pass"]
pub struct Verdict<'p> {
    allowed: bool,
    source: Source,
    delay: Micros,
    rule: Option<&'p str>,
    numbers: Option<Numbers>,
    retry_after: Option<Micros>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    limit: u64,
    window: Option<Micros>,
    remaining: u64,
    reset_after: Micros,
}

impl<'p> Verdict<'p> {
    #[inline]
    pub(super) fn short(shortcut: &'p Shortcut, outcome: &Outcome) -> Self {
        Verdict {
            allowed: outcome.is_admitted(),
            source: shortcut.source,
            delay: outcome.delay(),
            rule: Some(&shortcut.rule),
            numbers: Some(Numbers {
                limit: shortcut.quota,
                window: shortcut.window,
                remaining: outcome.remaining,
                reset_after: outcome.reset_after,
            }),
            retry_after: outcome.retry_after(),
        }
    }

    pub(super) fn of(decision: &Decision, rule: Option<&'p str>) -> Self {
        let governing = decision.governing();
        let numbers = governing.and_then(|report| report.limit()).map(|limit| Numbers {
            limit: limit.quota,
            window: limit.window,
            remaining: limit.outcome.remaining,
            reset_after: limit.outcome.reset_after,
        });
        Verdict {
            allowed: decision.allowed,
            source: decision.source,
            delay: decision.delay,
            rule,
            numbers,
            retry_after: governing.filter(|_| !decision.allowed).and_then(|report| report.retry_after()),
        }
    }

    /// Whether the request may pass.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// What made the decision.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// The name of the governing rule: the one that refused, or has the least left.
    #[must_use]
    pub fn rule(&self) -> Option<&'p str> {
        self.rule
    }

    /// The quota of the governing limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        Some(self.numbers?.limit)
    }

    /// The period in which the quota of the governing limit refills, if it has one.
    #[must_use]
    pub fn window(&self) -> Option<Duration> {
        Some(self.numbers?.window?.into())
    }

    /// Hits left in the governing limit; `None` if no limit counted.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        Some(self.numbers?.remaining)
    }

    /// Time until the governing limit's quota is full again.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        Some(self.numbers?.reset_after.into())
    }

    /// How long a refused caller must wait before a retry can pass; `None` if it was not refused or can never pass.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after.map(Duration::from)
    }

    /// How long an allowed caller must wait before it proceeds (leaky buckets); usually zero.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.delay.into()
    }
}
