//! The one place that names concrete stores: opens the configured one, and runs its background work.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::Micros;
use tidegate_fleet::FleetStore;
use tidegate_limiter::{BreakerConfig, LATE_CALLS_HEARD_FOR, RemoteConfig, TokioRuntime, prober_thread};
use tidegate_metrics::{Metrics, StoreUsage};
#[cfg(test)]
use tidegate_store::Clock;
use tidegate_store::{MemoryConfig, MemoryStore, Store, StoreError};
#[cfg(feature = "dynamodb")]
use tidegate_store_dynamodb::{DynamoDbConfig, DynamoDbStore};
use tidegate_store_memcached::{MemcachedConfig, MemcachedStore};
use tidegate_store_postgres::{PostgresConfig, PostgresStore};
#[cfg(test)]
use tidegate_store_redis::TimeSource;
use tidegate_store_redis::{Finding, KeyKind, Operation, Reason, RedisConfig, RedisStore, ServerReport};

use crate::failure::Failure;
use crate::settings::{Count, Limits, Settings, StoreSettings, StoreUrl};

/// Where counters live.
#[derive(Clone)]
pub(super) enum Backend {
    Memory(Arc<MemoryStore>),
    /// Each runtime that uses it has its own connections, so all workers may share it.
    Redis(Arc<RedisStore>, Arc<Holdings>),
    /// The same.
    Postgres(Arc<PostgresStore>, Arc<Holdings>),
    /// The same.
    Memcached(Arc<MemcachedStore>, Arc<Holdings>),
    /// The same.
    #[cfg(feature = "dynamodb")]
    DynamoDb(Arc<DynamoDbStore>, Arc<Holdings>),
}

/// The contents of the store's servers at the last look.
#[derive(Default)]
pub(super) struct Holdings {
    keys: AtomicU64,
    bytes: AtomicU64,
    /// Shard lists of other nodes.
    other_shards: Mutex<Vec<String>>,
    most_bytes: AtomicU64,
    evicted: AtomicU64,
    /// Whether this node estimates the kinds of keys: one node does for the fleet.
    estimates: AtomicBool,
    /// The last estimate; `None` if another node makes it.
    kinds: Mutex<Option<[u64; KeyKind::ALL.len()]>>,
}

/// A sweep covers all cells in this many steps, one per second.
const SWEEP_STEPS: usize = 60;
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How often servers are checked: whether an unavailable one is back, and how much each holds.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How many looks pass between estimates of the kinds of keys: once a minute.
const ESTIMATE_EVERY: usize = 12;

/// The most servers whose last report is remembered; servers come and go.
const MOST_NEWS: usize = 1_000;

impl Backend {
    /// The configured store. It does not connect yet: a server starts and serves even if its store is unavailable.
    pub(super) fn open(settings: &Settings, metrics: &Arc<Metrics>) -> Result<Self, Failure> {
        match &settings.store.url {
            StoreUrl::Memory => {
                Ok(Backend::Memory(Arc::new(MemoryStore::new(memory_bounds(&settings.limits)))))
            }
            StoreUrl::Redis(url) => {
                let config = redis_config(&settings.store, metrics);
                let store = RedisStore::new(url, &config)
                    .map_err(|error| cannot_use(error.field, &error.problem, error.hint))?;
                Ok(Backend::Redis(Arc::new(store), Arc::default()))
            }
            StoreUrl::Postgres(url) => {
                let config = postgres_config(&settings.store, metrics);
                let store = PostgresStore::new(url, &config)
                    .map_err(|error| cannot_use(error.field, &error.problem, error.hint))?;
                Ok(Backend::Postgres(Arc::new(store), Arc::default()))
            }
            StoreUrl::Memcached(url) => {
                let config = memcached_config(&settings.store, metrics);
                let store = MemcachedStore::new(url, &config)
                    .map_err(|error| cannot_use(error.field, &error.problem, error.hint))?;
                Ok(Backend::Memcached(Arc::new(store), Arc::default()))
            }
            #[cfg(feature = "dynamodb")]
            StoreUrl::DynamoDb(url) => {
                let config = dynamodb_config(&settings.store, metrics);
                let store = DynamoDbStore::new(url, &config)
                    .map_err(|error| cannot_use(error.field, &error.problem, error.hint))?;
                Ok(Backend::DynamoDb(Arc::new(store), Arc::default()))
            }
        }
    }

