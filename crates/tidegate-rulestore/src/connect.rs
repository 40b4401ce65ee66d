//! The address of the database, and the connections to it.

use std::fmt;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sqlx::any::{AnyPoolOptions, install_default_drivers};
use sqlx::{Any, AnyPool, Connection as _, Executor as _, Row as _, Transaction};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::error::{Error, Result};
use crate::schema;

/// The most connections: the control plane makes few queries.
const MOST_CONNECTIONS: u32 = 5;
/// The longest wait for a connection, including connecting.
const PATIENCE: Duration = Duration::from_secs(3);
/// The timeout of a query: two hundred thousand overrides on a busy machine.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The timeout of a change: the largest set of rules on a busy machine, behind another that is being written.
const CHANGE_WITHIN: Duration = Duration::from_secs(20);

/// Run on every new SQLite connection. Readers do not wait for the one writer (WAL), a writer waits for another instead of
/// failing, and acknowledged changes survive a power cut.
const SQLITE_SETUP: &str = "PRAGMA journal_mode = WAL; PRAGMA busy_timeout = 5000; PRAGMA synchronous = FULL; \
    PRAGMA foreign_keys = ON;";
/// The same for PostgreSQL: a notice that a table already exists is not worth logging.
const POSTGRES_SETUP: &str = "SET client_min_messages = warning";

/// The header of every SQLite file.
const SQLITE_HEAD: &[u8; 16] = b"SQLite format 3\0";

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

    fn file(path: &Path) -> Self {
        DatabaseUrl { kind: Kind::Sqlite, url: path.display().to_string() }
    }

    /// Which database it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether the database exists, as far as can be told without connecting: an embedded one is a file.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.kind != Kind::Sqlite || Path::new(&self.url).exists()
    }

    /// The directory of an embedded database.
    fn directory(&self) -> Option<PathBuf> {
        let parent = Path::new(&self.url).parent().filter(|parent| !parent.as_os_str().is_empty());
        (self.kind == Kind::Sqlite).then(|| parent.unwrap_or(Path::new(".")).to_owned())
    }

    /// The URL as the driver wants it.
    pub(crate) fn for_driver(&self) -> String {
        match self.kind {
            Kind::Postgres => self.url.clone(),
            Kind::Sqlite => {
                let path = self.url.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
                format!("sqlite://{path}?mode=rwc")
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
        if let Some(directory) = url.directory() {
            make_private(&directory)
                .map_err(|source| Error::Directory { path: directory.display().to_string(), source })?;
        }
        let kind = url.kind;
        let options = AnyPoolOptions::new().max_connections(MOST_CONNECTIONS).acquire_timeout(PATIENCE);
        let options = options.after_connect(move |connection, _| {
            Box::pin(async move {
                connection
                    .execute(match kind {
                        Kind::Sqlite => SQLITE_SETUP,
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
        if self.url.kind == Kind::Sqlite && self.sound.get().is_none() {
            self.check_file().await?;
            let _ = self.sound.set(());
        }
        schema::migrate(&self.pool, self.url.kind).await?;
        if let Some(file) = self.file_in_place() {
            let _ = self.file.set(file);
        }
        Ok(())
    }

    /// The identity of the file at the path of an embedded database.
    fn file_in_place(&self) -> Option<(u64, u64)> {
        use std::os::unix::fs::MetadataExt as _;
        if self.url.kind != Kind::Sqlite {
            return None;
        }
        std::fs::metadata(&self.url.url).ok().map(|file| (file.dev(), file.ino()))
    }

    /// A deleted or replaced file can still be written to by a process that has it open, and the data would be lost.
    fn check_place(&self) -> Result<()> {
        match self.file.get() {
            Some(file) if self.file_in_place() != Some(*file) => {
                Err(Error::Replaced { path: self.url.url.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Whether the file is an intact database: damage should be reported before anything is written.
    async fn check_file(&self) -> Result<()> {
        let path = self.url.url.clone();
        let damaged = |what: String| Error::Damaged { path: path.clone(), what };
        // A file of another kind fails every connection, with an error that only says that none was made.
        let is_other = std::fs::File::open(&path).is_ok_and(|mut file| {
            let mut head = [0; SQLITE_HEAD.len()];
            file.read_exact(&mut head).is_ok() && head != *SQLITE_HEAD
        });
        if is_other {
            return Err(damaged("it is no SQLite database".to_owned()));
        }
        let checked = sqlx::query("PRAGMA quick_check(1)").fetch_one(&self.pool).await;
        match checked.and_then(|row| row.try_get::<String, _>(0)) {
            Ok(told) if told == "ok" => Ok(()),
            Ok(told) => Err(damaged(told)),
            Err(sqlx::Error::Database(error)) if is_damage(&*error) => {
                Err(damaged(error.message().to_owned()))
            }
            Err(error) => Err(error.into()),
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

/// SQLite's codes for a corrupt file; extended codes add more detail.
fn is_damage(error: &dyn sqlx::error::DatabaseError) -> bool {
    const CORRUPT: u32 = 11;
    const NOT_A_DATABASE: u32 = 26;
    let code = error.code().and_then(|code| code.parse::<u32>().ok());
    code.is_some_and(|code| [CORRUPT, NOT_A_DATABASE].contains(&(code & 0xff)))
}

/// Only the owner may read it: it contains digests of tokens, and the limits of keys.
fn make_private(directory: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
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
        assert_eq!(url.for_driver(), "sqlite:///tmp/50%25 off%3f/%231.db?mode=rwc");
    }
}
