//! Why a store did not answer, split by what may be done about it.

use std::fmt;
use std::time::Duration;

/// The cause of a failure, as its origin told it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A store that did not answer. A refusal is an answer, not one of these.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// Certainly not applied: safe to try again, here or elsewhere.
    NotApplied {
        /// Which store, as an operator knows it.
        endpoint: String,
        /// What it said, or why it could not be reached.
        source: BoxError,
    },
    /// Certainly not applied: the store came to it only when its time was over, and left it.
    TooLate {
        /// Which store, as an operator knows it.
        endpoint: String,
        /// How long it was given.
        waited: Duration,
    },
    /// Possibly applied, for the connection was lost: a retry could spend twice.
    FateUnknown {
        /// Which store, as an operator knows it.
        endpoint: String,
        /// How the answer was lost.
        source: BoxError,
    },
    /// Possibly applied, for no answer came in time: a retry could spend twice.
    TimedOut {
        /// Which store, as an operator knows it.
        endpoint: String,
        /// How long it was given.
        waited: Duration,
    },
}

impl StoreError {
    /// Which store, as an operator knows it.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        match self {
            StoreError::NotApplied { endpoint, .. }
            | StoreError::TooLate { endpoint, .. }
            | StoreError::FateUnknown { endpoint, .. }
            | StoreError::TimedOut { endpoint, .. } => endpoint,
        }
    }

    /// Whether the request certainly left no trace, so that it may be sent again.
    #[must_use]
    pub fn is_certainly_not_applied(&self) -> bool {
        matches!(self, StoreError::NotApplied { .. } | StoreError::TooLate { .. })
    }

    /// Whether time was all that was missing.
    #[must_use]
    pub fn is_late(&self) -> bool {
        matches!(self, StoreError::TimedOut { .. } | StoreError::TooLate { .. })
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::NotApplied { endpoint, .. } => {
                write!(f, "store at {endpoint} did not apply the request")
            }
            StoreError::TooLate { endpoint, waited } => {
                write!(f, "store at {endpoint} came to the request only after {waited:?}, and left it")
            }
            StoreError::FateUnknown { endpoint, .. } => {
                write!(f, "store at {endpoint} may or may not have applied the request")
            }
            StoreError::TimedOut { endpoint, waited } => {
                write!(f, "store at {endpoint} did not answer within {waited:?}")
            }
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StoreError::NotApplied { source, .. } | StoreError::FateUnknown { source, .. } => Some(&**source),
            StoreError::TooLate { .. } | StoreError::TimedOut { .. } => None,
        }
    }
}