    /// The configured Redis with another clock than its own; the memory store has its own.
    #[cfg(test)]
    pub(super) fn by(settings: &Settings, metrics: &Arc<Metrics>, clock: Arc<dyn Clock>) -> Self {
        let StoreUrl::Redis(url) = &settings.store.url else {
            return Backend::open(settings, metrics).expect("memory is there");
        };
        let config = redis_config(&settings.store, metrics).time(TimeSource::Given(clock));
        Backend::Redis(Arc::new(RedisStore::new(url, &config).expect("a Redis")), Arc::default())
    }

    /// Records what the servers hold.
    #[cfg(test)]
    pub(super) async fn look(&self) {
        let Backend::Redis(store, holdings) = self else { return };
        look_at_each(store, holdings, &mut Vec::new()).await;
    }

    /// Whether every server of the store is usable now.
    pub(super) async fn check(&self, url: &StoreUrl) -> Result<(), Failure> {
        let problem = match self {
            Backend::Memory(_) => None,
            Backend::Redis(store, _) => {
                let reports = store.check_servers().await.into_iter();
                let mut unusable = reports.filter(|report| !matches!(report.finding, Finding::Usable { .. }));
                unusable.next().map(|report| report.to_string())
            }
            Backend::Postgres(store, _) => store.look().await.err().map(|error| why(&error)),
            Backend::Memcached(store, _) => {
                store.look().await.into_iter().find_map(Result::err).map(|error| why(&error))
            }
            #[cfg(feature = "dynamodb")]
            Backend::DynamoDb(store, _) => store.look().await.err().map(|error| why(&error)),
        };
        let Some(problem) = problem else { return Ok(()) };
        Err(Failure::new(format!("the store {url} cannot be used: {problem}"))
            .hint("`store.required: true` refuses to start without it; false starts, and rules decide by their failure policy"))
    }

    pub(super) fn store(&self) -> Arc<dyn Store> {
        match self {
            Backend::Memory(store) => store.clone(),
            Backend::Redis(store, _) => store.clone(),
            Backend::Postgres(store, _) => store.clone(),
            Backend::Memcached(store, _) => store.clone(),
            #[cfg(feature = "dynamodb")]
            Backend::DynamoDb(store, _) => store.clone(),
        }
    }

    /// The store, if nodes can tell each other through it what they run.
    pub(super) fn fleet(&self) -> Option<Arc<dyn FleetStore>> {
        match self {
            Backend::Memory(_) => None,
            Backend::Redis(store, _) => Some(store.clone()),
            Backend::Postgres(store, _) => Some(store.clone()),
            Backend::Memcached(store, _) => Some(store.clone()),
            #[cfg(feature = "dynamodb")]
            Backend::DynamoDb(store, _) => Some(store.clone()),
        }
    }

    /// Shard lists of other nodes that differ from ours.
    pub(super) fn other_shards(&self) -> Vec<String> {
        match self {
            Backend::Redis(_, holdings) => {
                holdings.other_shards.lock().unwrap_or_else(PoisonError::into_inner).clone()
            }
            _ => Vec::new(),
        }
    }

    /// The store that nodes share, if they do.
    pub(super) fn shared(&self) -> Option<Arc<dyn Store>> {
        match self {
            Backend::Memory(_) => None,
            _ => Some(self.store()),
        }
    }

    /// The settings for calls to the store, if it is remote.
    pub(super) fn remote(&self, settings: &StoreSettings) -> Option<RemoteConfig> {
        self.shared()?;
        let mut remote = RemoteConfig::new(Arc::new(TokioRuntime));
        remote.prober = prober_thread();
        if let Some(timeout) = settings.timeout {
            remote.timeout = timeout.into();
        } else if let Some(timeout) = self.usual_timeout() {
            remote.timeout = timeout.into();
        }
        let default = BreakerConfig::default();
        remote.breaker.failures = settings.breaker_failures.unwrap_or(default.failures);
        remote.breaker.open_for = settings.breaker_open_for.map_or(default.open_for, Micros::from);
        remote.expected_nodes = settings.expected_nodes;
        if let Some(cells) = settings.remembered_cells {
            remote.remembered_cells = cells.get();
        }
        Some(remote)
    }

    /// What a store has for a decision where that is not what all have.
    fn usual_timeout(&self) -> Option<Duration> {
        match self {
            #[cfg(feature = "dynamodb")]
            Backend::DynamoDb(..) => Some(DynamoDbConfig::TIMEOUT),
            _ => None,
        }
    }

    /// Sets whether this node estimates the kinds of the store's keys.
    pub(super) fn estimates_keys(&self, whether: bool) {
        if let Backend::Redis(_, holdings) = self {
            holdings.estimates.store(whether, Ordering::Relaxed);
        }
    }

