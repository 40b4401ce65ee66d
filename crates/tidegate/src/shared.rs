//! A limiter on a store that a fleet shares.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limiter::{Limiter, LimiterConfig, RemoteConfig, TokioHandle, prober_thread};
use tidegate_rules::Diagnostics;
use tidegate_store::Store;
use tokio::runtime::Handle;

use crate::setup::Setup;

/// Why a limiter on a shared store cannot be created.
#[derive(Debug)]
#[non_exhaustive]
pub enum SharedStoreError {
    /// The rules have mistakes.
    Rules(Diagnostics),
    /// There is no tokio runtime here; calls to the store need one.
    NoRuntime,
}

impl Setup {
    /// A limiter with counters in `store`, which is over a network: that of the features `postgres`, `memcached` and `dynamodb`, or your own.
    /// A request waits for it for `timeout` at most, queueing included, before its rule's failure policy decides; give the store
    /// the same.
    ///
    /// ```
    /// # #[cfg(feature = "memcached")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::{sync::Arc, time::Duration};
    /// use tidegate::memcached::{MemcachedConfig, MemcachedStore};
    ///
    /// let store = MemcachedStore::new(&"memcached://127.0.0.1:1".parse()?, &MemcachedConfig::default())?;
    /// let rules = "{ domain: d, rules: [{ name: r, limits: [1/minute], on_store_failure: open }] }";
    /// let limiter = tidegate::Setup::new(rules).on_shared_store(Arc::new(store), Duration::from_millis(10))?;
    /// assert!(tidegate::Ask::new("d").check(&limiter).await?.allowed, "the policy decides while it is unavailable");
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "memcached"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// When the rules have mistakes or keep more of one key than the store does, or it is not called on a tokio runtime.
    pub fn on_shared_store(
        self,
        store: Arc<dyn Store>,
        timeout: Duration,
    ) -> Result<Limiter, SharedStoreError> {
        let runtime = Handle::try_current().map_err(|_| SharedStoreError::NoRuntime)?;
        let rules = self.rules.map_err(SharedStoreError::Rules)?;
        let mut remote = RemoteConfig::new(Arc::new(TokioHandle(runtime.clone())));
        remote.prober = prober_thread();
        remote.timeout = timeout.into();
        let mut limiter = LimiterConfig::new(rules, store, self.observer);
        limiter.clock = self.clock.unwrap_or(limiter.clock);
        let limiter = Limiter::new(limiter.over_a_network(remote));
        limiter.check_room(limiter.snapshot().rules(), Vec::new).map_err(SharedStoreError::Rules)?;
        drop(runtime.spawn(limiter.maintain()));
        Ok(limiter)
    }
}

impl fmt::Display for SharedStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharedStoreError::Rules(error) => error.fmt(f),
            SharedStoreError::NoRuntime => f.write_str(
                "there is no tokio runtime here: call this within `#[tokio::main]`, or enter one with `Handle::enter`",
            ),
        }
    }
}

impl std::error::Error for SharedStoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SharedStoreError::Rules(error) => std::error::Error::source(error),
            SharedStoreError::NoRuntime => None,
        }
    }
}
