//! Everything that `/metrics` tells, gathered from the parts that know it.

use std::sync::Arc;

use tidegate_admin::{Exposition, ListenerConnections, Metrics};
use tidegate_limiter::{Limiter, RemoteStats};
use tidegate_server::runtime::DataPlane;

use super::backend::Backend;
use super::busy::BusyRatio;

/// `limiters` has one for each worker.
pub(super) fn gather(
    metrics: &Arc<Metrics>,
    backend: &Backend,
    plane: &DataPlane,
    limiters: Vec<Arc<Limiter>>,
    busy: &Arc<BusyRatio>,
) -> Exposition {
    let (loads, busy) = (plane.loads(), busy.clone());
    let connections = move || {
        let listeners = loads.read().map(|load| ListenerConnections {
            listener: load.name,
            open: load.open.iter().sum::<usize>() as u64,
            accepted: load.accepted,
            refused: load.refused,
            evicted: load.evicted,
        });
        listeners.collect()
    };
    let holder = backend.clone();
    let exposition = Exposition::new(metrics.clone())
        .with_connections(connections)
        .with_busy_ratio(move || busy.ratio())
        .with_usage(move || holder.usage());
    match backend {
        Backend::Memory(store) => {
            let store = store.clone();
            exposition.with_store(move || store.stats())
        }
        Backend::Redis(..) => {
            let (all, some) = (Arc::new(limiters), |limiters: &[Arc<Limiter>]| limiters[0].clone());
            let (own, nodes) = (some(&all), some(&all));
            exposition
                .with_store(move || own.remote_stats().unwrap_or_default().own)
                .with_nodes(move || nodes.nodes())
                .with_remote(move || in_all(&all))
        }
    }
}

/// What all workers hold: each has calls and queues of its own, and the rest in common.
fn in_all(limiters: &[Arc<Limiter>]) -> RemoteStats {
    let stats = limiters.iter().filter_map(|limiter| limiter.remote_stats());
    let sum = |all: RemoteStats, one: RemoteStats| RemoteStats {
        calls: all.calls + one.calls,
        waiting: all.waiting + one.waiting,
        ..one
    };
    stats.reduce(sum).unwrap_or_default()
}
