//! Opens the configured store, and runs its background work: memory, Redis, or another that nodes share (`stores`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::Micros;
use tidegate_fleet::FleetStore;
use tidegate_limiter::{BreakerConfig, LATE_CALLS_HEARD_FOR, RemoteConfig, TokioRuntime, prober_thread};
use tidegate_metrics::{Metrics, StoreUsage};
#[cfg(test)]
use tidegate_store::Clock;
use tidegate_store::{CallObserver, MemoryConfig, MemoryStore, Store, StoreError};
#[cfg(test)]
use tidegate_store_redis::TimeSource;
use tidegate_store_redis::{Finding, KeyKind, Operation, Reason, RedisConfig, RedisStore, ServerReport};

use crate::failure::Failure;
use crate::settings::{Count, Limits, Settings, StoreSettings, StoreUrl};
use crate::stores::{LOOK_AGAIN, ServerState, SharedStore, cannot_use};

/// Where counters live.
#[derive(Clone)]
pub(super) enum Backend {
    Memory(Arc<MemoryStore>),
    /// Each runtime that uses it has its own connections, so all workers may share it.
    Redis(Arc<RedisStore>, Arc<Holdings>),
    /// The same.
    Shared(Arc<dyn SharedStore>, Arc<Holdings>),
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
    /// Whether a call failed since the last look.
    has_failed: AtomicBool,
    /// Whether this node estimates the kinds of keys: one node does for the fleet.
    estimates: AtomicBool,
    /// The last estimate; `None` if another node makes it.
    kinds: Mutex<Option<[u64; KeyKind::ALL.len()]>>,
}

