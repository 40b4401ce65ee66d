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

use crate::post::{Endpoint, PostError};
use crate::scrape::{Family, MetricKind, Sample, Scrape};
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
    pub async fn run_metrics<R: Future<Output = Scrape>>(
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

    async fn post(&self, endpoint: &Endpoint, body: Vec<u8>) -> Result<(), PostError> {
        endpoint.post(PROTOBUF, &self.headers, Bytes::from(body), PATIENCE).await
    }

    /// Logs once per change of state.
    fn note(&self, what: &'static str, state: &mut State, sent: Result<(), PostError>) {
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
pub fn metrics(identity: &Identity, scrape: &Scrape, started_ns: u64, now_ns: u64) -> proto::Metrics {
    let metrics = scrape.families.iter().map(|family| metric(family, started_ns, now_ns)).collect();
    let scope_metrics = vec![proto::ScopeMetrics { scope: identity.scope(), metrics }];
    let resource = identity.resource();
    proto::Metrics { resource_metrics: vec![proto::ResourceMetrics { resource, scope_metrics }] }
}

fn metric(family: &Family, started_ns: u64, now_ns: u64) -> proto::Metric {
    let point = |sample: &Sample| proto::NumberPoint {
        start_time_unix_nano: started_ns,
        time_unix_nano: now_ns,
        as_double: Some(sample.value),
        attributes: attributes(sample),
    };
    let points = || family.samples.iter().map(point).collect();
    let data = match family.kind {
        MetricKind::Counter => {
            let (data_points, aggregation_temporality) = (points(), CUMULATIVE);
            Data::Sum(proto::Sum { data_points, aggregation_temporality, is_monotonic: true })
        }
        MetricKind::Gauge | MetricKind::Info => Data::Gauge(proto::Gauge { data_points: points() }),
        MetricKind::Histogram => Data::Histogram(histogram(family, started_ns, now_ns)),
    };
    let unit = match family.name.rsplit('_').next() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        _ => "",
    };
    // The same name as in Prometheus, so that one query finds both.
    let name =
        if family.kind == MetricKind::Info { format!("{}_info", family.name) } else { family.name.clone() };
    proto::Metric { name, description: family.help.clone(), unit: unit.to_owned(), data: Some(data) }
}

/// Prometheus buckets are cumulative; OTLP's are not.
fn histogram(family: &Family, started_ns: u64, now_ns: u64) -> proto::Histogram {
    let mut points: Vec<proto::HistogramPoint> = Vec::new();
    for sample in &family.samples {
        let attributes = attributes(sample);
        let known = points.iter().position(|point| point.attributes == attributes);
        let place = known.unwrap_or_else(|| {
            points.push(proto::HistogramPoint {
                start_time_unix_nano: started_ns,
                time_unix_nano: now_ns,
                attributes,
                ..proto::HistogramPoint::default()
            });
            points.len() - 1
        });
        let point = &mut points[place];
        match sample.suffix.as_str() {
            "_sum" => point.sum = Some(sample.value),
            "_count" => point.count = sample.value as u64,
            _ => {
                let below: u64 = point.bucket_counts.iter().sum();
                point.bucket_counts.push((sample.value as u64).saturating_sub(below));
                point.explicit_bounds.extend(
                    sample.label("le").and_then(|bound| bound.parse::<f64>().ok()).filter(|b| b.is_finite()),
                );
            }
        }
    }
    proto::Histogram { data_points: points, aggregation_temporality: CUMULATIVE }
}

fn attributes(sample: &Sample) -> Vec<KeyValue> {
    let own = sample.labels.iter().filter(|(name, _)| name != "le");
    own.map(|(name, value)| KeyValue::text(name, value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_their_own_and_the_last_has_no_bound() {
        let text = "# TYPE t_s histogram\nt_s_sum{a=\"1\"} 3.5\nt_s_count{a=\"1\"} 7\nt_s_bucket{le=\"1.0\",a=\"1\"} 2\n\
                    t_s_bucket{le=\"5.0\",a=\"1\"} 6\nt_s_bucket{le=\"+Inf\",a=\"1\"} 7\n";
        let made = histogram(&Scrape::parse(text).families[0], 1, 2);
        assert_eq!(made.data_points.len(), 1);
        let point = &made.data_points[0];
        assert_eq!((point.count, point.sum), (7, Some(3.5)));
        assert_eq!(point.bucket_counts, [2, 4, 1]);
        assert_eq!(point.explicit_bounds, [1.0, 5.0]);
    }
}
