//! Errors of the rule store.

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be reached, or the connection broke: nothing was acknowledged.
    #[error("the database does not answer")]
    Unavailable {
        /// The driver's error.
        #[source]
        source: sqlx::Error,
    },
    /// The connection broke, or timed out, during a change: it was applied whole or not at all, but it is unknown which.
    #[error("the database does not answer, and whether the change was made is not known")]
    InDoubt {
        /// The driver's error.
        #[source]
        source: sqlx::Error,
    },
    /// A newer release has changed it.
    #[error("the database has schema {found}, and this release knows schemas up to {known}")]
    NewerSchema {
        /// Its schema.
        found: i64,
        /// The newest schema that this release knows.
        known: i64,
    },
    /// The file of an embedded database is corrupt.
    #[error("{path} is damaged: {what}")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong with it.
        what: String,
    },
    /// The file of an embedded database is there, and cannot be opened: no rights, locked, no file at all.
    #[error("cannot open {path}")]
    Unusable {
        /// The file.
        path: String,
        /// The system's or the driver's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file of an embedded database is not there, and cannot be made.
    #[error("cannot make {path}")]
    NotMade {
        /// The file.
        path: String,
        /// The system's or the driver's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file of an embedded database was moved, deleted or replaced.
    #[error(
        "{path} was deleted or replaced while this node had it open: put it back, or start the node again"
    )]
    Replaced {
        /// The file.
        path: String,
    },
    /// The URL does not name a database.
    #[error("`{url}` names no database")]
    Url {
        /// The URL, without its password.
        url: String,
    },
    /// A bound is reached.
    #[error("there are {most} {what} already")]
    Full {
        /// What is bounded.
        what: &'static str,
        /// The bound.
        most: usize,
    },
    /// A token that was made with a sign-in link makes links for browsers alone.
    #[error("this link is of a token that was itself made with a link, and cannot become another token")]
    TokenOfToken,
    /// The system provides no random bytes.
    #[error("the system gives no random bytes")]
    NoEntropy,
    /// The embedded database's directory is not usable.
    #[error("cannot use {path}")]
    Directory {
        /// The directory.
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl From<sqlx::Error> for Error {
    fn from(source: sqlx::Error) -> Self {
        Error::Unavailable { source }
    }
}

/// The result type of this crate.
pub(crate) type Result<T> = std::result::Result<T, Error>;
