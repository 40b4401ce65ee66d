//! The address of the database, and the connections to it.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sqlx::any::{AnyPoolOptions, install_default_drivers};
use sqlx::{Any, AnyPool, Connection as _, Executor as _, Transaction};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::error::{Error, Result};
use crate::{file, schema};

/// The most connections: the control plane makes few queries.
const MOST_CONNECTIONS: u32 = 5;
/// The longest wait for a connection, including connecting.
const PATIENCE: Duration = Duration::from_secs(3);
/// The timeout of a query: two hundred thousand overrides on a busy machine.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The timeout of a change: the largest set of rules on a busy machine, behind another that is being written.
const CHANGE_WITHIN: Duration = Duration::from_secs(20);

/// Run on every new connection to PostgreSQL: a notice that a table already exists is not worth logging.
const POSTGRES_SETUP: &str = "SET client_min_messages = warning";

/// The file's name in the directory of the embedded database.
const FILE: &str = "tidegate.db";

/// Which database it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Embedded, one file.
    Sqlite,
    /// A server.
    Postgres,
}

impl Kind {
    /// Its name in answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Sqlite => "sqlite",
            Kind::Postgres => "postgres",
        }
    }
}

/// Where a database is: `sqlite:PATH` or `postgres://user:password@host/name`. Shown without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl {
    pub(crate) kind: Kind,
    pub(crate) url: String,
}

impl DatabaseUrl {
    /// The embedded database in `directory`.
    #[must_use]
    pub fn embedded(directory: &Path) -> Self {
        DatabaseUrl::file(&directory.join(FILE))
    }

    pub(crate) fn file(path: &Path) -> Self {
        DatabaseUrl { kind: Kind::Sqlite, url: path.display().to_string() }
    }

    /// Which database it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether there is certainly no such database. An embedded one is a file; whether a server has it is not known.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.path().is_some_and(|path| !path.is_symlink() && matches!(path.try_exists(), Ok(false)))
    }

    /// The file of an embedded database.
    pub(crate) fn path(&self) -> Option<&Path> {
        (self.kind == Kind::Sqlite).then(|| Path::new(&self.url))
    }

    /// The URL as the driver wants it.
    pub(crate) fn for_driver(&self) -> String {
        match self.kind {
            Kind::Postgres => self.url.clone(),
            Kind::Sqlite => {
                let path = self.url.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
                format!("sqlite://{path}?mode=rw")
            }
        }
    }
}

impl FromStr for DatabaseUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let url = || DatabaseUrl { kind: Kind::Postgres, url: text.to_owned() };
        if let Some(path) = text.strip_prefix("sqlite:").filter(|path| !path.trim_matches('/').is_empty()) {
            return Ok(DatabaseUrl::file(Path::new(path.strip_prefix("//").unwrap_or(path))));
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Ok(url());
        }
        Err(Error::Url { url: url().to_string() })
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == Kind::Sqlite {
            return write!(f, "sqlite:{}", self.url);
        }
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("", &self.url));
        let authority_ends = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(authority_ends);
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        // A query may hold a password, too.
        let path = path.split('?').next().unwrap_or_default();
        write!(f, "{scheme}://{host}{path}")
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Versions, overrides, tokens and audit in one database.
///
/// Cheap to clone; all clones share their connections.
#[derive(Clone, Debug)]
pub struct RuleStore {
    pub(crate) pool: AnyPool,
    pub(crate) url: DatabaseUrl,
    /// Wakes watchers in this process after a change made here.
    pub(crate) changed: Arc<watch::Sender<()>>,
    /// Set once an embedded database passed its integrity check.
    sound: Arc<OnceLock<()>>,
    /// The identity of an embedded database's file, once it passed its integrity check.
    file: Arc<OnceLock<(u64, u64)>>,
    /// The timeouts of a query and of a change.
    patience: [Duration; 2],
}