    /// The approximate number of keys of each kind in the store; empty if another node estimates.
    pub(super) fn key_kinds(&self) -> Vec<(&'static str, u64)> {
        let Backend::Redis(_, holdings) = self else { return Vec::new() };
        let kinds = *holdings.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let named = |keys| KeyKind::ALL.iter().map(|kind| kind.name()).zip(keys);
        kinds.into_iter().flat_map(named).collect()
    }

    /// The store's background work, until dropped.
    pub(super) async fn keep(self) {
        match self {
            Backend::Memory(store) => sweep(&store).await,
            Backend::Redis(store, holdings) => look_at_servers(&store, &holdings).await,
            Backend::Postgres(store, holdings) => keep_postgres(&store, &holdings).await,
            Backend::Memcached(store, holdings) => keep_memcached(&store, &holdings).await,
            #[cfg(feature = "dynamodb")]
            Backend::DynamoDb(store, holdings) => keep_dynamodb(&store, &holdings).await,
        }
    }

    /// The size of the store: current for memory, a few seconds old for a shared store.
    pub(super) fn usage(&self) -> StoreUsage {
        match self {
            Backend::Memory(store) => {
                let stats = store.stats();
                StoreUsage { keys: stats.cells as u64, bytes: stats.bytes as u64, ..StoreUsage::default() }
            }
            Backend::Redis(_, holdings) | Backend::Postgres(_, holdings) => holdings.usage(),
            Backend::Memcached(store, holdings) => {
                StoreUsage { canaries: Some(store.canaries()), ..holdings.usage() }
            }
            #[cfg(feature = "dynamodb")]
            Backend::DynamoDb(_, holdings) => holdings.usage(),
        }
    }
}

impl Holdings {
    fn usage(&self) -> StoreUsage {
        StoreUsage {
            keys: self.keys.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            most_bytes: self.most_bytes.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
            canaries: None,
        }
    }
}

/// Frees the memory of idle cells.
async fn sweep(store: &MemoryStore) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    loop {
        ticks.tick().await;
        store.sweep(SWEEP_STEPS);
    }
}

