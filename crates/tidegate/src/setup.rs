//! A builder for limiters.

use std::fmt;
use std::sync::Arc;

use tidegate_limiter::{Limiter, LimiterConfig, NoObserver, Observer};
use tidegate_rules::{Diagnostics, IntoRules, RuleSet};
use tidegate_store::{Clock, Store};
#[cfg(feature = "memory")]
use tidegate_store::{MemoryConfig, MemoryStore};

/// Compiles `rules`, to look at them before [`Limiter::replace_rules`]. Likely mistakes that still compile are in
/// [`RuleSet::warnings`]: read them, or use [`Setup::deny_warnings`] or a `TracingObserver`.
///
/// ```
/// # #[cfg(feature = "memory")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = tidegate::in_memory("{ domain: d, rules: [{ name: r, limits: [1/minute] }] }")?;
/// let more = tidegate::compile("{ domain: d, rules: [{ name: r, limits: [2/minute] }] }")?;
/// assert_eq!(more.warnings().map(|warnings| warnings.to_string()), None);
/// limiter.replace_rules(more)?;
/// assert_eq!(tidegate::Ask::new("d").check_blocking(&limiter)?.remaining(), Some(1));
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "memory"))]
/// # fn main() {}
/// ```
///
/// # Errors
/// With every mistake in the rules, each with its place and a hint.
pub fn compile(rules: impl IntoRules) -> Result<RuleSet, Diagnostics> {
    rules.into_rules()
}

/// A builder for limiters, for what [`in_memory`](crate::in_memory) and `on_redis` do not cover.
pub struct Setup {
    pub(crate) rules: Result<RuleSet, Diagnostics>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) clock: Option<Arc<dyn Clock>>,
    #[cfg(feature = "memory")]
    pub(crate) memory: MemoryConfig,
    #[cfg(feature = "redis")]
    pub(crate) redis: tidegate_store_redis::RedisConfig,
}

impl Setup {
    /// Starts with `rules`, the system's clock and no observer.
    #[must_use]
    pub fn new(rules: impl IntoRules) -> Self {
        Setup {
            rules: rules.into_rules(),
            observer: Arc::new(NoObserver),
            clock: None,
            #[cfg(feature = "memory")]
            memory: MemoryConfig::new(),
            #[cfg(feature = "redis")]
            redis: tidegate_store_redis::RedisConfig::default(),
        }
    }

    /// Makes rule warnings ([`RuleSet::warnings`]) errors: such as a path in capitals, which never matches because the middleware
    /// reads paths in lower case. Without this call a `TracingObserver` logs them; without an observer they are not logged.
    ///
    /// ```
    /// let rules = "{ domain: d, rules: [{ name: r, match: { path: /pkg.Service/Method }, limits: [1/minute] }] }";
    /// let mistakes = tidegate::Setup::new(rules).deny_warnings().in_memory().unwrap_err();
    /// assert!(mistakes.to_string().contains("write `/pkg.service/method`"));
    /// ```
    #[must_use]
    pub fn deny_warnings(mut self) -> Self {
        self.rules = self.rules.and_then(|rules| match rules.warnings() {
            Some(warnings) => Err(warnings.clone()),
            None => Ok(rules),
        });
        self
    }

    /// Adds an observer of decisions and of the store: your own type, or an [`Arc`] of it whose other handle you keep.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Arc::new(observer);
        self
    }

    /// Sets the clock. In memory, counters use it; on Redis, counters use Redis's clock and this is the node's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the bounds of counters in memory.
    #[cfg(feature = "memory")]
    #[must_use]
    pub fn memory(mut self, config: MemoryConfig) -> Self {
        self.memory = config;
        self
    }

    /// A limiter with counters in this process's memory.
    ///
    /// # Errors
    /// With every mistake in the rules, each with its place and a hint.
    #[cfg(feature = "memory")]
    pub fn in_memory(self) -> Result<Limiter, Diagnostics> {
        let config = self.memory;
        let store: Arc<dyn Store> = match &self.clock {
            None => Arc::new(MemoryStore::new(config)),
            Some(clock) => Arc::new(MemoryStore::with_clock(config, Arc::clone(clock))),
        };
        self.on_store(store)
    }

    /// A limiter with counters in `store`, which answers at once: your own, or a [`MemoryStore`](crate::MemoryStore) with your
    /// own bounds. A store that may be slow or unavailable needs time-outs, a runtime (`TokioRuntime`, with the feature `redis`
    /// or `tower`) and background work: [`LimiterConfig::over_a_network`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    /// use tidegate::{MemoryConfig, MemoryStore, Setup};
    ///
    /// let store = Arc::new(MemoryStore::new(MemoryConfig::default().max_cells(10_000)));
    /// let rules = "{ domain: d, rules: [{ name: r, key: [user], limits: [1/minute] }] }";
    /// let limiter = Setup::new(rules).on_store(store.clone())?;
    /// assert!(tidegate::Ask::new("d").with("user", "ann").check_blocking(&limiter)?.allowed);
    /// assert_eq!(store.stats().cells, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// With every mistake in the rules, each with its place and a hint.
    pub fn on_store(self, store: Arc<dyn Store>) -> Result<Limiter, Diagnostics> {
        let mut config = LimiterConfig::new(self.rules?, store, self.observer);
        config.clock = self.clock.unwrap_or(config.clock);
        Ok(Limiter::new(config))
    }
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").field("rules", &self.rules).finish_non_exhaustive()
    }
}
