//! Assembles `/metrics` from all parts.

use std::sync::Arc;

use tidegate_access::ServerTls;
use tidegate_limiter::{Limiter, RemoteStats};
use tidegate_metrics::{
    BusyRatio as Busy, CertificateEnd, KeyKinds, LentQuotas, ListenerConnections, Metrics, Registry,
    UpstreamCounts, WithheldLines,
};
use tidegate_proxy::UpstreamReader;
use tidegate_runtime::DataPlane;
use tidegate_server::rlqs::Quotas;
use tidegate_store::{Clock as _, SystemClock};

use super::backend::Backend;
use super::busy::BusyRatio;
use crate::repeats::Repeats;

/// `limiters` has one entry per worker.
pub(super) fn gather(
    metrics: &Arc<Metrics>,
    backend: &Backend,
    plane: &DataPlane,
    limiters: Vec<Arc<Limiter>>,
    busy: &Arc<BusyRatio>,
) -> Registry {
    let (loads, busy) = (plane.loads(), busy.clone());
    let connections = move || {
        let listeners = loads.read().map(|load| ListenerConnections {
            listener: load.name,
            open: load.open.iter().sum::<usize>() as u64,
            accepted: load.accepted,
            refused: load.refused,
            evicted: load.evicted,
        });
        listeners.collect::<Vec<_>>()
    };
    let (holder, keys) = (backend.clone(), backend.clone());
    let registry = Registry::new(metrics.clone())
        .with(connections)
        .with(move || Busy(busy.ratio()))
        .with(move || holder.usage())
        .with(move || KeyKinds(keys.key_kinds()));
    match backend {
        Backend::Memory(store) => {
            let store = store.clone();
            registry.with(move || store.stats())
        }
        _ => {
            let (all, some) = (Arc::new(limiters), |limiters: &[Arc<Limiter>]| limiters[0].clone());
            let (own, nodes, shares, homes) = (some(&all), some(&all), some(&all), some(&all));
            registry
                .with(move || own.remote_stats().unwrap_or_default().own)
                .with(move || nodes.nodes())
                .with(move || shares.shares())
                .with(move || homes.homes())
                .with(move || in_all(&all))
        }
    }
}

/// Adds the proxy, the certificates and the log, where they exist.
pub(super) fn with_surroundings(
    mut registry: Registry,
    upstreams: Option<UpstreamReader>,
    certificates: Vec<(&'static str, Arc<ServerTls>)>,
    repeats: Repeats,
) -> Registry {
    if let Some(reader) = upstreams {
        let clock = SystemClock::new();
        registry = registry.with(move || {
            let counts = reader.read(clock.now()).into_iter().map(|one| UpstreamCounts {
                upstream: one.upstream,
                answered: one.answered,
                failures: one.failures.into(),
                servers: one.servers,
                well: one.well,
            });
            counts.collect::<Vec<_>>()
        });
    }
    if !certificates.is_empty() {
        registry = registry.with(move || {
            let ends = certificates.iter().filter_map(|(listener, tls)| {
                Some(CertificateEnd { listener, not_after_seconds: tls.ends_at_seconds()? as f64 })
            });
            ends.collect::<Vec<_>>()
        });
    }
    registry.with(move || WithheldLines(repeats.total()))
}

/// The sums over all workers: each has its own calls and queues, and the rest is shared.
fn in_all(limiters: &[Arc<Limiter>]) -> RemoteStats {
    let stats = limiters.iter().filter_map(|limiter| limiter.remote_stats());
    let sum = |all: RemoteStats, one: RemoteStats| RemoteStats {
        calls: all.calls + one.calls,
        late_calls: all.late_calls + one.late_calls,
        waiting: all.waiting + one.waiting,
        ..one
    };
    stats.reduce(sum).unwrap_or_default()
}

/// What is lent to Envoys.
pub(super) fn quotas(quotas: &Quotas) -> LentQuotas {
    let counts = quotas.counts();
    LentQuotas {
        lends: counts.lends,
        streams: counts.streams,
        buckets: counts.buckets,
        limits: counts.budgets,
        lent_per_second: counts.lent_milli as f64 / 1_000.0,
        refused: vec![("streams", counts.refused_streams), ("buckets", counts.refused_buckets)],
        abandoned: counts.abandoned,
        requests: counts
            .reported
            .into_iter()
            .map(|(domain, [allowed, denied])| (domain, allowed, denied))
            .collect(),
    }
}