/// Logs each server's state once, and once when it becomes unavailable. Keeps recording what they hold.
async fn look_at_servers(store: &RedisStore, holdings: &Holdings) {
    let mut told: Vec<String> = Vec::new();
    for look in 0_usize.. {
        look_at_each(store, holdings, &mut told).await;
        compare_shards(store, holdings).await;
        estimate_kinds(store, holdings, look).await;
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// A node that has just taken this over starts at once.
async fn estimate_kinds(store: &RedisStore, holdings: &Holdings, look: usize) {
    let known = || holdings.kinds.lock().unwrap_or_else(PoisonError::into_inner);
    if !holdings.estimates.load(Ordering::Relaxed) {
        *known() = None;
    } else if look.is_multiple_of(ESTIMATE_EVERY) || known().is_none() {
        let estimated = store.estimate_keys().await.ok();
        *known() = estimated;
    }
}

async fn look_at_each(store: &RedisStore, holdings: &Holdings, told: &mut Vec<String>) {
    let (mut all_keys, mut all_bytes, mut all_most, mut all_evicted) = (0, 0, 0, 0);
    for report in store.check_servers().await {
        if let Finding::Usable { keys, bytes, most_bytes, evicted, .. } = report.finding {
            all_keys += keys;
            all_bytes += bytes;
            all_most += most_bytes;
            all_evicted += evicted;
        }
        tell_once(&report, told);
    }
    holdings.keys.store(all_keys, Ordering::Relaxed);
    holdings.bytes.store(all_bytes, Ordering::Relaxed);
    holdings.most_bytes.store(all_most, Ordering::Relaxed);
    // A restarted server counts from zero, but our counter must never go down.
    holdings.evicted.fetch_max(all_evicted, Ordering::Relaxed);
}

/// Detects nodes that spread keys over other shards than this one.
async fn compare_shards(store: &RedisStore, holdings: &Holdings) {
    let found = store.other_shard_lists().await;
    let mut known = holdings.other_shards.lock().unwrap_or_else(PoisonError::into_inner);
    if *known != found && !found.is_empty() {
        tracing::warn!(shards = ?found, "some nodes use other shards: they do not count together with this one");
    }
    *known = found;
}

fn tell_once(report: &ServerReport, told: &mut Vec<String>) {
    let (endpoint, line) = (report.endpoint.as_str(), report.to_string());
    // A continuing outage is not news, even if the error text changes.
    let away = matches!(report.finding, Finding::Away(_));
    let news = if away { format!("{endpoint} is unavailable") } else { line.clone() };
    if told.contains(&news) || told.len() >= MOST_NEWS {
        return;
    }
    told.push(news);
    match &report.finding {
        Finding::Away(_) => {
            tracing::warn!("store {line}; rules decide by their failure policy until it does");
        }
        Finding::TooOld { .. } => tracing::error!("store {line}"),
        Finding::Usable { warnings, .. } if !warnings.is_empty() => tracing::warn!("store {line}"),
        _ => tracing::info!("store {line}"),
    }
}

fn memory_bounds(limits: &Limits) -> MemoryConfig {
    let default = MemoryConfig::default();
    MemoryConfig::new()
        .max_cells(limits.max_cells.map_or(default.max_cells, |Count(cells)| cells.get()))
        .max_log_bytes(limits.max_log_bytes.map_or(default.max_log_bytes, |Count(bytes)| bytes.get()))
}

fn redis_config(settings: &StoreSettings, metrics: &Arc<Metrics>) -> RedisConfig {
    let default = RedisConfig::default();
    RedisConfig::default()
        .key_prefix(settings.key_prefix.clone().unwrap_or(default.key_prefix))
        .timeout(settings.timeout.unwrap_or(default.timeout))
        .late_answers(LATE_CALLS_HEARD_FOR.into())
        .tls(settings.tls.clone())
        .sentinel_credentials(settings.sentinel.clone())
        .observer(Arc::new(CountCalls(metrics.clone())))
}

fn postgres_config(settings: &StoreSettings, metrics: &Arc<Metrics>) -> PostgresConfig {
    let default = PostgresConfig::default();
    let mut tls = tidegate_store_postgres::TlsFiles::default();
    (tls.ca, tls.certificate, tls.key) =
        (settings.tls.ca.clone(), settings.tls.certificate.clone(), settings.tls.key.clone());
    PostgresConfig::default()
        .key_prefix(settings.key_prefix.clone().unwrap_or(default.key_prefix))
        .timeout(settings.timeout.unwrap_or(default.timeout))
        .late_answers(LATE_CALLS_HEARD_FOR.into())
        .tls(tls)
        .observer(Arc::new(CountCalls(metrics.clone())))
}

fn memcached_config(settings: &StoreSettings, metrics: &Arc<Metrics>) -> MemcachedConfig {
    let default = MemcachedConfig::default();
    MemcachedConfig::default()
        .key_prefix(settings.key_prefix.clone().unwrap_or(default.key_prefix))
        .timeout(settings.timeout.unwrap_or(default.timeout))
        .late_answers(LATE_CALLS_HEARD_FOR.into())
        .observer(Arc::new(CountCalls(metrics.clone())))
}

#[cfg(feature = "dynamodb")]
fn dynamodb_config(settings: &StoreSettings, metrics: &Arc<Metrics>) -> DynamoDbConfig {
    let default = DynamoDbConfig::default();
    DynamoDbConfig::default()
        .key_prefix(settings.key_prefix.clone().unwrap_or(default.key_prefix))
        .timeout(settings.timeout.unwrap_or(default.timeout))
        .late_answers(LATE_CALLS_HEARD_FOR.into())
        .observer(Arc::new(CountCalls(metrics.clone())))
}

fn cannot_use(field: &str, problem: &str, hint: &str) -> Failure {
    Failure::new(format!("cannot use the store: {field}: {problem}")).hint(hint)
}

/// Sweeps every second, and looks at the server now and then. Logs its state once, and once when it becomes unavailable.
async fn keep_postgres(store: &PostgresStore, holdings: &Holdings) {
    const LOOKS: usize = (LOOK_AGAIN.as_secs() / SWEEP_EVERY.as_secs()) as usize;
    let mut told = String::new();
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for tick in 0_usize.. {
        ticks.tick().await;
        if tick.is_multiple_of(LOOKS) {
            look_at_postgres(store, holdings, &mut told).await;
        }
        // What it could not delete now it finds again in a minute; whether the server answers is said above.
        let _ = store.sweep().await;
    }
}

async fn look_at_postgres(store: &PostgresStore, holdings: &Holdings, told: &mut String) {
    let endpoint = store.endpoint(0);
    match store.look().await {
        Ok(report) => {
            holdings.keys.store(report.rows, Ordering::Relaxed);
            holdings.bytes.store(report.bytes, Ordering::Relaxed);
            let news = format!("store {endpoint} runs PostgreSQL {}", report.version);
            if *told != news {
                tracing::info!("{news}");
                report.warnings.iter().for_each(|warning| tracing::warn!("store {endpoint}: {warning}"));
                *told = news;
            }
        }
        Err(error) => {
            // A continuing outage is not news, even if the error text changes.
            let news = format!("{endpoint} is unavailable");
            if *told != news {
                let why = why(&error);
                tracing::warn!(
                    "store {endpoint}: {why}; rules decide by their failure policy until it answers"
                );
                *told = news;
            }
        }
    }
}

/// Looks at the table now and then: what it holds changes every few hours, whether it answers at any time.
#[cfg(feature = "dynamodb")]
async fn keep_dynamodb(store: &DynamoDbStore, holdings: &Holdings) {
    const LOOK_WHERE_FINE: Duration = Duration::from_secs(60);
    let (endpoint, mut told) = (store.endpoint(0), String::new());
    loop {
        let report = store.look().await;
        let (news, again) = match &report {
            Ok(report) => (format!("{endpoint}: {:?}", report.warnings), LOOK_WHERE_FINE),
            // A continuing outage is not news, even if the error text changes.
            Err(_) => (format!("{endpoint} is unavailable"), LOOK_AGAIN),
        };
        let is_news = std::mem::replace(&mut told, news.clone()) != news;
        match report {
            Ok(report) => {
                holdings.keys.store(report.items, Ordering::Relaxed);
                holdings.bytes.store(report.bytes, Ordering::Relaxed);
                if is_news {
                    tracing::info!("store {endpoint} is DynamoDB");
                    report.warnings.iter().for_each(|warning| tracing::warn!("store {endpoint}: {warning}"));
                }
            }
            Err(error) if is_news => {
                let why = why(&error);
                tracing::warn!(
                    "store {endpoint}: {why}; rules decide by their failure policy until it answers"
                );
            }
            Err(_) => {}
        }
        tokio::time::sleep(again).await;
    }
}

/// Looks at the servers now and then. Logs the state of each once, and once when it changes.
async fn keep_memcached(store: &MemcachedStore, holdings: &Holdings) {
    let mut told = vec![String::new(); store.nodes()];
    loop {
        let (mut keys, mut bytes, mut most, mut evicted) = (0, 0, 0, 0);
        for (server, report) in store.look().await.into_iter().enumerate() {
            let endpoint = store.endpoint(server);
            let news = match &report {
                Ok(report) => {
                    (keys, bytes) = (keys + report.items, bytes + report.bytes);
                    (most, evicted) = (most + report.most_bytes, evicted + report.evictions);
                    format!("store {endpoint} runs Memcached {}: {:?}", report.version, report.warnings)
                }
                // A continuing outage is not news, even if the error text changes.
                Err(_) => format!("{endpoint} is unavailable"),
            };
            if told[server] == news {
                continue;
            }
            match report {
                Ok(report) => {
                    tracing::info!("store {endpoint} runs Memcached {}", report.version);
                    report.warnings.iter().for_each(|warning| tracing::warn!("store {endpoint}: {warning}"));
                }
                Err(error) => {
                    let why = why(&error);
                    tracing::warn!(
                        "store {endpoint}: {why}; rules decide by their failure policy until it answers"
                    );
                }
            }
            told[server] = news;
        }
        holdings.keys.store(keys, Ordering::Relaxed);
        holdings.bytes.store(bytes, Ordering::Relaxed);
        holdings.most_bytes.store(most, Ordering::Relaxed);
        // A restarted server counts from zero, but our counter must never go down.
        holdings.evicted.fetch_max(evicted, Ordering::Relaxed);
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// A store's error with its causes, on one line.
fn why(error: &StoreError) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Counts round trips to servers.
struct CountCalls(Arc<Metrics>);

impl tidegate_store_postgres::Observer for CountCalls {
    fn called(&self, failure: Option<&'static str>) {
        self.0.server_called(failure);
    }
}

#[cfg(feature = "dynamodb")]
impl tidegate_store_dynamodb::Observer for CountCalls {
    fn called(&self, failure: Option<&'static str>) {
        self.0.server_called(failure);
    }
}

impl tidegate_store_memcached::Observer for CountCalls {
    fn called(&self, failure: Option<&'static str>) {
        self.0.server_called(failure);
    }
}

impl tidegate_store_redis::Observer for CountCalls {
    fn called(&self, _: Operation, _: usize, _: Duration, failure: Option<Reason>) {
        self.0.server_called(failure.map(Reason::name));
    }

    fn failed(&self, server: &str, reason: Reason) {
        self.0.server_failed(server, reason.name());
    }
}
