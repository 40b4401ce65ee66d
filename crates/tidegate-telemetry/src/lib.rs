//! What tidegate sends to other programs: metrics to StatsD and OTLP, sampled traces to OTLP, alerts to a webhook.
//!
//! All of it reads what `/metrics` shows ([`Scrape`]), on the control plane's thread and at a slow pace, so that no request
//! waits for a receiver and all exports agree. Requests touch only [`SpanQueue`], and only if their caller sent a sampled
//! trace.
//!
//! No client's key is exported.

pub mod alerts;
pub mod otlp;
mod post;
mod scrape;
pub mod statsd;

pub use otlp::SpanQueue;
pub use post::{Connection, Endpoint, EndpointError, Plaintext, PostError};
pub use scrape::{Family, MetricKind, Sample, Scrape};
