//! What the server tells other programs by itself: StatsD, OTLP, alerts. All on the control plane's thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_admin::{AlertDesk, Control, Exposition, Format};
use tidegate_core::Micros;
use tidegate_store::{Clock as _, Record, Store, SystemClock};
use tidegate_telemetry::alerts::{Book, Courier, Detector, Duty, Notice, Role, Severity, Signals};
use tidegate_telemetry::otlp::{Exporter, Identity};
use tidegate_telemetry::statsd::Statsd;
use tidegate_telemetry::{Scrape, SpanQueue};
use tokio::task::JoinSet;

use crate::failure::Failure;
use crate::settings::telemetry::{AlertSettings, OtlpSettings, StatsdSettings, TelemetrySettings};

/// How often it is looked whether something is the matter.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long the duty to tell is a node's, and the record that says so.
const LEASE: Micros = Micros::from_secs(15);
const LEASE_NAME: &[u8] = b"alerts: whose duty";

/// How to watch, the store that nodes share if they do, and where alerts are shown.
type AlertWatch = (AlertSettings, Option<Arc<dyn Store>>, Arc<Control>);

/// What leaves this server, ready to start.
pub(super) struct Outgoing {
    statsd: Option<(Statsd, Duration)>,
    otlp: Option<OtlpSettings>,
    /// Where spans of sampled traces go, if anywhere.
    pub(super) spans: Option<Arc<SpanQueue>>,
    node: String,
}

impl Outgoing {
    pub(super) fn new(settings: &TelemetrySettings, node: String) -> Result<Self, Failure> {
        let open = |one: &StatsdSettings| {
            let statsd = Statsd::new(one.to, one.lines.clone()).map_err(|error| {
                Failure::new(format!("telemetry.statsd: the system gives no socket: {error}"))
            })?;
            Ok::<_, Failure>((statsd, one.every))
        };
        let statsd = settings.statsd.as_ref().map(open).transpose()?;
        let spans = settings.otlp.as_ref().map(|otlp| Arc::new(SpanQueue::new(otlp.traces)));
        Ok(Outgoing { statsd, otlp: settings.otlp.clone(), spans, node })
    }

    /// Starts to send what `exposition` tells and, if asked to, to watch whether something is the matter.
    pub(super) fn start(
        self,
        mut exposition: Exposition,
        watch: Option<AlertWatch>,
        background: &mut JoinSet<()>,
    ) -> Arc<Exposition> {
        let watchman = watch
            .map(|(settings, shared, control)| Watchman::new(&settings, self.node.clone(), shared, control));
        if let Some(watchman) = &watchman {
            let desk = watchman.desk.clone();
            exposition = exposition.with_alerts(move || desk.active());
        }
        let exposition = Arc::new(exposition);
        self.start_exports(&exposition, background);
        if let Some(watchman) = watchman {
            let courier = watchman.courier.clone();
            courier
                .into_iter()
                .for_each(|courier| drop(background.spawn(async move { courier.run().await })));
            background.spawn(watchman.run(exposition.clone()));
        }
        exposition
    }

    fn start_exports(self, exposition: &Arc<Exposition>, background: &mut JoinSet<()>) {
        if let Some((statsd, every)) = self.statsd {
            let exposition = exposition.clone();
            background.spawn(statsd.run(every, move || read(&exposition)));
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
                failed: Arc::new(AtomicU64::new(0)),
            });
            let (metrics, exposition) = (exporter.clone(), exposition.clone());
            background.spawn(async move {
                metrics.run_metrics(otlp.metrics_every, move || read(&exposition), now_ns).await;
            });
            background.spawn(async move { exporter.run_traces(&spans).await });
        }
    }
}

/// Everything that is counted, now.
fn read(exposition: &Exposition) -> Scrape {
    Scrape::parse(&exposition.text(Format::OpenMetrics))
}

fn now_ns() -> u64 {
    SystemClock::new().now().as_micros() * 1_000
}

/// Watches what is the matter, and has it told.
struct Watchman {
    desk: Arc<AlertDesk>,
    detector: Detector,
    duty: Duty,
    lease: Option<Arc<dyn Store>>,
    /// What this node calls itself in the lease: different for every process.
    holder: Vec<u8>,
    courier: Option<Arc<Courier>>,
    node: String,
    before: Option<Scrape>,
    control: Arc<Control>,
}

