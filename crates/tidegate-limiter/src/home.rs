//! The path to a store that counts for all regions: as to the region's own, but far away, and asked in the background.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use arc_swap::ArcSwap;
use tidegate_core::Micros;
use tidegate_store::{Clock as _, StoreError};

use crate::config::{HomeConfig, RemoteConfig};
use crate::deny_cache::DenyCache;
use crate::health::{Health, NodeHealth};
use crate::lease::keys::LeaseKeys;
use crate::lifecycle::Lifecycle;
use crate::local::{LocalCells, ShareStats};
use crate::node_clock::NodeClock;
use crate::observer::{BreakerState, Observer};
use crate::remote::{Remote, RemoteParts, RequestNames};
use crate::snapshot::Snapshot;

/// The path to `home`, which runs where `own` does.
pub(crate) fn path(
    home: &HomeConfig,
    own: &RemoteConfig,
    local: Arc<LocalCells>,
    (observer, clock): (&Arc<dyn Observer>, &NodeClock),
) -> Remote {
    Remote::new(RemoteParts {
        store: home.store.clone(),
        runtime: own.runtime.clone(),
        prober: own.prober.clone(),
        queue: own.queue,
        timeout: home.ask_within,
        breaker: home.breaker,
        most_orphans: 1,
        deny_cache: Arc::new(DenyCache::new(0)),
        local,
        observer: Arc::new(FarAway(observer.clone())),
        clock: clock.clone(),
    })
}

/// A store that counts for all regions, as this node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HomeStatus {
    /// Its servers, as an operator knows them, with commas between.
    pub store: String,
    /// What this node holds of its limits.
    pub shares: ShareStats,
    /// How many nodes count there, of all regions.
    pub fleet: u64,
    /// How long ago it last answered a heartbeat, of which there is one a second; none: never.
    pub answered_ago: Option<Micros>,
    /// How long that answer took.
    pub round_trip: Option<Micros>,
    /// Why it is not used, if it is not.
    pub failure: Option<String>,
}

impl HomeStatus {
    pub(crate) fn of(home: &Arc<Remote>) -> Self {
        let last = home.local.fleet.last_answer(home.clock.uptime());
        let servers = NodeHealth::of_all(home).into_iter().map(|node| node.endpoint);
        let failure = match Health::of(std::iter::once(home)) {
            Health::Healthy => None,
            Health::Degraded { reason } => Some(reason),
        };
        HomeStatus {
            store: servers.collect::<Vec<_>>().join(","),
            shares: home.local.purses.stats(),
            fleet: home.local.fleet.size(),
            answered_ago: last.map(|(ago, _)| ago),
            round_trip: last.map(|(_, took)| took),
            failure,
        }
    }
}

/// A task of a limiter.
pub(crate) type Work<'w> = Pin<Box<dyn Future<Output = ()> + Send + 'w>>;

/// Runs the background work of a home until the limiter ends.
pub(crate) fn maintain<'w>(
    home: &'w Arc<Remote>,
    rules: &'w ArcSwap<Snapshot>,
    life: &'w Lifecycle,
) -> Work<'w> {
    Box::pin(async move {
        // It keeps neither leases nor names of requests.
        let (names, keys) = (RequestNames::new(), LeaseKeys::new(Some(b"none are issued")));
        let end = home.maintain(rules, &names, &keys, life).await;
        home.shut_down(end, &names).await;
    })
}

/// Ready once all are.
pub(crate) async fn all(mut tasks: Vec<Work<'_>>) {
    std::future::poll_fn(|context| {
        tasks.retain_mut(|task| task.as_mut().poll(context).is_pending());
        if tasks.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Hears of a home's failures. Its calls take as long as the distance, and its fleet is that of all regions: neither is a figure of
/// this region's store.
struct FarAway(Arc<dyn Observer>);

impl Observer for FarAway {
    fn store_failed(&self, error: &StoreError) {
        self.0.store_failed(error);
    }

    fn breaker_changed(&self, endpoint: &str, state: BreakerState) {
        self.0.breaker_changed(endpoint, state);
    }
}
