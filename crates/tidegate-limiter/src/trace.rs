//! The transport of a request, the trace it belongs to, from W3C `traceparent`, and what is reported about such a request.
//!
//! Only sampled traces count: whoever started the trace decides. No part of a request's key is ever included.

use std::time::Duration;

use tidegate_core::Timestamp;

use crate::source::Source;

/// The header that carries the trace context.
pub const TRACEPARENT: &str = "traceparent";

/// The context of a sampled trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace ID; never zero.
    pub trace_id: u128,
    /// The parent span ID of this request; never zero.
    pub parent_id: u64,
}

impl TraceContext {
    /// Parses a `traceparent`; `None` if it is malformed or the trace is not sampled.
    ///
    /// ```
    /// use tidegate_limiter::TraceContext;
    ///
    /// let sampled = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    /// assert_eq!(TraceContext::sampled(sampled).unwrap().parent_id, 0xb7ad_6b71_6920_3331);
    /// assert_eq!(TraceContext::sampled(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"), None);
    /// ```
    #[must_use]
    pub fn sampled(traceparent: &[u8]) -> Option<Self> {
        const LENGTH: usize = 55;
        // Later versions may be longer but start like version 0; version ff is invalid.
        let known = traceparent.len() == LENGTH
            || (traceparent.get(LENGTH) == Some(&b'-') && !traceparent.starts_with(b"00"));
        let dashes = [2, 35, 52].iter().all(|place| traceparent.get(*place) == Some(&b'-'));
        if !known || !dashes || traceparent.starts_with(b"ff") {
            return None;
        }
        let _version = hex(&traceparent[..2])?;
        let trace_id = hex(&traceparent[3..35]).filter(|id| *id != 0)?;
        let parent_id = hex(&traceparent[36..52]).and_then(|id| u64::try_from(id).ok())?;
        let flags = hex(&traceparent[53..55])?;
        (parent_id != 0 && flags & 1 == 1).then_some(TraceContext { trace_id, parent_id })
    }
}

/// Lower case only, as the standard requires.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number: u128, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

/// The transport of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// Envoy's rate limit service.
    Grpc,
    /// JSON over HTTP.
    Http,
    /// The Redis protocol.
    Resp,
    /// Forward-auth.
    Auth,
    /// The reverse proxy.
    Proxy,
    /// Middleware inside a Rust service.
    Tower,
}

impl Transport {
    /// All variants, for per-variant metrics.
    pub const ALL: [Transport; 6] = [
        Transport::Grpc,
        Transport::Http,
        Transport::Resp,
        Transport::Auth,
        Transport::Proxy,
        Transport::Tower,
    ];

    /// The name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Transport::Grpc => "grpc",
            Transport::Http => "http",
            Transport::Resp => "resp",
            Transport::Auth => "auth",
            Transport::Proxy => "proxy",
            Transport::Tower => "tower",
        }
    }
}

/// A decision on a request that belongs to a sampled trace.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Traced<'a> {
    /// The trace.
    pub context: TraceContext,
    /// The transport of the request.
    pub transport: Transport,
    /// When the request was complete.
    pub began: Timestamp,
    /// How long the answer took.
    pub took: Duration,
    /// The domain of the request.
    pub domain: &'a str,
    /// The rule named in the answer, if any.
    pub rule: Option<&'a str>,
    /// Whether the request passes.
    pub allowed: bool,
    /// What made the decision; `None` if the transport does not report it.
    pub source: Option<Source>,
}

impl<'a> Traced<'a> {
    /// A traced verdict with its optional fields unset.
    #[must_use]
    pub fn new(
        context: TraceContext,
        transport: Transport,
        (began, took): (Timestamp, Duration),
        domain: &'a str,
        allowed: bool,
    ) -> Self {
        Traced { context, transport, began, took, domain, rule: None, allowed, source: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn with(place: usize, byte: u8) -> Option<TraceContext> {
        let mut text = GOOD.to_vec();
        text[place] = byte;
        TraceContext::sampled(&text)
    }

    #[test]
    fn a_sampled_trace_is_read() {
        let read = TraceContext::sampled(GOOD).unwrap();
        assert_eq!(read.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!(with(54, b'3'), Some(read), "other flags do not matter");
        assert_eq!(with(1, b'7'), Some(read), "a later version of the same length");
    }

    #[test]
    fn what_is_malformed_or_not_sampled_is_none() {
        for (place, byte) in
            [(2, b'_'), (10, b'A'), (10, b'g'), (54, b'0'), (54, b'2'), (53, b'x'), (0, b'x')]
        {
            assert_eq!(with(place, byte), None, "byte {place} as {}", byte as char);
        }
        let long = [GOOD, b"-more"].concat();
        assert_eq!(TraceContext::sampled(&long), None, "version 0 ends there");
        for text in [&b""[..], &GOOD[..54], b"00-00000000000000000000000000000000-b7ad6b7169203331-01"] {
            assert_eq!(TraceContext::sampled(text), None);
        }
    }
}
