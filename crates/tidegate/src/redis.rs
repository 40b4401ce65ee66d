//! A limiter that shares its counters with a fleet.

use std::fmt;
use std::sync::Arc;

use tidegate_core::Micros;
use tidegate_limiter::{Limiter, LimiterConfig, NoObserver, RemoteConfig, TokioRuntime};
use tidegate_rules::Diagnostics;
use tidegate_store_redis::{ConfigError, RedisConfig, RedisStore, StoreUrl, UrlError};

/// Why there is no limiter on Redis.
#[derive(Debug)]
pub enum OnRedisError {
    /// The rules have mistakes.
    Rules(Diagnostics),
    /// The URL is none of a store.
    Url(UrlError),
    /// The store cannot be made as it was asked for.
    Store(ConfigError),
}

/// A limiter that enforces `rules` (YAML or JSON) with counters in the store at `url`: `redis://host:port`,
/// `redis+sentinel://…`, `redis+cluster://…` or `redis+sharded://…`.
///
/// It connects when it is first asked: a store that is away is no error, for every rule says what to do without it. Its
/// heartbeats and probes run on the tokio runtime that this is called on, for as long as that runs.
///
/// # Errors
/// When the rules or the URL have mistakes.
///
/// # Panics
/// When it is not called on a tokio runtime.
pub fn on_redis(rules: &str, url: &str) -> Result<Limiter, OnRedisError> {
    on_redis_with(rules, url, &RedisConfig::default())
}

/// The same, with a store as `config` has it. Its time-out is also how long a request waits for the store, queueing
/// included, before its rule's failure policy decides.
///
/// # Errors
/// When the rules, the URL or the configuration have mistakes.
///
/// # Panics
/// When it is not called on a tokio runtime.
pub fn on_redis_with(rules: &str, url: &str, config: &RedisConfig) -> Result<Limiter, OnRedisError> {
    let rules = crate::compile(rules).map_err(OnRedisError::Rules)?;
    let url: StoreUrl = url.parse().map_err(OnRedisError::Url)?;
    let store = RedisStore::new(&url, config).map_err(OnRedisError::Store)?;
    let mut remote = RemoteConfig::new(Arc::new(TokioRuntime));
    remote.timeout = Micros::new(u64::try_from(config.timeout.as_micros()).unwrap_or(u64::MAX));
    let limiter = LimiterConfig::new(rules, Arc::new(store), Arc::new(NoObserver));
    let limiter = Limiter::new(limiter.over_a_network(remote));
    drop(tokio::spawn(limiter.maintain()));
    Ok(limiter)
}

impl fmt::Display for OnRedisError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OnRedisError::Rules(error) => error.fmt(f),
            OnRedisError::Url(error) => error.fmt(f),
            OnRedisError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OnRedisError {}
