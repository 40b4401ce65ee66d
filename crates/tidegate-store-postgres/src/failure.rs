//! Failed calls: why, in the operator's words, and whether something was applied.

use std::time::Duration;

use tidegate_store::{BoxError, StoreError};
use tokio_postgres::error::SqlState;

/// A call that failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Certainly not applied: the transaction was never committed.
    NotApplied(&'static str, BoxError),
    /// Certainly not applied: there was no time left to commit it.
    TooLate(Duration),
    /// Certainly not applied: this node held its rows for so long that the server ended the transaction.
    Interrupted,
    /// The commit was sent, and its answer was lost.
    Lost(BoxError),
    /// The commit was sent, and not answered in time.
    TimedOut(Duration),
}

impl Failure {
    /// A failure before the commit was sent.
    pub(crate) fn before_commit(error: tokio_postgres::Error, waited: Duration) -> Self {
        match error.code() {
            // Another call held a row for all of the time there was.
            Some(&SqlState::LOCK_NOT_AVAILABLE) => Failure::TooLate(waited),
            code => Failure::NotApplied(reason(code), explain(&error).into()),
        }
    }

    /// Its name in metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Failure::NotApplied(reason, _) => reason,
            Failure::TooLate(_) | Failure::TimedOut(_) | Failure::Interrupted => "timeout",
            Failure::Lost(_) => "connection_lost",
        }
    }

    pub(crate) fn into_store_error(self, endpoint: String) -> StoreError {
        match self {
            Failure::NotApplied(_, source) => StoreError::NotApplied { endpoint, source },
            Failure::TooLate(waited) => StoreError::TooLate { endpoint, waited },
            Failure::Interrupted => {
                let source = "this node stopped between locking rows and writing them".into();
                StoreError::NotApplied { endpoint, source }
            }
            Failure::Lost(source) => StoreError::FateUnknown { endpoint, source },
            Failure::TimedOut(waited) => StoreError::TimedOut { endpoint, waited },
        }
    }
}

fn reason(code: Option<&SqlState>) -> &'static str {
    match code {
        None => "connection_lost",
        Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => "read_only",
        Some(&SqlState::DISK_FULL | &SqlState::OUT_OF_MEMORY) => "out_of_memory",
        Some(&SqlState::CANNOT_CONNECT_NOW) => "loading",
        Some(&SqlState::TOO_MANY_CONNECTIONS) => "overload",
        Some(
            &SqlState::INSUFFICIENT_PRIVILEGE
            | &SqlState::INVALID_PASSWORD
            | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        ) => "not_allowed",
        Some(_) => "other",
    }
}

/// The server's words on one line, and what to do about them.
pub(crate) fn explain(error: &tokio_postgres::Error) -> String {
    let Some(said) = error.as_db_error() else {
        let cause = std::error::Error::source(error).map_or_else(String::new, |cause| format!(": {cause}"));
        // The client's word for a host list of which none takes writes.
        let hint = if cause.contains("does not allow writes") {
            " (a read-only replica: name the primary, or all hosts, in the URL)"
        } else {
            ""
        };
        return format!("{error}{cause}{hint}");
    };
    let hint = match *said.code() {
        SqlState::INSUFFICIENT_PRIVILEGE => {
            " (the user needs CREATE on the database for the first start; later USAGE on the schema tidegate, EXECUTE on its \
             functions, and SELECT, INSERT, UPDATE and DELETE on its tables)"
        }
        SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_FUNCTION | SqlState::INVALID_SCHEMA_NAME => {
            " (part of the schema tidegate is missing: the next connection creates it)"
        }
        SqlState::INVALID_CATALOG_NAME => " (create the database, or correct the URL)",
        SqlState::TOO_MANY_CONNECTIONS => {
            " (raise max_connections, put PgBouncer before it, or use fewer nodes)"
        }
        SqlState::DISK_FULL => {
            " (the server's disk is full: free some of it, or move the table tidegate.cells to another tablespace; failure policies \
             decide until then)"
        }
        SqlState::READ_ONLY_SQL_TRANSACTION => " (a read-only replica: name the primary in the URL)",
        _ => "",
    };
    format!("{}{hint}", said.message())
}
