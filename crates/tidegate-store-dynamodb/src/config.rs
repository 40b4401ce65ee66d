//! Settings of the store other than its address.

use std::sync::Arc;
use std::time::Duration;

use tidegate_store::{CallObserver, Clock, NoCallObserver};

/// Settings of a DynamoDB store.
#[derive(Clone)]
#[non_exhaustive]
pub struct DynamoDbConfig {
    /// Part of every item's name, so that several fleets can share a table.
    pub key_prefix: String,
    /// The total time allowed for a call.
    pub timeout: Duration,
    /// How much longer to wait for the answer to a decision: for callers that have their own deadline and want to know what was
    /// spent after it.
    pub late_answers: Duration,
    /// The time allowed to connect.
    pub connect_timeout: Duration,
    /// The most calls in flight per runtime, each on a connection of its own.
    pub max_in_flight: usize,
    /// Who calls.
    pub login: Login,
    /// Is notified of calls.
    pub observer: Arc<dyn CallObserver>,
    /// The clock that decides.
    pub time: TimeSource,
}

/// The clock that decides.
#[derive(Clone)]
#[non_exhaustive]
pub enum TimeSource {
    /// The clock of DynamoDB, as far as the whole seconds of its answers tell.
    DynamoDb,
    /// A clock set by a test. Items then outlive their limits.
    Given(Arc<dyn Clock>),
}

impl Default for DynamoDbConfig {
    fn default() -> Self {
        DynamoDbConfig {
            key_prefix: "tidegate".to_owned(),
            timeout: DynamoDbConfig::TIMEOUT,
            late_answers: Duration::ZERO,
            connect_timeout: Duration::from_secs(1),
            max_in_flight: 64,
            login: Login::Found,
            observer: Arc::new(NoCallObserver),
            time: TimeSource::DynamoDb,
        }
    }
}

impl std::fmt::Debug for DynamoDbConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DynamoDbConfig")
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

/// Who calls.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Login {
    /// Whoever the environment, the shared file, the container or the instance says, in this order.
    Found,
    /// This key.
    Key {
        /// Its public part.
        id: String,
        /// Its secret part.
        secret: String,
    },
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Login::Found => "Found",
            Login::Key { .. } => "Key",
        })
    }
}

/// Each method changes one setting of a configuration such as the default: `DynamoDbConfig::default().timeout(…)`.
impl DynamoDbConfig {
    /// The usual time allowed for a call: a decision that spends is two answers of some milliseconds each.
    pub const TIMEOUT: Duration = Duration::from_millis(50);

    /// Sets the part of every item's name.
    #[must_use]
    pub fn key_prefix(self, key_prefix: impl Into<String>) -> Self {
        DynamoDbConfig { key_prefix: key_prefix.into(), ..self }
    }

    /// Sets the time allowed for a call.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        DynamoDbConfig { timeout, ..self }
    }

    /// Sets how long after its deadline a call still accepts an answer.
    #[must_use]
    pub fn late_answers(self, late_answers: Duration) -> Self {
        DynamoDbConfig { late_answers, ..self }
    }

    /// Sets the time allowed to connect.
    #[must_use]
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        DynamoDbConfig { connect_timeout, ..self }
    }

    /// Sets who calls.
    #[must_use]
    pub fn login(self, login: Login) -> Self {
        DynamoDbConfig { login, ..self }
    }

    /// Sets the most calls in flight per runtime.
    #[must_use]
    pub fn max_in_flight(self, max_in_flight: usize) -> Self {
        DynamoDbConfig { max_in_flight, ..self }
    }

    /// Sets the observer.
    #[must_use]
    pub fn observer(self, observer: Arc<dyn CallObserver>) -> Self {
        DynamoDbConfig { observer, ..self }
    }

    /// Sets the clock that decides.
    #[must_use]
    pub fn time(self, time: TimeSource) -> Self {
        DynamoDbConfig { time, ..self }
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
        assert_eq!(DynamoDbConfig::default().max_in_flight(0).check().unwrap_err().field, "max_in_flight");
        assert!(DynamoDbConfig::default().check().is_ok());
    }
}
