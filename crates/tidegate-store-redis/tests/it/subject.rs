//! Stores as the tests use them.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Timestamp;
use tidegate_store::conformance::Subject;
use tidegate_store::{ManualClock, Store};
use tidegate_store_redis::{RedisConfig, RedisStore, StoreUrl, TimeSource};

/// A store whose time the test sets.
pub(crate) struct Timed {
    pub(crate) store: RedisStore,
    pub(crate) clock: Arc<ManualClock>,
}

/// A loaded machine may be slow; a test that is about time-outs sets its own.
pub(crate) fn patient() -> RedisConfig {
    RedisConfig {
        timeout: Duration::from_secs(10),
        connect_timeout: Duration::from_secs(10),
        ..RedisConfig::default()
    }
}

pub(crate) fn url(text: &str) -> StoreUrl {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub(crate) fn store(at: &str, config: &RedisConfig) -> RedisStore {
    RedisStore::new(&url(at), config).unwrap_or_else(|error| panic!("{at}: {error}"))
}

impl Timed {
    pub(crate) fn new(at: &str) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000)));
        let time = TimeSource::Given(Arc::clone(&clock) as Arc<_>);
        Timed { store: store(at, &RedisConfig { time, ..patient() }), clock }
    }
}

impl Subject for Timed {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn set_time(&self, now: Timestamp) {
        self.clock.set(now);
    }
}
