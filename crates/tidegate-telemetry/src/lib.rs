//! What tidegate tells other programs by itself: metrics to StatsD and OTLP, sampled traces to OTLP, alerts to a webhook.
//!
//! All of it reads what `/metrics` shows ([`Scrape`]), on the control plane's thread and at a slow pace, so that no
//! request waits for a receiver and every export agrees with every other. Only [`SpanQueue`] is touched by requests, and
//! by those alone whose caller sent a sampled trace.
//!
//! No client's key leaves through any of it.

pub mod alerts;
pub mod otlp;
mod post;
mod scrape;
pub mod statsd;

pub use otlp::SpanQueue;
pub use post::{Endpoint, EndpointError, Plaintext, PostError};
pub use scrape::{Family, MetricKind, Sample, Scrape};
