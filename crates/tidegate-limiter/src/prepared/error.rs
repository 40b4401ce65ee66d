//! Why a prepared check has no answer.

use std::error::Error;
use std::fmt;

use tidegate_rules::UnknownDomain;

/// Why checks cannot be prepared, or one has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PreparedError {
    /// The rules have no such domain.
    UnknownDomain(UnknownDomain),
    /// A rule may give the request a lease, which a verdict cannot hold. Nothing was spent.
    TakesLease {
        /// The rule.
        rule: String,
    },
    /// This thread drives the limiter's runtime, so waiting for it would never end.
    RuntimeBlocked,
}

impl fmt::Display for PreparedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PreparedError::UnknownDomain(error) => error.fmt(f),
            PreparedError::TakesLease { rule } => write!(
                f,
                "rule {rule} has a concurrency limit, whose lease a prepared check cannot hold: use a check that returns a decision"
            ),
            PreparedError::RuntimeBlocked => crate::blocking::BlockingError::RuntimeBlocked.fmt(f),
        }
    }
}

impl Error for PreparedError {}

impl From<UnknownDomain> for PreparedError {
    fn from(error: UnknownDomain) -> Self {
        PreparedError::UnknownDomain(error)
    }
}
