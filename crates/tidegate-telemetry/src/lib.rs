//! What tidegate sends to other programs: metrics to StatsD and OTLP, sampled traces to OTLP, alerts to a webhook.
//!
//! All of it reads what `/metrics` shows ([`Families`](tidegate_metrics::Families)), on the control plane's thread and at a slow pace, so that no request
//! waits for a receiver and all exports agree. Requests touch only [`SpanQueue`], and only if their caller sent a sampled
//! trace.
//!
//! No client's key is exported.

pub mod alerts;
pub mod emf;
mod http_client;
pub mod otlp;
pub mod statsd;

pub use http_client::{ClientError, Endpoint, EndpointError, Plaintext, url_part};
pub use otlp::SpanQueue;

/// Whether a failure policy decided, by the label `source`: such a decision says nothing about the rule's limits.
fn is_without_the_store(source: &str) -> bool {
    source.starts_with("overload_") || source.starts_with("fallback_")
}
