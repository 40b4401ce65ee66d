//! What can go wrong with a database.

/// Why the rule store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be reached, or broke off: nothing was acknowledged.
    #[error("the database does not answer")]
    Unavailable {
        /// What the driver says.
        #[source]
        source: sqlx::Error,
    },
    /// It broke off, or said nothing, when a change was to be made: whole or not at all, but which of both is not known.
    #[error("the database does not answer, and whether the change was made is not known")]
    InDoubt {
        /// What the driver says.
        #[source]
        source: sqlx::Error,
    },
    /// Another, newer release has changed it.
    #[error("the database has schema {found}, and this release knows schemas up to {known}")]
    NewerSchema {
        /// What it has.
        found: i64,
        /// What this release knows.
        known: i64,
    },
    /// The file of an embedded database cannot be read any more.
    #[error("{path} is damaged: {what}")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong with it.
        what: String,
    },
    /// The file of an embedded database is no longer where it was, or another is.
    #[error(
        "{path} was deleted or replaced while this node had it open: put it back, or start the node again"
    )]
    Replaced {
        /// The file.
        path: String,
    },
    /// The URL names no database.
    #[error("`{url}` names no database")]
    Url {
        /// What was given, without its password.
        url: String,
    },
    /// There are as many as there may be.
    #[error("there are {most} {what} already")]
    Full {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        most: usize,
    },
    /// The system gives no random bytes.
    #[error("the system gives no random bytes")]
    NoEntropy,
    /// The embedded database's directory cannot be used.
    #[error("cannot use {path}")]
    Directory {
        /// The directory.
        path: String,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
}

impl From<sqlx::Error> for Error {
    fn from(source: sqlx::Error) -> Self {
        Error::Unavailable { source }
    }
}

/// The usual result.
pub(crate) type Result<T> = std::result::Result<T, Error>;
