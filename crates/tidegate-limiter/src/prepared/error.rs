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
    /// No rule counts requests with these attributes, because they lack one by which it counts: checks would limit nobody. Usually a
    /// typing mistake.
    NotCounted {
        /// The first such rule.
        rule: String,
        /// The attribute of its key that is missing.
        attribute: String,
        /// The attributes that were given.
        given: Vec<String>,
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
            PreparedError::NotCounted { rule, attribute, given } => {
                let given =
                    if given.is_empty() { "none".to_owned() } else { format!("`{}`", given.join("`, `")) };
                write!(
                    f,
                    "rule {rule} counts by `{attribute}`, which these requests lack, and no other rule counts them: they would not be \
                     limited; their attributes are {given}: add `{attribute}`, or set `on_missing_key: refuse` in the rule"
                )
            }
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
