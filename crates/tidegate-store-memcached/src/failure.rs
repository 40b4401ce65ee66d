//! Failed calls: why, and whether something was applied.

use std::time::Duration;

use tidegate_store::{BoxError, StoreError};

/// A call that failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Certainly not applied.
    NotApplied(&'static str, BoxError),
    /// Certainly not applied: there was no time left to store anything.
    TooLate(Duration),
    /// Something was sent that stores, and its answer was lost.
    Lost(BoxError),
    /// Something was sent that stores, and not answered in time.
    TimedOut(Duration),
}

impl Failure {
    /// Its name in metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Failure::NotApplied(reason, _) => reason,
            Failure::TooLate(_) | Failure::TimedOut(_) => "timeout",
            Failure::Lost(_) => "connection_lost",
        }
    }

    /// The same failure of a call that only read: nothing was applied.
    pub(crate) fn of_a_read(self) -> Self {
        match self {
            Failure::Lost(source) => Failure::NotApplied("connection_lost", source),
            Failure::TimedOut(waited) => Failure::TooLate(waited),
            other => other,
        }
    }

    /// The same failure of a call of which another part was stored.
    pub(crate) fn in_part(self) -> Self {
        match self {
            Failure::NotApplied(_, source) => Failure::Lost(source),
            Failure::TooLate(waited) => Failure::TimedOut(waited),
            other => other,
        }
    }

    pub(crate) fn into_store_error(self, endpoint: String) -> StoreError {
        match self {
            Failure::NotApplied(_, source) => StoreError::NotApplied { endpoint, source },
            Failure::TooLate(waited) => StoreError::TooLate { endpoint, waited },
            Failure::Lost(source) => StoreError::FateUnknown { endpoint, source },
            Failure::TimedOut(waited) => StoreError::TimedOut { endpoint, waited },
        }
    }
}

/// A server's refusal, in its words, with what to do about it.
pub(crate) fn refused(said: &str) -> Failure {
    if said.contains("too large") {
        let why = format!("{said} (use a sliding_window for so large a limit, or raise the server's -I)");
        return Failure::NotApplied("other", why.into());
    }
    if said.contains("out of memory") {
        return Failure::NotApplied("out_of_memory", format!("{said} (raise the server's -m)").into());
    }
    Failure::NotApplied("other", said.to_owned().into())
}
