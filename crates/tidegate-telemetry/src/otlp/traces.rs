//! Spans of decisions, passed from the deciding threads to the sending one.
//!
//! A request queues its span and continues. If the queue is full, or locked by another thread, the span is lost and counted:
//! a trace with a gap is better than a request that waits.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_limiter::Traced;

use super::Identity;
use super::proto::{self, KeyValue, SPAN_KIND_SERVER};

/// The names of a span's attributes. OpenTelemetry has none for rate limits yet; docs/guides/monitoring.md lists these.
mod attribute {
    pub(super) const TRANSPORT: &str = "rate_limit.transport";
    pub(super) const DOMAIN: &str = "rate_limit.domain";
    pub(super) const RULE: &str = "rate_limit.rule";
    pub(super) const ALLOWED: &str = "rate_limit.allowed";
    pub(super) const SOURCE: &str = "rate_limit.source";
}

/// The most spans queued: about a megabyte.
pub const MOST_SPANS: usize = 4_096;

/// The fraction of sampled traces that is exported: chosen by trace id, so that all nodes choose the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio(u64);

impl Ratio {
    /// All of them.
    pub const ALL: Ratio = Ratio(u64::MAX);

    /// This fraction; `None` if it is not between 0 and 1.
    #[must_use]
    pub fn of(part: f64) -> Option<Ratio> {
        (0.0..=1.0).contains(&part).then_some(Ratio((part * u64::MAX as f64) as u64))
    }

    fn takes(self, trace_id: u128) -> bool {
        // If a trace id is not fully random, its last 8 bytes are.
        trace_id as u64 <= self.0 && self.0 > 0
    }
}

/// The queue of spans.
#[derive(Debug)]
pub struct SpanQueue {
    ratio: Ratio,
    seed: u64,
    next: AtomicU64,
    waiting: Mutex<Vec<proto::Span>>,
    lost: AtomicU64,
}

impl SpanQueue {
    /// An empty queue that takes this fraction of traces.
    #[must_use]
    pub fn new(ratio: Ratio) -> Self {
        let seed = getrandom::u64().unwrap_or(0x9e37_79b9_7f4a_7c15);
        SpanQueue { ratio, seed, next: AtomicU64::new(1), waiting: Mutex::default(), lost: AtomicU64::new(0) }
    }

    /// Queues the span of a decision.
    pub fn put(&self, request: &Traced<'_>) {
        if !self.ratio.takes(request.context.trace_id) {
            return;
        }
        match self.waiting.try_lock() {
            Some(mut waiting) if waiting.len() < MOST_SPANS => waiting.push(self.span(request)),
            _ => self.lose(1),
        }
    }

    /// Spans lost because the queue was full or locked, or the receiver was unavailable.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(super) fn lose(&self, spans: u64) {
        self.lost.fetch_add(spans, Ordering::Relaxed);
    }

    pub(super) fn take(&self) -> Vec<proto::Span> {
        std::mem::take(&mut self.waiting.lock())
    }

    /// No attribute names the caller: many people read traces.
    fn span(&self, request: &Traced<'_>) -> proto::Span {
        let start_ns = request.began.as_micros().saturating_mul(1_000);
        let took_ns = u64::try_from(request.took.as_nanos()).unwrap_or(u64::MAX);
        let mut attributes = vec![
            KeyValue::text(attribute::TRANSPORT, request.transport.name()),
            KeyValue::text(attribute::DOMAIN, request.domain),
            KeyValue::bool(attribute::ALLOWED, request.allowed),
        ];
        attributes.extend(request.rule.map(|rule| KeyValue::text(attribute::RULE, rule)));
        attributes.extend(request.source.map(|source| KeyValue::text(attribute::SOURCE, source.name())));
        proto::Span {
            trace_id: request.context.trace_id.to_be_bytes().to_vec(),
            span_id: self.span_id().to_be_bytes().to_vec(),
            parent_span_id: request.context.parent_id.to_be_bytes().to_vec(),
            name: "tidegate check".to_owned(),
            kind: SPAN_KIND_SERVER,
            start_time_unix_nano: start_ns,
            end_time_unix_nano: start_ns.saturating_add(took_ns),
            attributes,
        }
    }

    /// Unique in this process, and never zero: a counter, mixed (SplitMix64).
    fn span_id(&self) -> u64 {
        let count = self.next.fetch_add(1, Ordering::Relaxed);
        let mut id = self.seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        id = (id ^ (id >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        id = (id ^ (id >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (id ^ (id >> 31)).max(1)
    }
}

pub(super) fn request(identity: &Identity, spans: Vec<proto::Span>) -> proto::Traces {
    let scope_spans = vec![proto::ScopeSpans { scope: identity.scope(), spans }];
    let resource = identity.resource();
    proto::Traces { resource_spans: vec![proto::ResourceSpans { resource, scope_spans }] }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_core::Timestamp;
    use tidegate_limiter::{TraceContext, Transport};

    use super::*;

    fn traced(trace_id: u128) -> Traced<'static> {
        let context = TraceContext { trace_id, parent_id: 7 };
        let time = (Timestamp::from_micros(1_000), Duration::from_micros(5));
        Traced::new(context, Transport::Http, time, "api", true)
    }

    #[test]
    fn a_full_queue_loses_what_comes_and_counts_it() {
        let queue = SpanQueue::new(Ratio::ALL);
        (0..MOST_SPANS as u128 + 5).for_each(|trace| queue.put(&traced(trace + 1)));
        assert_eq!((queue.take().len(), queue.lost()), (MOST_SPANS, 5));
    }

    #[test]
    fn a_ratio_keeps_about_that_part_and_nothing_of_none() {
        let kept = |part: f64| {
            let queue = SpanQueue::new(Ratio::of(part).unwrap());
            (0..1_000_u128).for_each(|n| queue.put(&traced(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1)));
            queue.take().len()
        };
        assert_eq!((kept(0.0), kept(1.0)), (0, 1_000));
        assert!((200..300).contains(&kept(0.25)), "{}", kept(0.25));
        assert_eq!((Ratio::of(1.1), Ratio::of(f64::NAN)), (None, None));
    }

    #[test]
    fn spans_have_ids_of_their_own() {
        let queue = SpanQueue::new(Ratio::ALL);
        (0..1_000).for_each(|_| queue.put(&traced(1)));
        let ids: std::collections::BTreeSet<Vec<u8>> =
            queue.take().into_iter().map(|span| span.span_id).collect();
        assert_eq!(ids.len(), 1_000);
    }
}
