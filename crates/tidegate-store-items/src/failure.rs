//! Failed calls: why, and whether something was applied.

use std::time::Duration;

use tidegate_store::{BoxError, StoreError};

/// A call that failed.
#[derive(Debug)]
pub enum Failure {
    /// Certainly not applied.
    NotApplied(&'static str, BoxError),
    /// Certainly not applied: there was no time left to store anything.
    TooLate(Duration),
    /// Certainly not applied: the servers refuse because they have too much to do. They had so long.
    Busy(Duration),
    /// An item would be larger than the servers keep: they are well, and others of the call may have been stored.
    TooLarge(BoxError),
    /// Something was sent that stores, and its answer was lost.
    Lost(BoxError),
    /// Something was sent that stores, and not answered in time.
    TimedOut(Duration),
}

impl Failure {
    /// Its name in metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Failure::NotApplied(reason, _) => reason,
            Failure::Busy(_) => "overload",
            Failure::TooLarge(_) => "other",
            Failure::TooLate(_) | Failure::TimedOut(_) => "timeout",
            Failure::Lost(_) => "connection_lost",
        }
    }

    /// The same failure of a call that only read: nothing was applied.
    #[must_use]
    pub fn of_a_read(self) -> Self {
        match self {
            Failure::Lost(source) => Failure::NotApplied("connection_lost", source),
            Failure::TimedOut(waited) => Failure::TooLate(waited),
            other => other,
        }
    }

    /// The same failure of a call of which another part was stored.
    #[must_use]
    pub fn in_part(self) -> Self {
        match self {
            Failure::NotApplied(_, source) => Failure::Lost(source),
            Failure::TooLate(waited) | Failure::Busy(waited) => Failure::TimedOut(waited),
            other => other,
        }
    }

    /// What the caller of the store learns.
    #[must_use]
    pub fn into_store_error(self, endpoint: String) -> StoreError {
        match self {
            Failure::NotApplied(_, source) => StoreError::NotApplied { endpoint, source },
            // What is too busy is late: that is overload, and opens no breaker.
            Failure::TooLate(waited) | Failure::Busy(waited) => StoreError::TooLate { endpoint, waited },
            Failure::TooLarge(source) => StoreError::TooLarge { endpoint, source },
            Failure::Lost(source) => StoreError::FateUnknown { endpoint, source },
            Failure::TimedOut(waited) => StoreError::TimedOut { endpoint, waited },
        }
    }
}