/// A sweep covers all cells in this many steps, one per second.
const SWEEP_STEPS: usize = 60;
const SWEEP_EVERY: Duration = Duration::from_secs(1);
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
            StoreUrl::Shared(address) => {
                let holdings = Arc::<Holdings>::default();
                let observer = CountSharedCalls { metrics: metrics.clone(), holdings: holdings.clone() };
                Ok(Backend::Shared(address.open(&settings.store, Arc::new(observer))?, holdings))
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
            Backend::Shared(store, _) => {
                store.look_at_each().await.into_iter().find_map(Result::err).map(|error| why(&error))
            }
        };
        let Some(problem) = problem else { return Ok(()) };
        Err(Failure::new(format!("the store {url} cannot be used: {problem}"))
            .hint("`store.required: true` refuses to start without it; false starts, and rules decide by their failure policy"))
    }

    pub(super) fn store(&self) -> Arc<dyn Store> {
        match self {
            Backend::Memory(store) => store.clone(),
            Backend::Redis(store, _) => store.clone(),
            Backend::Shared(store, _) => store.clone(),
        }
    }

    /// The store, if nodes can tell each other through it what they run.
    pub(super) fn fleet(&self) -> Option<Arc<dyn FleetStore>> {
        match self {
            Backend::Memory(_) => None,
            Backend::Redis(store, _) => Some(store.clone()),
            Backend::Shared(store, _) => Some(store.clone()),
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
        } else if let StoreUrl::Shared(address) = &settings.url
            && let Some(timeout) = address.timeout()
        {
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
            Backend::Shared(store, holdings) => {
                tokio::join!(look_at_shared(&*store, &holdings), store.upkeep());
            }
        }
    }

    /// The size of the store: current for memory, a few seconds old for a shared store.
    pub(super) fn usage(&self) -> StoreUsage {
        match self {
            Backend::Memory(store) => {
                let stats = store.stats();
                StoreUsage { keys: stats.cells as u64, bytes: stats.bytes as u64, ..StoreUsage::default() }
            }
            Backend::Redis(_, holdings) => holdings.usage(),
            Backend::Shared(store, holdings) => StoreUsage { canaries: store.canaries(), ..holdings.usage() },
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

    /// The counts of all servers.
    fn set(&self, found: &StoreUsage) {
        self.keys.store(found.keys, Ordering::Relaxed);
        self.bytes.store(found.bytes, Ordering::Relaxed);
        self.most_bytes.store(found.most_bytes, Ordering::Relaxed);
        // A restarted server counts from zero, but our counter must never go down.
        self.evicted.fetch_max(found.evicted, Ordering::Relaxed);
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
    let mut all = StoreUsage::default();
    for report in store.check_servers().await {
        if let Finding::Usable { keys, bytes, most_bytes, evicted, .. } = report.finding {
            add(&mut all, [keys, bytes, most_bytes, evicted]);
        }
        tell_once(&report, told);
    }
    holdings.set(&all);
}

/// Adds what one server holds.
fn add(all: &mut StoreUsage, [keys, bytes, most_bytes, evicted]: [u64; 4]) {
    all.keys += keys;
    all.bytes += bytes;
    all.most_bytes += most_bytes;
    all.evicted += evicted;
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

/// Looks at the servers now and then. Logs the state of each once, and once when it changes.
async fn look_at_shared(store: &dyn SharedStore, holdings: &Holdings) {
    let mut told = vec![String::new(); store.nodes()];
    loop {
        let (mut found, mut again) = (None, store.look_every());
        for (server, state) in store.look_at_each().await.into_iter().enumerate() {
            let news = match &state {
                Ok(state) => {
                    let held = [state.keys, state.bytes, state.most_bytes, state.evicted];
                    add(found.get_or_insert_default(), held);
                    format!("{}: {:?}", state.is, state.warnings)
                }
                // A continuing outage is not news, even if the error text changes.
                Err(_) => {
                    again = LOOK_AGAIN;
                    "unavailable".to_owned()
                }
            };
            if told[server] != news {
                tell(&store.endpoint(server), state);
                told[server] = news;
            }
        }
        if let Some(found) = found {
            holdings.set(&found);
        }
        wait_to_look(again, &holdings.has_failed).await;
    }
}

/// Waits for `again`, but no longer than for the usual time once calls fail: a look may mend that, as where a table is missing.
async fn wait_to_look(again: Duration, has_failed: &AtomicBool) {
    has_failed.store(false, Ordering::Relaxed);
    let mut waited = Duration::ZERO;
    while waited < again {
        tokio::time::sleep(LOOK_AGAIN).await;
        waited += LOOK_AGAIN;
        if has_failed.load(Ordering::Relaxed) {
            return;
        }
    }
}

fn tell(endpoint: &str, state: Result<ServerState, StoreError>) {
    match state {
        Ok(state) => {
            tracing::info!("store {endpoint} is {}", state.is);
            state.warnings.iter().for_each(|warning| tracing::warn!("store {endpoint}: {warning}"));
        }
        Err(error) => {
            let why = why(&error);
            tracing::warn!("store {endpoint}: {why}; rules decide by their failure policy until it answers");
        }
    }
}

/// A store's error with its causes, on one line.
fn why(error: &StoreError) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Counts round trips to servers.
struct CountCalls(Arc<Metrics>);

/// The same, and notes for the looks that one failed.
struct CountSharedCalls {
    metrics: Arc<Metrics>,
    holdings: Arc<Holdings>,
}

impl CallObserver for CountSharedCalls {
    fn called(&self, server: &str, failure: Option<&'static str>) {
        self.metrics.server_called(failure);
        if let Some(reason) = failure {
            self.metrics.server_failed(server, reason);
            self.holdings.has_failed.store(true, Ordering::Relaxed);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_store_whose_calls_fail_is_looked_at_again_soon() {
        let (long, has_failed) = (Duration::from_secs(60), AtomicBool::new(true));
        let began = tokio::time::Instant::now();
        wait_to_look(long, &has_failed).await;
        assert_eq!(began.elapsed(), long, "what failed before the last look is over");
        let fails = async {
            tokio::time::sleep(Duration::from_secs(12)).await;
            has_failed.store(true, Ordering::Relaxed);
        };
        let began = tokio::time::Instant::now();
        tokio::join!(wait_to_look(long, &has_failed), fails);
        assert_eq!(began.elapsed(), Duration::from_secs(15));
    }
}
