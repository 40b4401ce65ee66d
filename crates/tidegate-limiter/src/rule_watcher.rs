//! What each rule said of a request, and who is told.

use tidegate_rules::Variant;

use crate::source::Source;

/// Receives the results of one rule.
pub trait RuleWatcher: Send + Sync {
    /// The rule took part in a decision: once per request, refused if any of its limits refused.
    fn decided(&self, result: RuleResult, source: Source);

    /// As [`RuleWatcher::decided`] and called in addition to it, for a request on one side of the rule's experiment.
    fn decided_in_experiment(&self, _variant: Variant, _result: RuleResult) {}

    /// Hits of one descriptor, as reported by an observer ([`Decided::count_hits`](crate::Decided::count_hits)); the limiter itself never calls this.
    fn hits(&self, _hits: &RuleHits) {}
}

/// The hits that one descriptor requested from one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleHits {
    /// The count.
    pub hits: u64,
    /// How many of them lie above four fifths of the limit, and within it; 0 if they were refused.
    pub near: u64,
    /// The result of the rule.
    pub result: RuleResult,
    /// What made the decision.
    pub source: Source,
}

impl RuleHits {
    /// Hits with their result, and how many of them were near the limit.
    #[must_use]
    pub fn new(result: RuleResult, source: Source, hits: u64, near: u64) -> Self {
        RuleHits { hits, near, result, source }
    }
}

/// What became of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestResult {
    /// It may pass.
    Allowed,
    /// A rule refused it.
    Refused,
    /// It was shed before any rule decided, because the backend is overloaded.
    Shed,
}

impl RequestResult {
    /// All variants, for per-variant metrics.
    pub const ALL: [RequestResult; 3] = [RequestResult::Allowed, RequestResult::Refused, RequestResult::Shed];

    /// The name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RequestResult::Allowed => "allowed",
            RequestResult::Refused => "refused",
            RequestResult::Shed => "shed",
        }
    }

    pub(crate) fn of(allowed: bool) -> Self {
        if allowed { RequestResult::Allowed } else { RequestResult::Refused }
    }
}

/// The result of one rule for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RuleResult {
    /// Its limits admitted the request.
    Allowed,
    /// One of its limits refused.
    Refused,
    /// One of its limits would have refused, were the rule not in shadow mode.
    ShadowRefused,
    /// It matched and has no limit for this request.
    Unlimited,
    /// Skipped because an attribute of its key is missing.
    KeyMissingSkipped,
    /// Refused because an attribute of its key is missing.
    KeyMissingRefused,
}

impl RuleResult {
    /// All variants, for per-variant metrics.
    pub const ALL: [RuleResult; 6] = [
        RuleResult::Allowed,
        RuleResult::Refused,
        RuleResult::ShadowRefused,
        RuleResult::Unlimited,
        RuleResult::KeyMissingSkipped,
        RuleResult::KeyMissingRefused,
    ];

    /// Combines two partial results of a rule: a refusal wins.
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

    /// The name in metrics.
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
