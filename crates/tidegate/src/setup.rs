//! A limiter put together part by part.

use std::fmt;
use std::sync::Arc;

use tidegate_limiter::{Limiter, LimiterConfig, NoObserver, Observer};
use tidegate_rules::code::Rules;
use tidegate_rules::{Diagnostics, Format, RuleSet, Source};
use tidegate_store::{Clock, Store};
#[cfg(feature = "memory")]
use tidegate_store::{MemoryConfig, MemoryStore};

/// What rules can be made of: text (YAML or JSON), rules written in code, or a set that is compiled already.
pub trait IntoRules {
    /// The compiled set.
    ///
    /// # Errors
    /// With every mistake in the rules, each with its place and a hint.
    fn into_rules(self) -> Result<RuleSet, Diagnostics>;
}

/// Compiles `rules`, such as those that [`Limiter::replace_rules`] takes into use. What compiles and may not be what was meant is in
/// [`RuleSet::warnings`]: look at it, or let [`Setup::deny_warnings`] or a `TracingObserver` do so.
///
/// ```
/// # #[cfg(feature = "memory")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = tidegate::in_memory("{ domain: d, rules: [{ name: r, limits: [1/minute] }] }")?;
/// limiter.replace_rules(tidegate::compile("{ domain: d, rules: [{ name: r, limits: [2/minute] }] }")?);
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

impl IntoRules for &str {
    fn into_rules(self) -> Result<RuleSet, Diagnostics> {
        RuleSet::compile(&[Source::new("rules", self)], Format::Native)
    }
}

impl IntoRules for String {
    fn into_rules(self) -> Result<RuleSet, Diagnostics> {
        self.as_str().into_rules()
    }
}

impl IntoRules for &Rules {
    fn into_rules(self) -> Result<RuleSet, Diagnostics> {
        self.compile()
    }
}

impl IntoRules for Rules {
    fn into_rules(self) -> Result<RuleSet, Diagnostics> {
        self.compile()
    }
}

impl IntoRules for RuleSet {
    fn into_rules(self) -> Result<RuleSet, Diagnostics> {
        Ok(self)
    }
}

/// A limiter put together part by part, where [`in_memory`](crate::in_memory) and `on_redis` say too
/// little.
pub struct Setup {
    pub(crate) rules: Result<RuleSet, Diagnostics>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) clock: Option<Arc<dyn Clock>>,
    #[cfg(feature = "redis")]
    pub(crate) redis: tidegate_store_redis::RedisConfig,
}

impl Setup {
    /// A limiter that enforces `rules`, by the machine's clock, observed by nobody.
    #[must_use]
    pub fn new(rules: impl IntoRules) -> Self {
        Setup {
            rules: rules.into_rules(),
            observer: Arc::new(NoObserver),
            clock: None,
            #[cfg(feature = "redis")]
            redis: tidegate_store_redis::RedisConfig::default(),
        }
    }

    /// Takes what compiles and may not be what was meant ([`RuleSet::warnings`]) for a mistake: such as a path in capitals, which no
    /// request has as the middleware reads it. Else a `TracingObserver` logs it, and without one nobody does.
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

    /// Lets `observer` hear of decisions and of the store: one of your own, or an [`Arc`] of it whose other handle you keep.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Arc::new(observer);
        self
    }

    /// Goes by `clock`. In memory all counters do; on Redis those go by Redis's own, and this one is the node's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// A limiter with counters in this process's memory.
    ///
    /// # Errors
    /// With every mistake in the rules, each with its place and a hint.
    #[cfg(feature = "memory")]
    pub fn in_memory(self) -> Result<Limiter, Diagnostics> {
        let config = MemoryConfig::default();
        let store: Arc<dyn Store> = match &self.clock {
            None => Arc::new(MemoryStore::new(config)),
            Some(clock) => Arc::new(MemoryStore::with_clock(config, Arc::clone(clock))),
        };
        self.on_store(store)
    }

    /// A limiter with counters in `store`, which answers at once: one of your own, or a
    /// [`MemoryStore`](crate::MemoryStore) with bounds of your own. A store that may be slow or away wants time-outs, a
    /// runtime (`TokioRuntime`, with the feature `redis` or `tower`) and upkeep: [`LimiterConfig::over_a_network`].
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
