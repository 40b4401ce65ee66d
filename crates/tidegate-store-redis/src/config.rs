//! Settings of the store other than its address.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate_store::{Clock, SystemClock};

use crate::observer::{NoObserver, Observer};
use crate::url::Credentials;

/// Settings of a Redis store.
#[derive(Clone)]
#[non_exhaustive]
pub struct RedisConfig {
    /// The prefix of every key, so that several fleets can share a Redis.
    pub key_prefix: String,
    /// The total time allowed for a call.
    pub timeout: Duration,
    /// How much longer to wait for the answer to a decision, on one server: for callers that have their own deadline and want
    /// to know what was spent after it. Requests over several servers are undone instead.
    pub late_answers: Duration,
    /// The time allowed to connect, including TLS and login.
    pub connect_timeout: Duration,
    /// The most calls in flight on one connection; further calls are rejected at once.
    pub max_in_flight: usize,
    /// Trust roots and client certificate for TLS URLs.
    pub tls: TlsFiles,
    /// The login for the sentinels; the URL has the one for the servers.
    pub sentinel_credentials: Credentials,
    /// Is notified of calls.
    pub observer: Arc<dyn Observer>,
    /// The clock that decides.
    pub time: TimeSource,
    /// This node's clock. It only estimates which calendar windows a script needs, and a call's latest start; it never affects a
    /// decision.
    pub node_clock: Arc<dyn Clock>,
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
    /// The clock of the Redis server that decides: all limiters see the same time, whatever their own clocks show.
    Redis,
    /// A clock set by a test. Keys then outlive their limits.
    Given(Arc<dyn Clock>),
}

impl Default for RedisConfig {
    fn default() -> Self {
        RedisConfig {
            key_prefix: "tidegate".to_owned(),
            timeout: Duration::from_millis(10),
            late_answers: Duration::ZERO,
            connect_timeout: Duration::from_secs(1),
            max_in_flight: 4_096,
            tls: TlsFiles::default(),
            sentinel_credentials: Credentials::default(),
            observer: Arc::new(NoObserver),
            time: TimeSource::Redis,
            node_clock: Arc::new(SystemClock::new()),
        }
    }
}

impl std::fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisConfig")
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

const LONGEST_PREFIX: usize = 64;

/// Each method changes one setting of a configuration such as the default: `RedisConfig::default().timeout(…)`.
impl RedisConfig {
    /// Sets the prefix of all keys.
    #[must_use]
    pub fn key_prefix(self, key_prefix: impl Into<String>) -> Self {
        RedisConfig { key_prefix: key_prefix.into(), ..self }
    }

    /// Sets the time allowed for a call.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        RedisConfig { timeout, ..self }
    }

    /// Sets how long after its deadline a call still accepts an answer.
    #[must_use]
    pub fn late_answers(self, late_answers: Duration) -> Self {
        RedisConfig { late_answers, ..self }
    }

    /// Sets the time allowed to connect.
    #[must_use]
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        RedisConfig { connect_timeout, ..self }
    }

    /// Sets the most calls in flight on a connection.
    #[must_use]
    pub fn max_in_flight(self, max_in_flight: usize) -> Self {
        RedisConfig { max_in_flight, ..self }
    }

    /// Sets the PEM files for TLS URLs.
    #[must_use]
    pub fn tls(self, tls: TlsFiles) -> Self {
        RedisConfig { tls, ..self }
    }

    /// Sets the login for the sentinels.
    #[must_use]
    pub fn sentinel_credentials(self, sentinel_credentials: Credentials) -> Self {
        RedisConfig { sentinel_credentials, ..self }
    }

    /// Sets the observer.
    #[must_use]
    pub fn observer(self, observer: Arc<dyn Observer>) -> Self {
        RedisConfig { observer, ..self }
    }

    /// Sets the clock that decides.
    #[must_use]
    pub fn time(self, time: TimeSource) -> Self {
        RedisConfig { time, ..self }
    }

    /// Sets this node's clock.
    #[must_use]
    pub fn node_clock(self, node_clock: Arc<dyn Clock>) -> Self {
        RedisConfig { node_clock, ..self }
    }
}

impl TlsFiles {
    /// Trusts the certificate authorities in this file.
    #[must_use]
    pub fn ca(self, ca: impl Into<PathBuf>) -> Self {
        TlsFiles { ca: Some(ca.into()), ..self }
    }

    /// Sets the client certificate and its private key.
    #[must_use]
    pub fn identity(self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        TlsFiles { certificate: Some(certificate.into()), key: Some(key.into()), ..self }
    }
}

impl RedisConfig {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let prefix = &self.key_prefix;
        let problem = if prefix.len() > LONGEST_PREFIX {
            Some((format!("it is {} bytes long", prefix.len()), "use at most 64 bytes"))
        } else if prefix.contains(['{', '}']) {
            Some((format!("`{prefix}` holds a brace"), "Redis Cluster reads braces as a hash tag: use none"))
        } else {
            None
        };
        if let Some((problem, hint)) = problem {
            return Err(ConfigError { field: "key_prefix", problem, hint });
        }
        let zero = |field, is_zero: bool| match is_zero {
            true => Err(ConfigError { field, problem: "it is zero".to_owned(), hint: "use more than that" }),
            false => Ok(()),
        };
        zero("timeout", self.timeout.is_zero())?;
        zero("connect_timeout", self.connect_timeout.is_zero())?;
        zero("max_in_flight", self.max_in_flight == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_with_a_brace_is_refused_by_name() {
        let config = RedisConfig { key_prefix: "a{b".to_owned(), ..RedisConfig::default() };
        assert_eq!(config.check().unwrap_err().field, "key_prefix");
        assert!(RedisConfig::default().check().is_ok());
    }

    #[test]
    fn a_bound_of_zero_is_refused_by_name() {
        let config = RedisConfig { max_in_flight: 0, ..RedisConfig::default() };
        assert_eq!(config.check().unwrap_err().field, "max_in_flight");
    }
}
