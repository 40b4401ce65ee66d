//! Stores as the tests use them.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Ask, FixedWindow, Group, Limit, Micros, Outcome, Scope, Timestamp, Touch};
use tidegate_store::conformance::Subject;
use tidegate_store::{CellKey, ManualClock, Request, Spend, Store, StoreError};
use tidegate_store_memcached::{MemcachedConfig, MemcachedStore, MemcachedUrl, TimeSource};

/// A store whose time the test sets.
pub(crate) struct Timed {
    store: MemcachedStore,
    clock: Arc<ManualClock>,
}

/// A loaded machine may be slow; a test that is about time-outs sets its own.
pub(crate) fn patient() -> MemcachedConfig {
    MemcachedConfig::default().timeout(Duration::from_secs(10)).connect_timeout(Duration::from_secs(10))
}

pub(crate) fn store(url: &str, config: &MemcachedConfig) -> MemcachedStore {
    let url: MemcachedUrl = url.parse().unwrap_or_else(|error| panic!("{url}: {error}"));
    MemcachedStore::new(&url, config).expect("a fine configuration")
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

/// So many hits a day.
pub(crate) fn limit(count: u64) -> Limit {
    Limit::FixedWindow(FixedWindow::new(count, Micros::from_secs(86_400)).unwrap())
}

/// Spends one hit of each of these keys.
pub(crate) async fn spend(
    store: &MemcachedStore,
    limit: &Limit,
    keys: &[&str],
) -> Result<Vec<Outcome>, StoreError> {
    ask(store, limit, keys, Ask::hits(1)).await
}

pub(crate) async fn left(store: &MemcachedStore, limit: &Limit, key: &str) -> u64 {
    ask(store, limit, &[key], Ask::look()).await.unwrap()[0].remaining
}

async fn ask(
    store: &MemcachedStore,
    limit: &Limit,
    keys: &[&str],
    ask: Ask,
) -> Result<Vec<Outcome>, StoreError> {
    let scope = Scope::new(&[b"faults"]);
    let touch = Touch { limit, ask, group: Group::ENFORCED };
    let spends: Vec<Spend<'_>> = keys
        .iter()
        .map(|key| Spend { cell: CellKey { scope: &scope, key: key.as_bytes(), tag: key.as_bytes() }, touch })
        .collect();
    store.decide(&[Request::once(&spends)]).answer().await.map(|told| told.into_iter().collect())
}
