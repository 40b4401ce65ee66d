//! Exports of the server: StatsD, OTLP, and alerts, which [`Watchman`] detects. All on the control plane's thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_admin::{Exposition, Format, Metrics, at_low_priority};
use tidegate_store::{Clock as _, SystemClock};
use tidegate_telemetry::otlp::{Exporter, Identity};
use tidegate_telemetry::statsd::Statsd;
use tidegate_telemetry::{Scrape, SpanQueue};
use tokio::task::JoinSet;

use super::watchman::Watchman;
use crate::failure::Failure;
use crate::settings::telemetry::{OtlpSettings, StatsdSettings, TelemetrySettings};

/// The configured exports, ready to start.
pub(super) struct Outgoing {
    statsd: Option<(Statsd, Duration)>,
    otlp: Option<OtlpSettings>,
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
        Ok(Outgoing { statsd, otlp: settings.otlp.clone(), spans, node })
    }

    /// Starts the exports of `exposition` and, if alerts are enabled, the watchman.
    pub(super) fn start(
        self,
        exposition: Exposition,
        watchman: Option<Watchman>,
        background: &mut JoinSet<()>,
    ) -> Arc<Exposition> {
        let failed_metrics = Arc::new(AtomicU64::new(0));
        let mut exposition = self.with_losses(exposition, failed_metrics.clone());
        if let Some(watchman) = &watchman {
            exposition = exposition.with_alerts(watchman.stats());
        }
        let exposition = Arc::new(exposition);
        self.start_exports(&exposition, failed_metrics, background);
        if let Some(watchman) = watchman {
            background.spawn(watchman.deliver());
            background.spawn(watchman.run(exposition.clone()));
        }
        exposition
    }

    /// Adds the counts of lost exports; none if nothing is exported.
    fn with_losses(&self, exposition: Exposition, failed_metrics: Arc<AtomicU64>) -> Exposition {
        let statsd = self.statsd.as_ref().map(|(statsd, _)| statsd.dropped());
        let spans = self.spans.clone();
        if statsd.is_none() && spans.is_none() {
            return exposition;
        }
        exposition.with_exports(move || {
            let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
            let statsd = statsd.as_ref().map(|dropped| ("statsd", read(dropped)));
            let otlp = spans.as_ref();
            let metrics = otlp.map(|_| ("otlp_metrics", read(&failed_metrics)));
            statsd.into_iter().chain(metrics).chain(otlp.map(|spans| ("otlp_traces", spans.lost()))).collect()
        })
    }

    fn start_exports(
        self,
        exposition: &Arc<Exposition>,
        failed: Arc<AtomicU64>,
        background: &mut JoinSet<()>,
    ) {
        if let Some((statsd, every)) = self.statsd {
            let exposition = exposition.clone();
            background.spawn(statsd.run(every, move || counted(&exposition)));
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
            let (metrics, exposition) = (exporter.clone(), exposition.clone());
            background.spawn(async move {
                metrics.run_metrics(otlp.metrics_every, move || all(&exposition), now_ns).await;
            });
            background.spawn(async move { exporter.run_traces(&spans).await });
        }
    }
}

/// The current non-zero counters, for summing up. Read every few seconds: with ten thousand rules that takes long.
pub(super) fn counted(exposition: &Arc<Exposition>) -> impl Future<Output = Scrape> + Send + use<> {
    let exposition = exposition.clone();
    at_low_priority(move || Scrape::parse_counted(&exposition.text(Format::OpenMetrics)))
}

/// All metrics, now.
fn all(exposition: &Arc<Exposition>) -> impl Future<Output = Scrape> + Send + use<> {
    let exposition = exposition.clone();
    at_low_priority(move || Scrape::parse(&exposition.text(Format::OpenMetrics)))
}

fn now_ns() -> u64 {
    SystemClock::new().now().as_micros() * 1_000
}
