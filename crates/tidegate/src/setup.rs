//! A limiter put together part by part.

use std::fmt;
use std::sync::Arc;

#[cfg(feature = "memory")]
use tidegate_limiter::{Limiter, LimiterConfig};
use tidegate_limiter::{NoObserver, Observer};
use tidegate_rules::code::Rules;
use tidegate_rules::{Diagnostics, Format, RuleSet, Source};
use tidegate_store::Clock;
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

    /// Lets `observer` hear of decisions and of the store.
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
        let rules = self.rules?;
        let Some(clock) = self.clock else {
            let store = Arc::new(MemoryStore::new(MemoryConfig::default()));
            return Ok(Limiter::new(LimiterConfig::new(rules, store, self.observer)));
        };
        let store = Arc::new(MemoryStore::with_clock(MemoryConfig::default(), Arc::clone(&clock)));
        let mut config = LimiterConfig::new(rules, store, self.observer);
        config.clock = clock;
        Ok(Limiter::new(config))
    }
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").field("rules", &self.rules).finish_non_exhaustive()
    }
}
