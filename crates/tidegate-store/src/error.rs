//! Store errors, split by what the caller can do next.

use std::fmt;
use std::time::Duration;

/// The underlying cause of a failure.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A failure of the store. A refusal is an answer, not an error.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// Certainly not applied: safe to retry, here or elsewhere.
    NotApplied {
        /// The store's name for operators.
        endpoint: String,
        /// Its error, or why it is unreachable.
        source: BoxError,
    },
    /// Certainly not applied: the store reached the call after its latest start, and skipped it.
    TooLate {
        /// The store's name for operators.
        endpoint: String,
        /// The time it had.
        waited: Duration,
    },
    /// Certainly not applied: the store has no room for another record. A request without a `request_id` needs none.
    NoRoom {
        /// The store's name for operators.
        endpoint: String,
    },
    /// Not applied to the key that it is about, and the same call never will be: the store does not keep so much of one key. Other
    /// requests of the call may have been applied; the store itself is well, and its breaker is not told. Of a batch only those fail
    /// that are about such a key ([`BatchOutcomes::too_large`](crate::BatchOutcomes::too_large)), if the store can tell which.
    TooLarge {
        /// The store's name for operators.
        endpoint: String,
        /// What it said, and what to do about it.
        source: BoxError,
    },
    /// Possibly applied, because the connection was lost: a retry could spend twice.
    FateUnknown {
        /// The store's name for operators.
        endpoint: String,
        /// How the answer was lost.
        source: BoxError,
    },
    /// Possibly applied, because no answer came in time: a retry could spend twice.
    TimedOut {
        /// The store's name for operators.
        endpoint: String,
        /// The time it had.
        waited: Duration,
    },
}

impl StoreError {
    /// The store's name for operators.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        match self {
            StoreError::NotApplied { endpoint, .. }
            | StoreError::TooLate { endpoint, .. }
            | StoreError::NoRoom { endpoint }
            | StoreError::TooLarge { endpoint, .. }
            | StoreError::FateUnknown { endpoint, .. }
            | StoreError::TimedOut { endpoint, .. } => endpoint,
        }
    }

    /// Whether the request certainly changed nothing, so that a retry is safe.
    #[must_use]
    pub fn is_certainly_not_applied(&self) -> bool {
        matches!(self, StoreError::NotApplied { .. } | StoreError::TooLate { .. } | StoreError::NoRoom { .. })
    }

    /// Whether the only cause is a lack of time.
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
                write!(f, "store at {endpoint} skipped the request: past its deadline, after {waited:?}")
            }
            StoreError::NoRoom { endpoint } => {
                write!(f, "store at {endpoint} has no room for another record")
            }
            StoreError::TooLarge { endpoint, .. } => {
                write!(f, "store at {endpoint} does not keep so much of one key")
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
            StoreError::NotApplied { source, .. }
            | StoreError::TooLarge { source, .. }
            | StoreError::FateUnknown { source, .. } => Some(&**source),
            StoreError::TooLate { .. } | StoreError::NoRoom { .. } | StoreError::TimedOut { .. } => None,
        }
    }
}
