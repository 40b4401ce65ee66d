//! Settings of the store other than its address.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate_store::{CallObserver, Clock, NoCallObserver};

/// Settings of a PostgreSQL store.
#[derive(Clone)]
#[non_exhaustive]
pub struct PostgresConfig {
    /// Part of every row's name, so that several fleets can share a database.
    pub key_prefix: String,
    /// The total time allowed for a call.
    pub timeout: Duration,
    /// How much longer to wait for the answer to a decision: for callers that have their own deadline and want to know what was
    /// spent after it.
    pub late_answers: Duration,
    /// The time allowed to connect, including TLS, login and setting up the schema.
    pub connect_timeout: Duration,
    /// The most connections per runtime: a server has one runtime per core, one for background work, and the prober's.
    pub connections: usize,
    /// Trust roots and client certificate for `sslmode=require`.
    pub tls: TlsFiles,
    /// Is notified of calls.
    pub observer: Arc<dyn CallObserver>,
    /// The clock that decides.
    pub time: TimeSource,
}

/// PEM files for TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsFiles {
    /// The certificate authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// The client certificate, if the server requires one.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}

/// The clock that decides.
#[derive(Clone)]
#[non_exhaustive]
pub enum TimeSource {
    /// The clock of the server: all limiters see the same time, whatever their own clocks show.
    Postgres,
    /// A clock set by a test. Rows then outlive their limits.
    Given(Arc<dyn Clock>),
}

impl Default for PostgresConfig {
    fn default() -> Self {
        PostgresConfig {
            key_prefix: "tidegate".to_owned(),
            timeout: Duration::from_millis(10),
            late_answers: Duration::ZERO,
            connect_timeout: Duration::from_secs(1),
            connections: 4,
            tls: TlsFiles::default(),
            observer: Arc::new(NoCallObserver),
            time: TimeSource::Postgres,
        }
    }
}

impl std::fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("key_prefix", &self.key_prefix)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// An invalid configuration.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {problem}")]
#[non_exhaustive]
pub struct ConfigError {
    /// The field to fix.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
    /// How to fix it.
    pub hint: &'static str,
}

/// Each method changes one setting of a configuration such as the default: `PostgresConfig::default().timeout(…)`.
impl PostgresConfig {
    /// Sets the part of every row's name.
    #[must_use]
    pub fn key_prefix(self, key_prefix: impl Into<String>) -> Self {
        PostgresConfig { key_prefix: key_prefix.into(), ..self }
    }

    /// Sets the time allowed for a call.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        PostgresConfig { timeout, ..self }
    }

    /// Sets how long after its deadline a call still accepts an answer.
    #[must_use]
    pub fn late_answers(self, late_answers: Duration) -> Self {
        PostgresConfig { late_answers, ..self }
    }

    /// Sets the time allowed to connect.
    #[must_use]
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        PostgresConfig { connect_timeout, ..self }
    }

    /// Sets the most connections per runtime.
    #[must_use]
    pub fn connections(self, connections: usize) -> Self {
        PostgresConfig { connections, ..self }
    }

    /// Sets the PEM files for TLS.
    #[must_use]
    pub fn tls(self, tls: TlsFiles) -> Self {
        PostgresConfig { tls, ..self }
    }

    /// Sets the observer.
    #[must_use]
    pub fn observer(self, observer: Arc<dyn CallObserver>) -> Self {
        PostgresConfig { observer, ..self }
    }

    /// Sets the clock that decides.
    #[must_use]
    pub fn time(self, time: TimeSource) -> Self {
        PostgresConfig { time, ..self }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let zero = |field, is_zero: bool| match is_zero {
            true => Err(ConfigError { field, problem: "it is zero".to_owned(), hint: "use more than that" }),
            false => Ok(()),
        };
        zero("timeout", self.timeout.is_zero())?;
        zero("connect_timeout", self.connect_timeout.is_zero())?;
        zero("connections", self.connections == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_of_zero_is_refused_by_name() {
        assert_eq!(PostgresConfig::default().connections(0).check().unwrap_err().field, "connections");
        assert!(PostgresConfig::default().check().is_ok());
    }
}
