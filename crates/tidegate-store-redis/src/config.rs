//! How the store is used, beside where it is.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate_store::{Clock, SystemClock};

use crate::observer::{NoObserver, Observer};
use crate::url::Credentials;

/// How a store on Redis is used.
#[derive(Clone)]
#[non_exhaustive]
pub struct RedisConfig {
    /// What every key begins with, so that several fleets can share a Redis.
    pub key_prefix: String,
    /// How long a call may take, all told.
    pub timeout: Duration,
    /// For how much longer the answer to a decision is waited for, on one server: for those who have a deadline of their own,
    /// and want to know what was spent after it. Requests over several servers are undone instead.
    pub late_answers: Duration,
    /// How long making a connection may take, TLS and log-in included.
    pub connect_timeout: Duration,
    /// The most calls under way on one connection; more are turned away at once.
    pub max_in_flight: usize,
    /// What to trust and what to show where the URL asks for TLS.
    pub tls: TlsFiles,
    /// Who logs in at the sentinels; the URL says who does at the servers.
    pub sentinel_credentials: Credentials,
    /// Who hears of calls.
    pub observer: Arc<dyn Observer>,
    /// Whose time counts.
    pub time: TimeSource,
    /// This node's clock. It only helps to guess which calendar windows a script will need, and by when it should begin; what it
    /// shows makes no difference to any decision.
    pub node_clock: Arc<dyn Clock>,
}

/// PEM files for TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsFiles {
    /// The authorities to trust instead of the machine's.
    pub ca: Option<PathBuf>,
    /// The certificate to show, where the server asks for one.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}

/// Whose time counts.
#[derive(Clone)]
#[non_exhaustive]
pub enum TimeSource {
    /// That of the Redis server that decides: all limiters see the same, whatever their own clocks show.
    Redis,
    /// That of a clock which a test sets. Keys then outlive their limits.
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

/// A store that cannot be made as it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {problem}")]
#[non_exhaustive]
pub struct ConfigError {
    /// The field to change.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
    /// What would be right.
    pub hint: &'static str,
}

const LONGEST_PREFIX: usize = 64;

/// Each starts from another configuration, such as the default: `RedisConfig::default().timeout(…)`.
impl RedisConfig {
    /// The same with keys that begin with this.
    #[must_use]
    pub fn key_prefix(self, key_prefix: impl Into<String>) -> Self {
        RedisConfig { key_prefix: key_prefix.into(), ..self }
    }

    /// The same with this long for a call.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        RedisConfig { timeout, ..self }
    }

    /// The same, hearing answers for this much longer than anybody waits for them.
    #[must_use]
    pub fn late_answers(self, late_answers: Duration) -> Self {
        RedisConfig { late_answers, ..self }
    }

    /// The same with this long for making a connection.
    #[must_use]
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        RedisConfig { connect_timeout, ..self }
    }

    /// The same with at most this many calls under way on a connection.
    #[must_use]
    pub fn max_in_flight(self, max_in_flight: usize) -> Self {
        RedisConfig { max_in_flight, ..self }
    }

    /// The same with these files, where the URL asks for TLS.
    #[must_use]
    pub fn tls(self, tls: TlsFiles) -> Self {
        RedisConfig { tls, ..self }
    }

    /// The same, logging in at the sentinels so.
    #[must_use]
    pub fn sentinel_credentials(self, sentinel_credentials: Credentials) -> Self {
        RedisConfig { sentinel_credentials, ..self }
    }

    /// The same, heard by this observer.
    #[must_use]
    pub fn observer(self, observer: Arc<dyn Observer>) -> Self {
        RedisConfig { observer, ..self }
    }

    /// The same by another time.
    #[must_use]
    pub fn time(self, time: TimeSource) -> Self {
        RedisConfig { time, ..self }
    }

    /// The same with this clock of the node.
    #[must_use]
    pub fn node_clock(self, node_clock: Arc<dyn Clock>) -> Self {
        RedisConfig { node_clock, ..self }
    }
}

impl TlsFiles {
    /// The same, trusting the authorities in this file.
    #[must_use]
    pub fn ca(self, ca: impl Into<PathBuf>) -> Self {
        TlsFiles { ca: Some(ca.into()), ..self }
    }

    /// The same, showing this certificate with this private key.
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
