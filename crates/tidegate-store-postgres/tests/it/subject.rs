//! Stores as the tests use them.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Timestamp;
use tidegate_store::conformance::Subject;
use tidegate_store::{ManualClock, Store};
use tidegate_store_postgres::{PostgresConfig, PostgresStore, PostgresUrl, TimeSource};

/// A store whose time the test sets.
pub(crate) struct Timed {
    pub(crate) store: PostgresStore,
    pub(crate) clock: Arc<ManualClock>,
}

/// A loaded machine may be slow; a test that is about time-outs sets its own.
pub(crate) fn patient() -> PostgresConfig {
    PostgresConfig::default().timeout(Duration::from_secs(10)).connect_timeout(Duration::from_secs(10))
}

pub(crate) fn store(url: &str, config: &PostgresConfig) -> PostgresStore {
    let url: PostgresUrl = url.parse().unwrap_or_else(|error| panic!("{url}: {error}"));
    PostgresStore::new(&url, config).expect("a fine configuration")
}

impl Timed {
    pub(crate) fn new(url: &str) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000)));
        let time = TimeSource::Given(Arc::clone(&clock) as Arc<_>);
        Timed { store: store(url, &patient().time(time)), clock }
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
