//! Settings of the store other than its address.

use std::sync::Arc;
use std::time::Duration;

use tidegate_store::{CallObserver, Clock, NoCallObserver};

/// Settings of a Memcached store.
#[derive(Clone)]
#[non_exhaustive]
pub struct MemcachedConfig {
    /// Part of every item's name, so that several fleets can share servers.
    pub key_prefix: String,
    /// The total time allowed for a call.
    pub timeout: Duration,
    /// How much longer to wait for the answer to a decision: for callers that have their own deadline and want to know what was
    /// spent after it.
    pub late_answers: Duration,
    /// The time allowed to connect.
    pub connect_timeout: Duration,
    /// The most calls in flight per runtime and server.
    pub max_in_flight: usize,
    /// How long a canary is left alone: whether the servers forget what nobody touched for so long is measured.
    pub canary_age: Duration,
    /// Is notified of calls.
    pub observer: Arc<dyn CallObserver>,
    /// The clock that decides.
    pub time: TimeSource,
}

/// The clock that decides.
#[derive(Clone)]
#[non_exhaustive]
pub enum TimeSource {
    /// The clock of the first server of the list, as far as its whole seconds tell.
    Memcached,
    /// A clock set by a test. Items then outlive their limits.
    Given(Arc<dyn Clock>),
}

impl Default for MemcachedConfig {
    fn default() -> Self {
        MemcachedConfig {
            key_prefix: "tidegate".to_owned(),
            timeout: Duration::from_millis(10),
            late_answers: Duration::ZERO,
            connect_timeout: Duration::from_secs(1),
            max_in_flight: 1_024,
            canary_age: Duration::from_secs(60),
            observer: Arc::new(NoCallObserver),
            time: TimeSource::Memcached,
        }
    }
}

impl std::fmt::Debug for MemcachedConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemcachedConfig")
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

/// Each method changes one setting of a configuration such as the default: `MemcachedConfig::default().timeout(…)`.
impl MemcachedConfig {
    /// Sets the part of every item's name.
    #[must_use]
    pub fn key_prefix(self, key_prefix: impl Into<String>) -> Self {
        MemcachedConfig { key_prefix: key_prefix.into(), ..self }
    }

    /// Sets the time allowed for a call.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        MemcachedConfig { timeout, ..self }
    }

    /// Sets how long after its deadline a call still accepts an answer.
    #[must_use]
    pub fn late_answers(self, late_answers: Duration) -> Self {
        MemcachedConfig { late_answers, ..self }
    }

    /// Sets the time allowed to connect.
    #[must_use]
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        MemcachedConfig { connect_timeout, ..self }
    }

    /// Sets the most calls in flight per runtime and server.
    #[must_use]
    pub fn max_in_flight(self, max_in_flight: usize) -> Self {
        MemcachedConfig { max_in_flight, ..self }
    }

    /// Sets how long a canary is left alone.
    #[must_use]
    pub fn canary_age(self, canary_age: Duration) -> Self {
        MemcachedConfig { canary_age, ..self }
    }

    /// Sets the observer.
    #[must_use]
    pub fn observer(self, observer: Arc<dyn CallObserver>) -> Self {
        MemcachedConfig { observer, ..self }
    }

    /// Sets the clock that decides.
    #[must_use]
    pub fn time(self, time: TimeSource) -> Self {
        MemcachedConfig { time, ..self }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
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
    fn a_bound_of_zero_is_refused_by_name() {
        assert_eq!(MemcachedConfig::default().max_in_flight(0).check().unwrap_err().field, "max_in_flight");
        assert!(MemcachedConfig::default().check().is_ok());
    }
}
