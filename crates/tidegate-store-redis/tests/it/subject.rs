//! Stores as the tests use them, and requests to put to them.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{
    Ask, FixedWindow, Group, Limit, Micros, Outcome, Rate, Scope, Timestamp, TokenBucket, Touch, append_part,
};
use tidegate_store::conformance::Subject;
use tidegate_store::{CellKey, ManualClock, Request, Spend, Store, StoreError};
use tidegate_store_redis::{RedisConfig, RedisStore, StoreUrl, TimeSource};

/// A store whose time the test sets.
pub(crate) struct Timed {
    pub(crate) store: RedisStore,
    pub(crate) clock: Arc<ManualClock>,
}

/// A loaded machine may be slow; a test that is about time-outs sets its own.
pub(crate) fn patient() -> RedisConfig {
    RedisConfig::default().timeout(Duration::from_secs(10)).connect_timeout(Duration::from_secs(10))
}

/// As a limiter would use it, with room for a busy machine.
pub(crate) fn prompt() -> RedisConfig {
    RedisConfig::default().timeout(Duration::from_millis(200))
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
        Timed { store: store(at, &patient().time(time)), clock }
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

/// One cell, and the limit that guards it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) scope: Scope,
    pub(crate) key: Vec<u8>,
    pub(crate) limit: Limit,
}

impl Target {
    pub(crate) fn new(rule: &str, value: &str, limit: Limit) -> Self {
        let mut key = Vec::new();
        append_part(&mut key, value.as_bytes());
        let scope = Scope::new(&[b"test", rule.as_bytes(), limit.algorithm().name().as_bytes()]);
        Target { scope, key, limit }
    }

    pub(crate) fn cell(&self) -> CellKey<'_> {
        CellKey { scope: &self.scope, key: &self.key, tag: &self.key }
    }

    pub(crate) fn spend(&self, hits: u64) -> Spend<'_> {
        let touch = Touch { limit: &self.limit, ask: Ask::hits(hits), group: Group::ENFORCED };
        Spend { cell: self.cell(), touch }
    }
}

/// A limit of `count` that nobody gets back within a test.
pub(crate) fn a_day(count: u64) -> Limit {
    Limit::FixedWindow(FixedWindow::new(count, Micros::from_secs(86_400)).unwrap())
}

pub(crate) fn a_bucket(burst: u64) -> Limit {
    let rate = Rate::new(1, Micros::from_secs(86_400)).unwrap();
    Limit::TokenBucket(TokenBucket::new(rate, burst).unwrap())
}

/// One request over `spends`.
pub(crate) async fn ask(store: &RedisStore, spends: &[Spend<'_>]) -> Result<Vec<Outcome>, StoreError> {
    let outcomes = store.decide(&[Request::once(spends)]).answer().await?;
    Ok(outcomes.to_vec())
}

/// Spends one hit; whether it was admitted.
pub(crate) async fn spend(store: &RedisStore, target: &Target) -> Result<bool, StoreError> {
    Ok(ask(store, &[target.spend(1)]).await?[0].is_admitted())
}

/// Hits left.
pub(crate) async fn left(store: &RedisStore, target: &Target) -> u64 {
    ask(store, &[target.spend(0)]).await.unwrap()[0].remaining
}

/// A server that is back is found within `soon`, which a busy machine may spoil: then it goes `away` again, three times in
/// all.
pub(crate) async fn assert_found_again(
    soon: Duration,
    mut away_and_back: impl AsyncFnMut(),
    mut attempt: impl AsyncFnMut() -> Result<bool, StoreError>,
) {
    let mut took = Vec::new();
    while took.len() < 3 && took.iter().all(|took| *took >= soon) {
        away_and_back().await;
        let began = tokio::time::Instant::now();
        eventually("the store answers again", &mut attempt).await;
        took.push(began.elapsed());
    }
    assert!(took.iter().any(|took| *took < soon), "it took {took:?}");
}

/// Repeats `attempt` until it succeeds, for a while.
pub(crate) async fn eventually<T, E: std::fmt::Debug>(
    what: &str,
    mut attempt: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        match attempt().await {
            Ok(value) => return value,
            Err(error) if tokio::time::Instant::now() > deadline => panic!("not in time: {what}: {error:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
