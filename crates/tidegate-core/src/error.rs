//! Why a limit is invalid, for the author of the rule.

use std::fmt;

/// A limit whose numbers are invalid or do not fit the exact arithmetic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitError {
    /// The field to fix, by its name in a rule: `limit`, `window`, `rate`, `burst`, `max_delay`, `min_interval`, `ttl`.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
    /// How to fix it.
    pub hint: String,
}

impl LimitError {
    pub(crate) fn new(field: &'static str, problem: impl Into<String>, hint: impl Into<String>) -> Self {
        LimitError { field, problem: problem.into(), hint: hint.into() }
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl std::error::Error for LimitError {}