impl RuleStore {
    /// A store at `url`. It connects with the first query, which should be [`RuleStore::migrate`].
    ///
    /// # Errors
    /// The directory of an embedded database cannot be created, or the driver rejects the URL.
    pub fn open(url: &DatabaseUrl) -> Result<Self> {
        install_default_drivers();
        if let Some(path) = url.path() {
            file::make_directory(file::directory(path))?;
        }
        let kind = url.kind;
        let options = AnyPoolOptions::new().max_connections(MOST_CONNECTIONS).acquire_timeout(PATIENCE);
        let options = options.after_connect(move |connection, _| {
            Box::pin(async move {
                connection
                    .execute(match kind {
                        Kind::Sqlite => file::SETUP,
                        Kind::Postgres => POSTGRES_SETUP,
                    })
                    .await?;
                Ok(())
            })
        });
        // A query that timed out leaves its connection in the middle of an exchange. A silent server would hold the slot for
        // ever, and there are only five.
        let options = options.after_release(|connection, _| {
            Box::pin(async move {
                timeout(PATIENCE, connection.ping()).await.unwrap_or_else(|_| Err(late()))?;
                Ok(true)
            })
        });
        let pool = options.connect_lazy(&url.for_driver())?;
        let changed = Arc::new(watch::Sender::new(()));
        let patience = [ANSWER_WITHIN, CHANGE_WITHIN];
        Ok(RuleStore {
            pool,
            url: url.clone(),
            changed,
            sound: Arc::default(),
            file: Arc::default(),
            patience,
        })
    }

    /// Sets the timeout for answers.
    #[must_use]
    pub fn answering_within(self, patience: Duration) -> Self {
        RuleStore { patience: [patience; 2], ..self }
    }

    /// Bounds the time of a query. A locked table, or a host that vanished, would otherwise block the follower of the
    /// database for ever, and keep it from following the other nodes meanwhile.
    pub(crate) async fn soon<T>(&self, read: impl Future<Output = sqlx::Result<T>>) -> Result<T> {
        self.check_place()?;
        Ok(timeout(self.patience[0], read).await.unwrap_or_else(|_| Err(late()))?)
    }

    /// Bounds the time of a change, which is one transaction: applied whole or not at all. Without an answer it is unknown
    /// which: the server may have received the commit.
    pub(crate) async fn change<T, E: From<Error>>(
        &self,
        change: impl Future<Output = std::result::Result<T, E>>,
    ) -> std::result::Result<T, E> {
        self.check_place()?;
        timeout(self.patience[1], change)
            .await
            .unwrap_or_else(|_| Err(Error::InDoubt { source: late() }.into()))
    }

    /// Brings the schema up to date: safe to call concurrently from many nodes, and repeatedly.
    ///
    /// # Errors
    /// The database does not answer, is damaged, or was changed by a newer release.
    pub async fn migrate(&self) -> Result<()> {
        self.check_place()?;
        if let Some(path) = self.url.path()
            && self.sound.get().is_none()
        {
            file::make_if_absent(&self.url).await?;
            file::check(&self.url).await?;
            file::make_private(path);
            let _ = self.sound.set(());
        }
        schema::migrate(&self.pool, self.url.kind).await?;
        if let Some(file) = self.url.path().and_then(file::identity) {
            let _ = self.file.set(file);
        }
        Ok(())
    }

    /// Whether others than its owner may read an embedded database.
    #[must_use]
    pub fn is_open_to_others(&self) -> bool {
        self.url.path().is_some_and(|path| !file::is_private(path))
    }

    /// A deleted or replaced file can still be written to by a process that has it open, and the data would be lost.
    fn check_place(&self) -> Result<()> {
        match self.file.get() {
            Some(file) if self.url.path().and_then(file::identity) != Some(*file) => {
                Err(Error::Replaced { path: self.url.url.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> &DatabaseUrl {
        &self.url
    }

    /// Closes all connections; queries in progress finish first.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

fn late() -> sqlx::Error {
    sqlx::Error::Io(ErrorKind::TimedOut.into())
}

/// Commits, and reports if the result is unknown.
pub(crate) async fn commit(transaction: Transaction<'_, Any>) -> Result<()> {
    transaction.commit().await.map_err(|source| match source {
        sqlx::Error::Database(_) => Error::Unavailable { source },
        source => Error::InDoubt { source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for url in ["postgres://me:secret@db:5432/rules", "postgresql://me@db/rules?password=secret"] {
            let shown =
                format!("{:?} {}", url.parse::<DatabaseUrl>().unwrap(), url.parse::<DatabaseUrl>().unwrap());
            assert!(!shown.contains("secret") && shown.contains("db"), "{shown}");
        }
        let wrong = "mysql://me:secret@db/rules".parse::<DatabaseUrl>().unwrap_err().to_string();
        assert!(!wrong.contains("secret"), "{wrong}");
    }

    #[test]
    fn a_path_may_hold_what_means_something_in_a_url() {
        let url: DatabaseUrl = "sqlite:/tmp/50% off?/#1.db".parse().unwrap();
        assert_eq!(url.for_driver(), "sqlite:///tmp/50%25 off%3f/%231.db?mode=rw");
    }
}
