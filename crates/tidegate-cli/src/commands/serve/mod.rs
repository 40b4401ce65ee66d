//! `tidegate serve`: puts the parts together, and takes them apart again when told to.
//!
//! The data plane has threads of its own. This thread is the control plane's: signals, reloading, sweeping, metrics.

mod announce;
mod data_plane;
mod reloader;
mod signals;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tidegate_admin::{Admin, Exposition, ListenerConnections, Metrics};
use tidegate_limiter::{Limiter, LimiterConfig};
use tidegate_server::runtime::DataPlane;
use tidegate_store::{MemoryConfig, MemoryStore};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tonic_health::ServingStatus;

use crate::args::ServeArgs;
use crate::failure::Failure;
use crate::logging;
use crate::reload::Watch;
use crate::settings::{Bounds, Settings, StoreUrl};
use data_plane::Running;
use reloader::Reloader;
use signals::StopSignals;

/// A sweep goes through all cells in this many steps, one a second.
const SWEEP_STEPS: usize = 60;
const SWEEP_EVERY: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let environment: Vec<_> = std::env::vars_os().collect();
    let settings = Settings::gather(args, environment.into_iter())?;
    logging::start(&settings.log_filter, settings.log_format);
    let control = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot_start)?;
    let ended = control.block_on(serve(settings));
    // Who was told to stop at once does not wait for a drain that is still under way.
    control.shutdown_background();
    ended
}

async fn serve(settings: Settings) -> Result<ExitCode, Failure> {
    let mut stop = StopSignals::install().map_err(cannot_start)?;
    let hangups = signals::hangups().map_err(cannot_start)?;
    // In this order, so that a change of a file is noticed even if it comes between the two.
    let watch = Watch::new(settings.rules.paths());
    let rules = settings.rules.load()?;
    if let Some(warnings) = rules.rules.warnings() {
        reloader::log_each(warnings);
    }
    let files = rules.files;
    let store = match settings.store {
        StoreUrl::Memory => Arc::new(MemoryStore::new(memory_bounds(&settings.bounds))),
    };
    let metrics = Arc::new(Metrics::new());
    let limiter = LimiterConfig::new(rules.rules, store.clone(), metrics.clone());
    let limiter = Arc::new(Limiter::new(limiter));
    metrics.rules_in_use(&limiter.snapshot());

    let Running { plane, health } = data_plane::start(&settings, &limiter, &metrics)?;
    let admin = settings
        .admin
        .map(Admin::bind)
        .transpose()
        .map_err(|error| data_plane::cannot_bind("admin", error.address, &error.source))?;
    announce_all(&settings, &plane, admin.as_ref());
    tracing::info!(rules = limiter.snapshot().rules().rules().len(), files, "serving");

    let (stop_admin, admin_stops) = oneshot::channel::<()>();
    let exposition = exposition(&metrics, &store, &plane);
    let mut background = JoinSet::new();
    let serving_admin = tokio::spawn(async move {
        if let Some(admin) = admin {
            let stopped = async { drop(admin_stops.await) };
            admin.serve(exposition, stopped).await.expect("the listener is ours");
        }
    });
    background.spawn(sweep(store));
    background.spawn(Reloader::new(settings.rules, watch, limiter, metrics).run(hangups));

    let signal = stop.next().await;
    tracing::info!(signal, "stopping: requests in flight may finish");
    health.set_service_status("", ServingStatus::NotServing).await;
    let finish = async {
        drain(plane).await;
        // Last, so that the drain can be watched.
        drop(stop_admin);
        let _ = serving_admin.await;
    };
    tokio::select! {
        () = finish => {}
        signal = stop.next() => tracing::warn!(signal, "stopping at once"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Lets requests in flight finish.
async fn drain(plane: DataPlane) {
    let drained = tokio::task::spawn_blocking(move || plane.drain()).await.expect("a drain does not panic");
    if drained.cut > 0 {
        tracing::warn!(
            connections = drained.cut,
            "connections were cut: they took longer than `drain` allows"
        );
    }
}

/// Gives memory back that nobody asks about any more.
async fn sweep(store: Arc<MemoryStore>) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    loop {
        ticks.tick().await;
        store.sweep(SWEEP_STEPS);
    }
}

fn memory_bounds(bounds: &Bounds) -> MemoryConfig {
    let default = MemoryConfig::default();
    MemoryConfig {
        max_cells: bounds.max_cells.map_or(default.max_cells, |cells| cells.get()),
        max_log_bytes: bounds.max_log_bytes.map_or(default.max_log_bytes, |bytes| bytes.get()),
    }
}

fn exposition(metrics: &Arc<Metrics>, store: &Arc<MemoryStore>, plane: &DataPlane) -> Exposition {
    let (store, loads) = (store.clone(), plane.loads());
    let connections = move || {
        let listeners = loads.read().map(|load| ListenerConnections {
            listener: load.name,
            open: load.open.iter().sum::<usize>() as u64,
            accepted: load.accepted,
            refused: load.refused,
        });
        listeners.collect()
    };
    Exposition::new(metrics.clone()).with_store(move || store.stats()).with_connections(connections)
}

/// Nobody reading stdout is no reason to stop.
fn announce_all(settings: &Settings, plane: &DataPlane, admin: Option<&Admin>) {
    let mut listeners = plane.addresses().to_vec();
    let http = listeners.iter().find(|(name, _)| *name == "http").map(|(_, address)| *address);
    listeners.extend(admin.map(|admin| ("admin", admin.address())));
    let mut out = io::stdout().lock();
    let _ = announce::listeners(&mut out, &listeners);
    if settings.rules.is_starter() {
        let _ = announce::starter(&mut out, http);
    }
}

fn cannot_start(error: io::Error) -> Failure {
    Failure::new(format!("the system refuses what a server needs: {error}"))
}
