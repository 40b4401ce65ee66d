//! A limiter that shares its counters with a fleet.

use std::fmt;
use std::sync::Arc;

use tidegate_limiter::{LATE_CALLS_HEARD_FOR, Limiter};
use tidegate_rules::{Diagnostics, IntoRules};
use tidegate_store_redis::{ConfigError, RedisConfig, RedisStore, StoreUrl, UrlError};

use crate::setup::Setup;
use crate::shared::SharedStoreError;

/// Why a limiter on Redis cannot be created.
#[derive(Debug)]
#[non_exhaustive]
pub enum OnRedisError {
    /// The rules have mistakes.
    Rules(Diagnostics),
    /// The URL is not a store's.
    Url(UrlError),
    /// The store's configuration cannot be used.
    Store(ConfigError),
    /// There is no tokio runtime here; calls to Redis need one.
    NoRuntime,
}

/// A limiter that enforces `rules` with counters in the store at `url`: `redis://host:port`, `redis+sentinel://…`,
/// `redis+cluster://…` or `redis+sharded://…`.
///
/// It connects on first use: an unreachable store is not an error, because failure policies apply. Calls, heartbeats and
/// probes run on the tokio runtime that this is called on, whichever thread checks. After that runtime has ended, failure
/// policies apply (so a limiter in a `static` serves only the first of several `#[tokio::test]`s). Dropping the last clone
/// closes the connections and leaves the fleet; [`Limiter::shutdown`] also settles debts.
///
/// # Errors
/// When the rules or the URL have mistakes, or it is not called on a tokio runtime.
pub fn on_redis(rules: impl IntoRules, url: &str) -> Result<Limiter, OnRedisError> {
    Setup::new(rules).on_redis(url)
}

/// [`on_redis`] with a configuration. Its time-out bounds how long a request waits for the store, queueing included, before
/// its rule's failure policy decides.
///
/// # Errors
/// When the rules, the URL or the configuration have mistakes, or it is not called on a tokio runtime.
pub fn on_redis_with(
    rules: impl IntoRules,
    url: &str,
    config: &RedisConfig,
) -> Result<Limiter, OnRedisError> {
    Setup::new(rules).redis(config.clone()).on_redis(url)
}

impl Setup {
    /// Sets the configuration of Redis. Its time-out bounds how long a request waits for the store, queueing included, before
    /// its rule's failure policy decides.
    #[must_use]
    pub fn redis(mut self, config: RedisConfig) -> Self {
        self.redis = config;
        self
    }

    /// A limiter with counters in the store at `url`, as [`on_redis`].
    ///
    /// # Errors
    /// When the rules, the URL or the configuration have mistakes, or it is not called on a tokio runtime.
    pub fn on_redis(self, url: &str) -> Result<Limiter, OnRedisError> {
        // Mistakes in the rules are told before those in the URL.
        let rules = self.rules.map_err(OnRedisError::Rules)?;
        let url: StoreUrl = url.parse().map_err(OnRedisError::Url)?;
        let (config, timeout) =
            (self.redis.clone().late_answers(LATE_CALLS_HEARD_FOR.into()), self.redis.timeout);
        let store = RedisStore::new(&url, &config).map_err(OnRedisError::Store)?;
        Setup { rules: Ok(rules), ..self }.on_shared_store(Arc::new(store), timeout).map_err(|error| {
            match error {
                SharedStoreError::Rules(mistakes) => OnRedisError::Rules(mistakes),
                SharedStoreError::NoRuntime => OnRedisError::NoRuntime,
            }
        })
    }
}

impl fmt::Display for OnRedisError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OnRedisError::Rules(error) => error.fmt(f),
            OnRedisError::Url(error) => error.fmt(f),
            OnRedisError::Store(error) => error.fmt(f),
            OnRedisError::NoRuntime => f.write_str(
                "there is no tokio runtime here: call this within `#[tokio::main]`, or enter one with `Handle::enter`",
            ),
        }
    }
}

impl std::error::Error for OnRedisError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OnRedisError::Rules(_) | OnRedisError::NoRuntime => None,
            OnRedisError::Url(error) => std::error::Error::source(error),
            OnRedisError::Store(error) => std::error::Error::source(error),
        }
    }
}
