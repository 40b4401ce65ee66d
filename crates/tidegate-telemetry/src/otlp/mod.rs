//! OTLP over HTTP in protobuf: metrics every few seconds, and sampled traces.
//!
//! A missing receiver costs nothing but the data it misses. Counters are cumulative, so after an outage the next export
//! makes up for the missed ones; spans of that time are dropped and counted.

#[expect(missing_docs, reason = "the fields are OTLP's")]
pub mod proto;
mod traces;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use prost::Message as _;
use tidegate_metrics::{Families, Family, Kind, Series};

use crate::http_client::{ClientError, Endpoint};
use proto::{CUMULATIVE, Data, KeyValue};
pub use traces::{MOST_SPANS, Ratio, SpanQueue};

const PROTOBUF: &str = "application/x-protobuf";
/// The timeout of an export; the next one is sent at its usual time.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often spans are sent.
const SPANS_EVERY: Duration = Duration::from_secs(1);

/// The sender's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of the service; `tidegate` by default.
    pub service: String,
    /// The release.
    pub version: String,
    /// Identifies this process among others.
    pub instance: String,
}

/// Exports to one receiver.
#[derive(Debug)]
pub struct Exporter {
    /// The receiver's address, to which `/v1/metrics` and `/v1/traces` are added.
    pub endpoint: Endpoint,
    /// Additional headers of every request, such as a token.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The sender's identity.
    pub identity: Identity,
    /// When counting started, in nanoseconds since 1970.
    pub started_ns: u64,
    /// Exports that failed.
    pub failed: Arc<AtomicU64>,
}

impl Exporter {
    /// Sends what `read` returns at every interval. Runs until dropped.
    pub async fn run_metrics<R: Future<Output = Families>>(
        &self,
        every: Duration,
        read: impl Fn() -> R,
        now_ns: impl Fn() -> u64,
    ) {
        let endpoint = self.endpoint.at("/v1/metrics");
        let mut state = State::default();
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let body = metrics(&self.identity, &read().await, self.started_ns, now_ns()).encode_to_vec();
            let sent = self.post(&endpoint, body).await;
            self.note("metrics", &mut state, sent);
        }
    }

    /// Sends the spans of `queue`. Runs until dropped.
    pub async fn run_traces(&self, queue: &SpanQueue) {
        let endpoint = self.endpoint.at("/v1/traces");
        let mut state = State::default();
        let mut ticks = tokio::time::interval(SPANS_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let spans = queue.take();
            if spans.is_empty() {
                continue;
            }
            let count = spans.len() as u64;
            let sent = self.post(&endpoint, traces::request(&self.identity, spans).encode_to_vec()).await;
            if sent.is_err() {
                queue.lose(count);
            }
            self.note("traces", &mut state, sent);
        }
    }

    async fn post(&self, endpoint: &Endpoint, body: Vec<u8>) -> Result<(), ClientError> {
        endpoint.post(PROTOBUF, &self.headers, Bytes::from(body), PATIENCE).await
    }

    /// Logs once per change of state.
    fn note(&self, what: &'static str, state: &mut State, sent: Result<(), ClientError>) {
        match &sent {
            Ok(()) if state.is_failing => tracing::info!(what, "the OTLP receiver accepts exports again"),
            Err(error) if !state.is_failing => {
                tracing::warn!(what, %error, "the OTLP receiver does not accept exports")
            }
            _ => {}
        }
        state.is_failing = false;
        if let Err(error) = sent {
            tracing::debug!(what, %error, "not exported");
            state.is_failing = true;
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[derive(Default)]
struct State {
    is_failing: bool,
}

impl Identity {
    fn resource(&self) -> Option<proto::Resource> {
        let attributes = vec![
            KeyValue::text("service.name", &self.service),
            KeyValue::text("service.version", &self.version),
            KeyValue::text("service.instance.id", &self.instance),
        ];
        Some(proto::Resource { attributes })
    }

    fn scope(&self) -> Option<proto::Scope> {
        Some(proto::Scope { name: "tidegate".to_owned(), version: self.version.clone() })
    }
}

/// All metrics as one request.
#[must_use]
pub fn metrics(identity: &Identity, families: &Families, started_ns: u64, now_ns: u64) -> proto::Metrics {
    let metrics = families.all().iter().map(|family| metric(family, started_ns, now_ns)).collect();
    let scope_metrics = vec![proto::ScopeMetrics { scope: identity.scope(), metrics }];
    let resource = identity.resource();
    proto::Metrics { resource_metrics: vec![proto::ResourceMetrics { resource, scope_metrics }] }
}

fn metric(family: &Family, started_ns: u64, now_ns: u64) -> proto::Metric {
    let point = |series: &Series| proto::NumberPoint {
        start_time_unix_nano: started_ns,
        time_unix_nano: now_ns,
        as_double: Some(series.number()),
        attributes: attributes(series),
    };
    let points = || family.series.iter().map(point).collect();
    let data = match family.kind {
        Kind::Counter => {
            let (data_points, aggregation_temporality) = (points(), CUMULATIVE);
            Data::Sum(proto::Sum { data_points, aggregation_temporality, is_monotonic: true })
        }
        Kind::Gauge | Kind::Info => Data::Gauge(proto::Gauge { data_points: points() }),
        Kind::Histogram => Data::Histogram(histogram(family, started_ns, now_ns)),
    };
    let unit = match family.unit() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        _ => "",
    };
    // The same name as in Prometheus, so that one query finds both.
    let name = if family.kind == Kind::Info { family.sample_name() } else { family.name.clone() };
    proto::Metric { name, description: family.help.to_owned(), unit: unit.to_owned(), data: Some(data) }
}

fn histogram(family: &Family, started_ns: u64, now_ns: u64) -> proto::Histogram {
    let point = |series: &Series| {
        let histogram = series.histogram()?;
        Some(proto::HistogramPoint {
            start_time_unix_nano: started_ns,
            time_unix_nano: now_ns,
            attributes: attributes(series),
            sum: Some(histogram.sum),
            count: histogram.count(),
            bucket_counts: histogram.buckets.iter().map(|(_, count)| *count).collect(),
            explicit_bounds: histogram
                .buckets
                .iter()
                .map(|(bound, _)| *bound)
                .filter(|b| b.is_finite())
                .collect(),
        })
    };
    let data_points = family.series.iter().filter_map(point).collect();
    proto::Histogram { data_points, aggregation_temporality: CUMULATIVE }
}

fn attributes(series: &Series) -> Vec<KeyValue> {
    series.labels.iter().map(|(name, value)| KeyValue::text(name, value.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_buckets_count_their_own_and_the_last_has_no_bound() {
        let mut families = Families::default();
        let buckets = vec![(1.0, 2), (5.0, 4), (f64::INFINITY, 1)];
        let took = tidegate_metrics::Histogram { sum: 3.5, buckets, exemplars: Vec::new() };
        families.histograms("t_seconds", "").add([("a", "1".into())], took);
        let made = histogram(&families.all()[0], 1, 2);
        assert_eq!(made.data_points.len(), 1);
        let point = &made.data_points[0];
        assert_eq!((point.count, point.sum), (7, Some(3.5)));
        assert_eq!(point.bucket_counts, [2, 4, 1]);
        assert_eq!(point.explicit_bounds, [1.0, 5.0]);
    }
}
