//! All metrics together, in Prometheus' text formats.
//!
//! Metrics are read at each scrape; nothing is precomputed. A part that does not exist (a store without local cells, no data
//! plane) has no metrics: a zero would be wrong.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use tidegate_limiter::{BreakerState, NodeHealth, RemoteStats, ShedStats};
use tidegate_store::MemoryStats;

use crate::alerts::AlertStats;
use crate::classic;
use crate::metrics::{Metrics, Reader};
use crate::process::Process;

/// All metrics, read anew each time.
#[derive(Debug)]
pub struct Exposition {
    metrics: Arc<Metrics>,
    ours: Registry,
    /// Standard process metrics keep their usual names, without our prefix.
    process: Registry,
}

/// The text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' own, version 0.0.4, which every scraper reads.
    Classic,
    /// OpenMetrics 1.0, for scrapers that accept it.
    OpenMetrics,
}

impl Format {
    /// The format that an `Accept` header asks for.
    #[must_use]
    pub fn accepted(accept: &str) -> Format {
        let asked =
            accept.split(',').any(|range| range.trim_start().starts_with("application/openmetrics-text"));
        if asked { Format::OpenMetrics } else { Format::Classic }
    }

    /// Its `Content-Type`.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The size of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Its keys; for the memory store, its cells.
    pub keys: u64,
    /// The memory that it uses.
    pub bytes: u64,
    /// The most memory that it may use; 0 if unbounded or unknown.
    pub most_bytes: u64,
    /// Keys evicted for lack of memory.
    pub evicted: u64,
}

/// The outcomes of requests to one upstream of the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamCounts {
    /// Its name, from the configuration.
    pub upstream: String,
    /// Requests that one of its servers answered, with any status.
    pub answered: u64,
    /// Failed attempts, by reason.
    pub failures: Vec<(&'static str, u64)>,
    /// Its servers.
    pub servers: u64,
    /// How many of them are healthy.
    pub well: u64,
}

/// When a certificate expires.
#[derive(Clone, Debug, PartialEq)]
pub struct CertificateEnd {
    /// The listener that presents it.
    pub listener: &'static str,
    /// In seconds since 1970.
    pub not_after_seconds: f64,
}

/// The connections of one listener of the data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerConnections {
    /// Its name: `http`, `grpc`.
    pub listener: &'static str,
    /// Open now.
    pub open: u64,
    /// Accepted since the process started.
    pub accepted: u64,
    /// Closed at once because the listener was full.
    pub refused: u64,
    /// Idle ones closed to make room for new ones.
    pub evicted: u64,
}

