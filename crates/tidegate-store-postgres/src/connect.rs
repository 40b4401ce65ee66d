//! Opens connections: to the first host that takes writes, of a version that works, with the schema in place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Connection, NoTls};

use crate::config::{ConfigError, PostgresConfig};
use crate::failure::explain;
#[cfg(feature = "tls")]
use crate::tls::Tls;
use crate::url::PostgresUrl;

const SCHEMA: &str = include_str!("schema.sql");
/// The oldest version that scans a range of pages without an index, as the sweep does.
const OLDEST: i32 = 140_000;
/// Nodes that start at the same time create the schema one after another.
const SETUP_LOCK: i64 = 0x7469_6465_6761_7465;
/// The name of the function that the schema creates last: where it is, the rest was.
const IS_SET_UP: &str = "SELECT current_setting('server_version_num')::int, \
                         EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
                                 WHERE n.nspname = 'tidegate' AND p.proname = 'sweep_1') \
                         AND EXISTS (SELECT FROM pg_tables WHERE schemaname = 'tidegate' AND tablename = 'cells')";

/// An open connection. Dropping it closes the socket at once: an answer that nobody waits for must not keep it.
pub(crate) struct Link {
    pub(crate) client: Client,
    driver: AbortHandle,
    was_interrupted: Arc<AtomicBool>,
}

impl Link {
    fn new<S, T>(client: Client, connection: Connection<S, T>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let was_interrupted = Arc::new(AtomicBool::new(false));
        let is_known = Arc::clone(&was_interrupted);
        let driver = tokio::spawn(async move {
            // It is dropped after that is known: only then do calls under way learn of its end.
            let mut connection = connection;
            let ended = (&mut connection).await;
            let idle = Some(&SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT);
            is_known.store(ended.is_err_and(|error| error.code() == idle), Ordering::SeqCst);
        });
        Link { client, driver: driver.abort_handle(), was_interrupted }
    }

    /// Whether the server ended it, because a transaction stood still on it.
    pub(crate) fn was_interrupted(&self) -> bool {
        self.was_interrupted.load(Ordering::SeqCst)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Opens connections to one database.
pub(crate) struct Connector {
    config: tokio_postgres::Config,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    within: Duration,
}

impl Connector {
    pub(crate) fn new(url: &PostgresUrl, config: &PostgresConfig) -> Result<Self, ConfigError> {
        #[cfg(not(feature = "tls"))]
        if url.is_encrypted() {
            return Err(ConfigError {
                field: "url",
                problem: "it asks for TLS, which this build does not have".to_owned(),
                hint: "turn on the feature `postgres-tls` of tidegate (`tls` of tidegate-store-postgres)",
            });
        }
        Ok(Connector {
            config: url.connector(config.connect_timeout),
            #[cfg(feature = "tls")]
            tls: url.is_encrypted().then(|| Tls::new(&config.tls)).transpose()?,
            within: config.connect_timeout,
        })
    }

    /// A connection that can be used, or why there is none, on one line.
    pub(crate) async fn connect(&self) -> Result<Link, String> {
        match timeout(self.within, self.try_connect()).await {
            Ok(connected) => connected,
            Err(_) => Err(format!("no connection within {:?}", self.within)),
        }
    }

    async fn try_connect(&self) -> Result<Link, String> {
        let link = self.open().await.map_err(|error| explain(&error))?;
        let found = link.client.query_typed_one(IS_SET_UP, &[]).await.map_err(|error| explain(&error))?;
        let (version, is_set_up): (i32, bool) = (found.get(0), found.get(1));
        check_version(version)?;
        if !is_set_up {
            set_up(&link.client).await.map_err(|error| explain(&error))?;
        }
        Ok(link)
    }

    async fn open(&self) -> Result<Link, tokio_postgres::Error> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let (client, connection) = self.config.connect(tls.clone()).await?;
            return Ok(Link::new(client, connection));
        }
        let (client, connection) = self.config.connect(NoTls).await?;
        Ok(Link::new(client, connection))
    }
}

fn check_version(version: i32) -> Result<(), String> {
    if version >= OLDEST {
        return Ok(());
    }
    Err(format!("PostgreSQL {} is too old: 14 or newer is needed", version / 10_000))
}

async fn set_up(client: &Client) -> Result<(), tokio_postgres::Error> {
    let statements = format!(
        "BEGIN; SET LOCAL client_min_messages = warning; SELECT pg_advisory_xact_lock({SETUP_LOCK}); {SCHEMA} COMMIT;"
    );
    client.batch_execute(&statements).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_too_old_is_named_with_the_oldest_that_works() {
        assert_eq!(check_version(140_000), Ok(()));
        assert_eq!(check_version(139_999).unwrap_err(), "PostgreSQL 13 is too old: 14 or newer is needed");
    }
}