impl Watchman {
    /// `shared` is the store that nodes share, if they do.
    fn new(
        settings: &AlertSettings,
        node: String,
        shared: Option<Arc<dyn Store>>,
        control: Arc<Control>,
    ) -> Self {
        let desk = Arc::new(AlertDesk::new(Book::new(&settings.dashboard)));
        control.show_alerts(desk.clone());
        let courier = settings.receiver.clone().map(|receiver| Arc::new(Courier::new(receiver, &node)));
        let holder = format!("{node} {}", now_ns()).into_bytes();
        Watchman {
            desk,
            detector: Detector::new(settings.thresholds.clone()),
            duty: Duty::new(LEASE.get() / 1_000_000, now_ns() / 1_000_000_000),
            lease: shared,
            holder,
            courier,
            node,
            before: None,
            control,
        }
    }

    /// Runs until dropped.
    async fn run(mut self, exposition: Arc<Exposition>) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let ours = self.renew().await;
            let now_s = now_ns() / 1_000_000_000;
            let before = self.duty.role();
            let role = self.duty.heard(now_s, ours);
            let scrape = read(&exposition);
            let own = Signals::read(&self.node, now_s, &scrape, self.before.as_ref());
            self.before = Some(scrape);
            let nodes = self.with_others(own).await;
            let found = self.detector.look(now_s, &nodes);
            // Every node keeps the book, so that whoever takes the duty over knows what is the matter; one tells.
            let mut notices = self.desk.step(now_s, found);
            notices.retain(|notice| role.tells() || notice.alert().kind.is_of_one_node());
            if role == Role::Orphan && before != Role::Orphan {
                self.add_untold(&mut notices);
            }
            notices.iter().for_each(tell);
            self.courier.iter().for_each(|courier| courier.take(now_s, &notices));
        }
    }

    /// What began while telling was another's duty, and nobody may have told.
    fn add_untold(&self, notices: &mut Vec<Notice>) {
        let mut untold = self.desk.all_active();
        untold.retain(|alert| {
            let told = notices.iter().any(|notice| notice.alert().fingerprint == alert.fingerprint);
            !told && !alert.silenced && !alert.kind.is_of_one_node()
        });
        notices.extend(untold.into_iter().map(Notice::GoesOn));
    }

    /// This node, and of the others what their heartbeats tell: the release and the version that they run.
    async fn with_others(&self, mut own: Signals) -> Vec<Signals> {
        let notes = self.control.fleet_notes().await;
        let (version, others) = notes;
        own.version = version;
        let rules_in_use = own.rules_in_use;
        let other = |(node, release, version)| Signals {
            node,
            release,
            version,
            rules_in_use,
            at_s: own.at_s,
            ..Signals::default()
        };
        let others: Vec<Signals> = others.into_iter().map(other).collect();
        std::iter::once(own).chain(others).collect()
    }

    /// Whether the lease is ours; none where the store does not say.
    async fn renew(&self) -> Option<bool> {
        let Some(store) = &self.lease else { return Some(true) };
        let record = Record { name: LEASE_NAME, value: &self.holder };
        if self.duty.role() == Role::Holder {
            match store.replace_record(record, Some(self.holder.as_slice()), LEASE).answer().await {
                Ok(true) => return Some(true),
                Ok(false) => {}
                Err(_) => return None,
            }
        }
        match store.put_record(record, LEASE).answer().await {
            Ok(None) => Some(true),
            Ok(Some(other)) => Some(other == self.holder),
            Err(_) => None,
        }
    }
}

/// One line when it begins, one when it is over.
fn tell(notice: &Notice) {
    let alert = notice.alert();
    let (kind, next) = (alert.kind.name(), alert.next.as_str());
    match (notice, alert.severity) {
        (Notice::Ended(_), _) => tracing::info!(kind, "alert is over: {}", alert.summary),
        (_, Severity::Info) => tracing::info!(kind, next, "alert: {}", alert.summary),
        (_, _) => tracing::warn!(kind, next, "alert: {}", alert.summary),
    }
}

/// What this process is called among the others.
pub(super) fn node_name(admin: Option<std::net::SocketAddr>) -> String {
    static UNNAMED: AtomicU64 = AtomicU64::new(0);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "node" } else { host.trim() };
    match admin {
        Some(address) => format!("{host}:{}", address.port()),
        None => format!("{host}:{}.{}", std::process::id(), UNNAMED.fetch_add(1, Ordering::Relaxed)),
    }
}