impl Exposition {
    /// Exposes the counts of `metrics`, and those of this process.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        let mut ours = Registry::with_prefix("tidegate");
        ours.register_collector(Box::new(Reader(metrics.clone())));
        ours.register_collector(Box::new(Build));
        let mut process = Registry::default();
        process.register_collector(Box::new(Process::starting_now()));
        Exposition { metrics, ours, process }
    }

    /// Adds the size of the store.
    #[must_use]
    pub fn with_usage(mut self, usage: impl Fn() -> StoreUsage + Send + Sync + 'static) -> Self {
        self.ours.register_collector(Box::new(Asks(usage, encode_usage)));
        self
    }

    /// Adds the cells in this process's memory.
    #[must_use]
    pub fn with_store(mut self, stats: impl Fn() -> MemoryStats + Send + Sync + 'static) -> Self {
        self.ours.register_collector(Box::new(Asks(stats, encode_store)));
        self
    }

    /// Adds the health of a remote store's nodes.
    #[must_use]
    pub fn with_nodes(mut self, nodes: impl Fn() -> Vec<NodeHealth> + Send + Sync + 'static) -> Self {
        self.ours.register_collector(Box::new(Asks(nodes, encode_nodes)));
        self
    }

    /// Adds the requests that wait for a remote store, and the debts to it.
    #[must_use]
    pub fn with_remote(mut self, stats: impl Fn() -> RemoteStats + Send + Sync + 'static) -> Self {
        self.ours.register_collector(Box::new(Asks(stats, encode_remote)));
        self
    }

    /// Adds the busy ratio of the data plane's workers, from 0 to 1.
    #[must_use]
    pub fn with_busy_ratio(mut self, ratio: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        self.ours.register_collector(Box::new(Asks(ratio, encode_busy)));
        self
    }

    /// Adds the state and counts of load shedding.
    #[must_use]
    pub fn with_shedding(mut self, stats: impl Fn() -> ShedStats + Send + Sync + 'static) -> Self {
        self.ours.register_collector(Box::new(Asks(stats, encode_shedding)));
        self
    }

    /// Adds the connections of the data plane's listeners.
    #[must_use]
    pub fn with_connections(
        mut self,
        listeners: impl Fn() -> Vec<ListenerConnections> + Send + Sync + 'static,
    ) -> Self {
        self.ours.register_collector(Box::new(Asks(listeners, encode_connections)));
        self
    }

    /// Adds the outcomes of requests to the proxy's upstream servers.
    #[must_use]
    pub fn with_upstreams(
        mut self,
        upstreams: impl Fn() -> Vec<UpstreamCounts> + Send + Sync + 'static,
    ) -> Self {
        self.ours.register_collector(Box::new(Asks(upstreams, encode_upstreams)));
        self
    }

    /// Adds the expiry times of the listeners' certificates.
    #[must_use]
    pub fn with_certificates(
        mut self,
        ends: impl Fn() -> Vec<CertificateEnd> + Send + Sync + 'static,
    ) -> Self {
        self.ours.register_collector(Box::new(Asks(ends, encode_certificates)));
        self
    }

    /// Adds the approximate number of the store's keys by kind; none if unknown.
    #[must_use]
    pub fn with_key_kinds(
        mut self,
        kinds: impl Fn() -> Vec<(&'static str, u64)> + Send + Sync + 'static,
    ) -> Self {
        self.ours.register_collector(Box::new(Asks(kinds, encode_key_kinds)));
        self
    }

    /// Adds the number of log lines withheld as repeats.
    #[must_use]
    pub fn with_withheld_lines(mut self, lines: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.ours.register_collector(Box::new(Asks(lines, encode_withheld)));
        self
    }

    /// Adds the counts of alerts and their deliveries.
    #[must_use]
    pub fn with_alerts(mut self, stats: impl Fn() -> AlertStats + Send + Sync + 'static) -> Self {
        self.ours.register_collector(Box::new(Asks(stats, encode_alerts)));
        self
    }

    /// Adds what exports lost, by destination.
    #[must_use]
    pub fn with_exports(
        mut self,
        lost: impl Fn() -> Vec<(&'static str, u64)> + Send + Sync + 'static,
    ) -> Self {
        self.ours.register_collector(Box::new(Asks(lost, encode_exports)));
        self
    }

    /// Adds the callers refused for a missing or wrong password or token, by listener.
    #[must_use]
    pub fn with_refused_logins(
        mut self,
        refused: impl Fn() -> Vec<(&'static str, u64)> + Send + Sync + 'static,
    ) -> Self {
        self.ours.register_collector(Box::new(Asks(refused, encode_refused_logins)));
        self
    }

    /// The current metrics as text.
    #[must_use]
    pub fn text(&self, format: Format) -> String {
        let mut text = String::new();
        let written = encode_registry(&mut text, &self.ours)
            .and_then(|()| encode_registry(&mut text, &self.process))
            .and_then(|()| encode_eof(&mut text));
        written.expect("a string takes all that is written to it");
        match format {
            Format::Classic => classic::from_open_metrics(&text),
            Format::OpenMetrics => self.metrics.with_exemplars(&text),
        }
    }
}

/// Calls a function at each scrape, and encodes its answer.
struct Asks<Ask, Answer>(Ask, fn(&Answer, &mut DescriptorEncoder<'_>) -> fmt::Result);

impl<Ask, Answer> Collector for Asks<Ask, Answer>
where
    Ask: Fn() -> Answer + Send + Sync + 'static,
    Answer: 'static,
{
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Asks(ask, encode) = self;
        encode(&ask(), &mut encoder)
    }
}

impl<Ask, Answer> fmt::Debug for Asks<Ask, Answer> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asks")
    }
}

fn encode_usage(usage: &StoreUsage, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    gauge(encoder, "store_keys", "Keys that the store holds, on all its nodes.", usage.keys)?;
    let help = "Memory that the store takes, on all its nodes.";
    let bytes = encoder.encode_descriptor("store_memory", help, Some(&Unit::Bytes), MetricType::Gauge)?;
    ConstGauge::new(usage.bytes).encode(bytes)?;
    if usage.most_bytes > 0 {
        let help = "The most memory that the store may take (maxmemory), on all its nodes.";
        let most =
            encoder.encode_descriptor("store_memory_max", help, Some(&Unit::Bytes), MetricType::Gauge)?;
        ConstGauge::new(usage.most_bytes).encode(most)?;
    }
    let help = "Keys that Redis dropped for want of memory: each forgot who had spent what. Must stay 0.";
    counter(encoder, "store_evicted_keys", help, usage.evicted)
}

fn encode_key_kinds(kinds: &Vec<(&'static str, u64)>, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    if kinds.is_empty() {
        return Ok(());
    }
    let help = "About how many keys of each kind Redis holds, by 400 taken at random from each server once a minute. Only the node that tells of alerts has this.";
    let mut family = encoder.encode_descriptor("store_keys_by_kind", help, None, MetricType::Gauge)?;
    for (kind, keys) in kinds {
        ConstGauge::new(*keys).encode(family.encode_family(&[("kind", *kind)])?)?;
    }
    Ok(())
}

fn encode_upstreams(upstreams: &Vec<UpstreamCounts>, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Requests that a server of the proxy's upstream answered, with whatever status.";
    let mut family = encoder.encode_descriptor("upstream_answers", help, None, MetricType::Counter)?;
    for one in upstreams {
        ConstCounter::new(one.answered).encode(family.encode_family(&[("upstream", &*one.upstream)])?)?;
    }
    let help =
        "Tries that a server of the proxy's upstream failed, by why. A request may be tried on several.";
    let mut family = encoder.encode_descriptor("upstream_failures", help, None, MetricType::Counter)?;
    for one in upstreams {
        for (reason, count) in &one.failures {
            let labels = [("upstream", &*one.upstream), ("reason", *reason)];
            ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "Servers of the proxy's upstream, by whether they seem well.";
    let mut family = encoder.encode_descriptor("upstream_servers", help, None, MetricType::Gauge)?;
    for one in upstreams {
        for (state, count) in [("well", one.well), ("unwell", one.servers.saturating_sub(one.well))] {
            let labels = [("upstream", &*one.upstream), ("state", state)];
            ConstGauge::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn encode_certificates(ends: &Vec<CertificateEnd>, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "When the certificate that a listener shows ends, in seconds since 1970.";
    let seconds = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor("certificate_not_after", help, seconds, MetricType::Gauge)?;
    for end in ends {
        ConstGauge::new(end.not_after_seconds)
            .encode(family.encode_family(&[("listener", end.listener)])?)?;
    }
    Ok(())
}

fn encode_alerts(stats: &AlertStats, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    gauge(encoder, "alerts_active", "Alerts that are active, as this node sees it.", stats.active)?;
    let help = "Findings that became no alert because too many were active.";
    counter(encoder, "alerts_left_out", help, stats.left_out)?;
    let help = "Rules whose usual traffic is known, for alerts.";
    gauge(encoder, "alert_baselines", help, stats.traffic.baselines)?;
    let help = "Rules with traffic in the last minute and no baseline, because too many have one.";
    gauge(encoder, "alert_rules_without_baseline", help, stats.traffic.without)?;
    let help = "Deliveries to the webhook that wait for it to take them.";
    gauge(encoder, "alert_deliveries_waiting", help, stats.waiting)?;
    let help =
        "Deliveries to the webhook: taken, tries that failed, and given up or dropped for want of room.";
    let mut family = encoder.encode_descriptor("alert_deliveries", help, None, MetricType::Counter)?;
    let results =
        [("delivered", stats.delivered), ("failed_try", stats.failed_tries), ("dropped", stats.dropped)];
    for (result, count) in results {
        ConstCounter::new(count).encode(family.encode_family(&[("result", result)])?)?;
    }
    Ok(())
}

fn encode_exports(lost: &Vec<(&'static str, u64)>, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "What exports could not send: lines or packets of StatsD, exports of OTLP metrics, spans of OTLP traces.";
    let mut family = encoder.encode_descriptor("telemetry_lost", help, None, MetricType::Counter)?;
    for (to, count) in lost {
        ConstCounter::new(*count).encode(family.encode_family(&[("to", *to)])?)?;
    }
    Ok(())
}

fn encode_withheld(lines: &u64, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Log lines that were not written because the same line had been written often enough.";
    counter(encoder, "log_lines_withheld", help, *lines)
}

fn encode_store(stats: &MemoryStats, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    gauge(encoder, "cells", "Cells held in memory.", stats.cells as u64)?;
    let help = "Cells dropped: idle ones lose nothing; in_use and spent ones were dropped at the bound, with their count.";
    let mut family = encoder.encode_descriptor("cell_evictions", help, None, MetricType::Counter)?;
    let reasons =
        [("idle", stats.dropped_idle), ("in_use", stats.evicted_in_use), ("spent", stats.evicted_spent)];
    for (reason, count) in reasons {
        ConstCounter::new(count).encode(family.encode_family(&[("reason", reason)])?)?;
    }
    let help = "Answers to named requests (request_id) held in memory.";
    gauge(encoder, "store_records", help, stats.records as u64)?;
    let help = "Requests with a request_id that were refused because memory for their answers was full.";
    let family = encoder.encode_descriptor("store_records_refused", help, None, MetricType::Counter)?;
    ConstCounter::new(stats.refused_records).encode(family)
}

fn encode_nodes(nodes: &Vec<NodeHealth>, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "1 while the node of the store answers, else 0.";
    let mut family = encoder.encode_descriptor("store_up", help, None, MetricType::Gauge)?;
    for NodeHealth { endpoint, breaker } in nodes {
        let up = u64::from(*breaker == BreakerState::Closed);
        ConstGauge::new(up).encode(family.encode_family(&[("node", endpoint.as_str())])?)?;
    }
    let help = "The circuit breaker before the node: 0 closed, 1 half open, 2 open.";
    let mut family = encoder.encode_descriptor("breaker_state", help, None, MetricType::Gauge)?;
    for NodeHealth { endpoint, breaker } in nodes {
        let state: u64 = match breaker {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        };
        ConstGauge::new(state).encode(family.encode_family(&[("node", endpoint.as_str())])?)?;
    }
    Ok(())
}

fn encode_remote(stats: &RemoteStats, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    gauge(
        encoder,
        "queue_depth",
        "Requests that wait for the next call to the store.",
        stats.waiting as u64,
    )?;
    gauge(encoder, "store_calls_in_flight", "Calls to the store under way.", stats.calls as u64)?;
    let help = "Calls to the store under way that nobody waits for any more.";
    gauge(encoder, "late_store_calls_in_flight", help, stats.late_calls as u64)?;
    gauge(encoder, "fleet_size", "Limiters that share the store, this one included.", stats.fleet)?;
    let help = "Cells with hits that were spent here and not yet charged to the store.";
    gauge(encoder, "store_debts", help, stats.debts as u64)?;
    let help = "Leases that nobody holds and that are not yet given back.";
    gauge(encoder, "orphaned_leases", help, stats.orphans as u64)?;
    let help = "Leases that this node gave while the store was unavailable, and that the store has not yet been told of.";
    gauge(encoder, "lent_leases", help, stats.lent_leases as u64)?;
    let help = "Names of requests whose state the store has not confirmed yet, because it did not answer.";
    gauge(encoder, "unwritten_request_names", help, stats.unwritten_names as u64)?;
    let help = "Requests with a request_id that this node is deciding.";
    gauge(encoder, "request_names_in_flight", help, stats.names_in_flight as u64)?;
    let help = "What was forgotten for want of room: refusals to repeat, hits to charge, leases to give back, names of requests to free.";
    let mut family = encoder.encode_descriptor("forgotten", help, None, MetricType::Counter)?;
    let kinds = [
        ("refusals", stats.refusals_evicted),
        ("hits", stats.hits_forgiven),
        ("leases", stats.leases_lost),
        ("names", stats.names_lost),
    ];
    for (what, count) in kinds {
        ConstCounter::new(count).encode(family.encode_family(&[("what", what)])?)?;
    }
    Ok(())
}

fn encode_shedding(stats: &ShedStats, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Requests that the service behind works on, or that wait there.";
    gauge(encoder, "workers_in_use", help, stats.in_use as u64)?;
    if let Some(workers) = stats.workers {
        let help = "Requests that the service behind can work on at once, as configured or as found out.";
        gauge(encoder, "workers", help, workers as u64)?;
    }
    let help = "The part of the workers that are busy: above 1 while requests queue for them.";
    let family = encoder.encode_descriptor("worker_utilization", help, None, MetricType::Gauge)?;
    ConstGauge::new(stats.utilization.ratio()).encode(family)?;
    let help = "How much is shed because workers have been busy: 0 nothing, 1 everything but P0.";
    let family = encoder.encode_descriptor("shed_level", help, None, MetricType::Gauge)?;
    ConstGauge::new(stats.level).encode(family)
}

fn encode_busy(ratio: &f64, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "The part of their time that the threads which serve requests are busy, from 0 to 1.";
    let gauge = encoder.encode_descriptor("worker_busy_ratio", help, None, MetricType::Gauge)?;
    ConstGauge::new(*ratio).encode(gauge)
}

fn encode_refused_logins(
    refused: &Vec<(&'static str, u64)>,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let help = "Callers refused because of a wrong or missing password or token.";
    let mut family = encoder.encode_descriptor("refused_logins", help, None, MetricType::Counter)?;
    for (listener, count) in refused {
        ConstCounter::new(*count).encode(family.encode_family(&[("listener", *listener)])?)?;
    }
    Ok(())
}

fn encode_connections(
    listeners: &Vec<ListenerConnections>,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let help = "Open connections.";
    let mut family = encoder.encode_descriptor("connections", help, None, MetricType::Gauge)?;
    for each in listeners {
        ConstGauge::new(each.open).encode(family.encode_family(&[("listener", each.listener)])?)?;
    }
    let help = "Connections accepted.";
    let mut family = encoder.encode_descriptor("connections_accepted", help, None, MetricType::Counter)?;
    for each in listeners {
        ConstCounter::new(each.accepted).encode(family.encode_family(&[("listener", each.listener)])?)?;
    }
    let help = "Connections closed at once because their listener was full.";
    let mut family = encoder.encode_descriptor("connections_refused", help, None, MetricType::Counter)?;
    for each in listeners {
        ConstCounter::new(each.refused).encode(family.encode_family(&[("listener", each.listener)])?)?;
    }
    let help = "Idle connections closed to make room for another.";
    let mut family = encoder.encode_descriptor("connections_evicted", help, None, MetricType::Counter)?;
    for each in listeners {
        ConstCounter::new(each.evicted).encode(family.encode_family(&[("listener", each.listener)])?)?;
    }
    Ok(())
}

/// The version of this program.
#[derive(Debug)]
struct Build;

impl Collector for Build {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "The version that runs.";
        let mut info = encoder.encode_descriptor("build", help, None, MetricType::Info)?;
        info.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])
    }
}

/// Writes a counter without labels.
pub(crate) fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    count: u64,
) -> fmt::Result {
    ConstCounter::new(count).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
}

/// Writes a gauge without labels.
pub(crate) fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}
