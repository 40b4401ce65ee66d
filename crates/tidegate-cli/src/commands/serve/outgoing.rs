//! Exports of the server: StatsD, OTLP, and alerts, which [`AlertWatcher`] detects. All on the control plane's thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_admin::at_low_priority;
use tidegate_metrics::{Families, LostExports, Metrics, Registry};
use tidegate_store::{Clock as _, SystemClock};
use tidegate_telemetry::SpanQueue;
use tidegate_telemetry::emf::Emf;
use tidegate_telemetry::otlp::{Exporter, Identity};
use tidegate_telemetry::statsd::Statsd;
use tokio::task::JoinSet;

use super::alert_watcher::AlertWatcher;
use crate::failure::Failure;
use crate::settings::telemetry::{EmfSettings, OtlpSettings, StatsdSettings, TelemetrySettings};

/// The configured exports, ready to start.
pub(super) struct Outgoing {
    statsd: Option<(Statsd, Duration)>,
    otlp: Option<OtlpSettings>,
    emf: Option<EmfSettings>,
    /// The queue for spans of sampled traces, if they are exported.
    pub(super) spans: Option<Arc<SpanQueue>>,
    node: String,
}

impl Outgoing {
    pub(super) fn new(
        settings: &TelemetrySettings,
        node: String,
        metrics: &Metrics,
    ) -> Result<Self, Failure> {
        let open = |one: &StatsdSettings| {
            let statsd = Statsd::new(one.to, one.lines.clone()).map_err(|error| {
                Failure::new(format!("telemetry.statsd: the system gives no socket: {error}"))
            })?;
            Ok::<_, Failure>((statsd, one.every))
        };
        let statsd = settings.statsd.as_ref().map(open).transpose()?;
        if statsd.is_some() {
            metrics.count_hits();
        }
        let spans = settings.otlp.as_ref().map(|otlp| Arc::new(SpanQueue::new(otlp.traces)));
        Ok(Outgoing { statsd, otlp: settings.otlp.clone(), emf: settings.emf.clone(), spans, node })
    }

    /// Starts the exports of `registry` and, if alerts are enabled, the alert_watcher.
    pub(super) fn start(
        self,
        registry: Registry,
        alert_watcher: Option<AlertWatcher>,
        background: &mut JoinSet<()>,
    ) -> Arc<Registry> {
        let failed_metrics = Arc::new(AtomicU64::new(0));
        let mut registry = self.with_losses(registry, failed_metrics.clone());
        if let Some(alert_watcher) = &alert_watcher {
            registry = registry.with(alert_watcher.stats());
        }
        let registry = Arc::new(registry);
        self.start_exports(&registry, failed_metrics, background);
        if let Some(alert_watcher) = alert_watcher {
            background.spawn(alert_watcher.deliver());
            background.spawn(alert_watcher.run(registry.clone()));
        }
        registry
    }

    /// Adds the counts of lost exports; none if nothing is exported.
    fn with_losses(&self, registry: Registry, failed_metrics: Arc<AtomicU64>) -> Registry {
        let statsd = self.statsd.as_ref().map(|(statsd, _)| statsd.dropped());
        let spans = self.spans.clone();
        if statsd.is_none() && spans.is_none() {
            return registry;
        }
        registry.with(move || {
            let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
            let statsd = statsd.as_ref().map(|dropped| ("statsd", read(dropped)));
            let otlp = spans.as_ref();
            let metrics = otlp.map(|_| ("otlp_metrics", read(&failed_metrics)));
            let traces = otlp.map(|spans| ("otlp_traces", spans.lost()));
            LostExports(statsd.into_iter().chain(metrics).chain(traces).collect())
        })
    }

    fn start_exports(self, registry: &Arc<Registry>, failed: Arc<AtomicU64>, background: &mut JoinSet<()>) {
        if let Some((statsd, every)) = self.statsd {
            let registry = registry.clone();
            background.spawn(statsd.run(every, move || counted(&registry)));
        }
        if let Some(emf) = self.emf {
            let registry = registry.clone();
            let lines = Emf::new(&emf.namespace);
            background.spawn(async move {
                lines.run(emf.every, move || all(&registry), || now_ns() / 1_000_000, io::stdout()).await;
            });
        }
        if let (Some(otlp), Some(spans)) = (self.otlp, self.spans) {
            let exporter = Arc::new(Exporter {
                endpoint: otlp.endpoint,
                headers: otlp.headers,
                identity: Identity {
                    service: otlp.service,
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    instance: self.node,
                },
                started_ns: now_ns(),
                failed,
            });
            let (metrics, registry) = (exporter.clone(), registry.clone());
            background.spawn(async move {
                metrics.run_metrics(otlp.metrics_every, move || all(&registry), now_ns).await;
            });
            background.spawn(async move { exporter.run_traces(&spans).await });
        }
    }
}

/// The current non-zero counters, for summing up. Read every few seconds: with ten thousand rules that takes long.
pub(super) fn counted(registry: &Arc<Registry>) -> impl Future<Output = Families> + Send + use<> {
    let registry = registry.clone();
    at_low_priority(move || registry.read_without_zeros())
}

/// All metrics, now.
fn all(registry: &Arc<Registry>) -> impl Future<Output = Families> + Send + use<> {
    let registry = registry.clone();
    at_low_priority(move || registry.read())
}

fn now_ns() -> u64 {
    SystemClock::new().now().as_micros() * 1_000
}
