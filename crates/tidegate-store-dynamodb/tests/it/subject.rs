//! Stores as the tests use them.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Ask, FixedWindow, Group, Limit, Micros, Outcome, Scope, Timestamp, Touch};
use tidegate_store::conformance::Subject;
use tidegate_store::{CellKey, ManualClock, Request, Spend, Store, StoreError};
use tidegate_store_dynamodb::{DynamoDbConfig, DynamoDbStore, DynamoDbUrl, Login, TimeSource};

/// A store whose time the test sets.
pub(crate) struct Timed {
    store: DynamoDbStore,
    clock: Arc<ManualClock>,
}

/// A loaded machine may be slow; a test that is about time-outs sets its own.
pub(crate) fn patient() -> DynamoDbConfig {
    let login = Login::Key { id: "test".to_owned(), secret: "test".to_owned() };
    let second = Duration::from_secs(1);
    DynamoDbConfig::default().login(login).timeout(10 * second).connect_timeout(10 * second)
}

pub(crate) fn store(url: &str, config: &DynamoDbConfig) -> DynamoDbStore {
    let url: DynamoDbUrl = url.parse().unwrap_or_else(|error| panic!("{url}: {error}"));
    DynamoDbStore::new(&url, config).expect("a fine configuration")
}

/// The same, with its table.
pub(crate) async fn ready(url: &str, config: &DynamoDbConfig) -> DynamoDbStore {
    let store = store(url, config);
    store.look().await.expect("a table");
    store
}

impl Timed {
    pub(crate) async fn new(url: &str) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000)));
        let time = TimeSource::Given(Arc::clone(&clock) as Arc<_>);
        Timed { store: ready(url, &patient().time(time)).await, clock }
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
    store: &DynamoDbStore,
    limit: &Limit,
    keys: &[&str],
) -> Result<Vec<Outcome>, StoreError> {
    ask(store, limit, keys, Ask::hits(1)).await
}

pub(crate) async fn left(store: &DynamoDbStore, limit: &Limit, key: &str) -> u64 {
    ask(store, limit, &[key], Ask::look()).await.unwrap()[0].remaining
}

async fn ask(
    store: &DynamoDbStore,
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
