//! Rate limit headers of responses.
//!
//! Two sets: the `X-RateLimit-*` headers that most clients know, and the IETF's `RateLimit` and `RateLimit-Policy`
//! (structured fields). Time is a parameter; everything is rounded so that a client that waits as told is never early, and
//! no pair of numbers promises more than the limit's rate.

mod partition;

use std::borrow::Cow;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_core::Algorithm;

pub use partition::{Partition, PartitionSecret};

/// The quota.
pub const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// Hits left of it.
pub const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// When all of it is back.
pub const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const IETF_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const IETF_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// Proposed for the draft after 11.
const IETF_PARTITION: HeaderName = HeaderName::from_static("ratelimit-partition");

/// The headers that one decision adds at most, `Retry-After` among them, by published drafts. A map that has to grow is filled twice.
pub const MOST_HEADERS: usize = 6;

/// The largest integer a structured field may hold (RFC 9651): fifteen digits.
const MAX_STRUCTURED_INTEGER: u64 = 999_999_999_999_999;

/// Which headers a response carries. `Retry-After` is always sent with a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderSets {
    x_ratelimit: bool,
    reset: ResetForm,
    ietf: Option<Draft>,
    partitions: Option<PartitionSecret>,
}

/// One set of headers, by its name in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HeaderSet {
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
    XRatelimit,
    /// `RateLimit-Policy` and `RateLimit`, by the newest published draft that is implemented: 11.
    Ietf,
    /// The same by draft 11, whatever comes later.
    #[serde(rename = "ietf-11")]
    Ietf11,
    /// The same with the parameters proposed for the draft after that; they may change at any time.
    IetfNext,
}

impl HeaderSet {
    /// All sets, by name.
    pub const NAMES: [(&str, HeaderSet); 4] = [
        ("x-ratelimit", HeaderSet::XRatelimit),
        ("ietf", HeaderSet::Ietf),
        ("ietf-11", HeaderSet::Ietf11),
        ("ietf-next", HeaderSet::IetfNext),
    ];
}

/// What `X-RateLimit-Reset` counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResetForm {
    /// Seconds since 1970: the time of the reset.
    #[default]
    Unix,
    /// Seconds from now, as Envoy's own filter sends it.
    Delta,
}

/// A version of the IETF's draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draft {
    Eleven,
    Next,
}

impl HeaderSets {
    /// `X-RateLimit-*` and the newest published draft.
    pub const ALL: Self =
        Self { x_ratelimit: true, reset: ResetForm::Unix, ietf: Some(Draft::Eleven), partitions: None };

    /// The same sets with this form of `X-RateLimit-Reset`.
    #[must_use]
    pub fn with_reset(self, reset: ResetForm) -> Self {
        Self { reset, ..self }
    }

    /// The form of `X-RateLimit-Reset`.
    #[must_use]
    pub fn reset(self) -> ResetForm {
        self.reset
    }

    /// The same sets; each draft then has partition keys (`pk`), made with this secret, and the one after 11 says by what they part.
    #[must_use]
    pub fn with_partitions(self, partitions: Option<PartitionSecret>) -> Self {
        Self { partitions, ..self }
    }

    /// What makes partition keys.
    #[must_use]
    pub fn partitions(self) -> Option<PartitionSecret> {
        self.partitions
    }
}

/// Of several drafts the last counts: they share the names of their headers.
impl FromIterator<HeaderSet> for HeaderSets {
    fn from_iter<I: IntoIterator<Item = HeaderSet>>(sets: I) -> Self {
        let mut chosen = Self::default();
        for set in sets {
            match set {
                HeaderSet::XRatelimit => chosen.x_ratelimit = true,
                HeaderSet::Ietf | HeaderSet::Ietf11 => chosen.ietf = Some(Draft::Eleven),
                HeaderSet::IetfNext => chosen.ietf = Some(Draft::Next),
            }
        }
        chosen
    }
}

/// A limit as callers know it. It is the same for every request of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy<'a> {
    /// The rule, or rule and limit.
    pub name: Cow<'a, str>,
    /// Hits per window.
    pub quota: u64,
    /// The window, if the limit has one.
    pub window: Option<Duration>,
    /// How the limit counts.
    pub algorithm: Algorithm,
    /// Whose quota it is, if that is sent.
    pub partition: Option<Partition>,
    /// The attributes that its quotas are parted by.
    pub key: &'a [String],
}

/// What a response reports of one limit: the one that refused, otherwise the one nearest to refusing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported<'a> {
    /// The limit.
    pub policy: Policy<'a>,
    /// Hits left.
    pub remaining: u64,
    /// The time until the full quota is back.
    pub reset_after: Duration,
    /// The `Retry-After` of the same response, if it has one.
    pub retry_after: Option<Duration>,
    /// What the request asked of the limit.
    pub cost: u64,
}

/// What `RateLimit` promises: this many hits in this many seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Promise {
    hits: u64,
    seconds: Option<u64>,
}

impl Policy<'_> {
    /// Appends an item of `RateLimit-Policy`, such as `"per-user";q=100;w=60`.
    fn append_to(&self, list: &mut FieldValue) {
        list.item(&self.name);
        list.parameter(b";q=", self.quota);
        if self.algorithm == Algorithm::Concurrency {
            list.text(br#";qu="concurrent-requests""#);
        }
        // The draft has whole seconds only, and none may be zero.
        if let Some(window) = self.window.filter(|window| window.subsec_nanos() == 0 && !window.is_zero()) {
            list.parameter(b";w=", window.as_secs());
        }
        list.partition(self.partition);
    }

    /// Appends an item of `RateLimit-Partition`, such as `"per-user";user`, if partitions are sent. A name that cannot be a parameter
    /// leaves the item out: half of the key would say that quotas are shared that are not.
    fn append_dimensions_to(&self, list: &mut FieldValue) {
        if self.partition.is_none() || !self.key.iter().all(|name| is_parameter(name)) {
            return;
        }
        let mut names: Vec<&str> = self.key.iter().map(String::as_str).collect();
        names.sort_unstable();
        list.item(&self.name);
        for name in names {
            list.text(b";");
            list.text(name.as_bytes());
        }
    }

    /// The seconds in which the limit lets `hits` pass on average, rounded up; none without a window.
    fn seconds_for(&self, hits: u64) -> Option<u64> {
        let (window, quota) = (self.window?.as_micros(), u128::from(self.quota.max(1)));
        let micros = u128::from(hits).saturating_mul(window).div_ceil(quota);
        u64::try_from(micros.div_ceil(1_000_000)).ok()
    }

    /// The hits that the limit lets pass in so many seconds on average, rounded down; all without a window.
    fn hits_in(&self, seconds: u64) -> u64 {
        let Some(window) = self.window.map(|window| window.as_micros()).filter(|window| *window > 0) else {
            return u64::MAX;
        };
        let hits = (u128::from(seconds) * 1_000_000).saturating_mul(u128::from(self.quota)) / window;
        u64::try_from(hits).unwrap_or(u64::MAX)
    }
}

impl Reported<'_> {
    /// Adds `X-RateLimit-*`; `now` is the time since the Unix epoch. Numbers that are there already stay if they are stricter,
    /// or explain why the response is a refusal.
    fn write_x(&self, reset: ResetForm, now: Duration, headers: &mut HeaderMap) {
        let reset = match reset {
            ResetForm::Unix => ceil_seconds(now.saturating_add(self.reset_after)),
            ResetForm::Delta => ceil_seconds(self.reset_after),
        };
        let number = |name| {
            headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()?.trim().parse::<u64>().ok())
        };
        if let Some(theirs) = number(&X_REMAINING) {
            let is_stricter =
                (theirs, u64::MAX - number(&X_RESET).unwrap_or(0)) < (self.remaining, u64::MAX - reset);
            if is_stricter || headers.contains_key(RETRY_AFTER) {
                return;
            }
        }
        headers.insert(X_LIMIT, self.policy.quota.into());
        headers.insert(X_REMAINING, self.remaining.into());
        headers.insert(X_RESET, reset.into());
    }

    /// What `RateLimit` may promise. A client that spends `r` evenly within `t` must not exceed the rate: an admission names a
    /// later time, and a refusal, whose time may not be after its `Retry-After`, fewer hits.
    fn promise(&self) -> Promise {
        if let Some(retry_after) = self.retry_after {
            let seconds = ceil_seconds(retry_after);
            return Promise {
                hits: self.remaining.min(self.policy.hits_in(seconds)),
                seconds: Some(seconds),
            };
        }
        // Places return when others are done, which no clock knows.
        let seconds = (self.policy.algorithm != Algorithm::Concurrency).then(|| {
            let at_rate = self.policy.seconds_for(self.remaining).unwrap_or(0);
            ceil_seconds(self.reset_after).max(at_rate)
        });
        Promise { hits: self.remaining, seconds }
    }

    /// The value of `RateLimit`, such as `"per-user";r=42;t=18`.
    fn limit_value(&self, draft: Draft) -> HeaderValue {
        let (left, time): (&[u8], &[u8]) = match draft {
            Draft::Eleven => (b";r=", b";t="),
            Draft::Next => (b";a=", b";w="),
        };
        let Promise { hits, seconds } = self.promise();
        let mut value = FieldValue::default();
        value.item(&self.policy.name);
        value.parameter(left, hits);
        if let Some(seconds) = seconds {
            value.parameter(time, seconds);
        }
        if draft == Draft::Next {
            value.parameter(b";c=", self.cost);
        }
        value.partition(self.policy.partition);
        value.into()
    }
}

impl HeaderSets {
    /// Adds the chosen headers: every policy that a request has to keep to, and what is left of one. Headers of whoever
    /// answered before stay: the IETF's are lists, to which ours are added.
    pub fn write<'a>(
        self,
        policies: impl Iterator<Item = Policy<'a>>,
        reported: Option<&Reported<'_>>,
        now: Duration,
        headers: &mut HeaderMap,
    ) {
        if let Some(reported) = reported.filter(|_| self.x_ratelimit) {
            reported.write_x(self.reset, now, headers);
        }
        let Some(draft) = self.ietf else { return };
        let (mut list, mut dimensions) = (FieldValue::default(), FieldValue::default());
        for policy in policies {
            policy.append_to(&mut list);
            if draft == Draft::Next {
                policy.append_dimensions_to(&mut dimensions);
            }
        }
        for (name, list) in [(IETF_POLICY, list), (IETF_PARTITION, dimensions)] {
            if !list.0.is_empty() {
                headers.append(name, list.into());
            }
        }
        if let Some(reported) = reported {
            headers.append(IETF_LIMIT, reported.limit_value(draft));
        }
    }
}

/// Sets `Retry-After`: whole seconds, rounded up.
pub fn write_retry_after(retry_after: Duration, headers: &mut HeaderMap) {
    headers.insert(RETRY_AFTER, ceil_seconds(retry_after).into());
}

fn ceil_seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// Whether RFC 9651 lets a parameter have this name.
fn is_parameter(name: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_lowercase() || byte == b'*';
    let is_next = |byte: u8| is_first(byte) || byte.is_ascii_digit() || b"_-.".contains(&byte);
    name.bytes().next().is_some_and(is_first) && name.bytes().all(is_next)
}

/// A structured field under construction: a list of quoted names with parameters.
#[derive(Default)]
struct FieldValue(BytesMut);

impl FieldValue {
    /// Begins an item: quotes `name`. A structured string may contain only printable ASCII; any other byte is written as
    /// `%xx`, and so is `%` itself so that two names never become one.
    fn item(&mut self, name: &str) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        if self.0.is_empty() {
            self.0.reserve(name.len() + 40);
        } else {
            self.0.put_slice(b", ");
        }
        self.0.put_u8(b'"');
        for byte in name.bytes() {
            match byte {
                b'"' | b'\\' => self.0.put_slice(&[b'\\', byte]),
                b'%' | ..b' ' | 0x7f.. => {
                    self.0.put_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
                }
                plain => self.0.put_u8(plain),
            }
        }
        self.0.put_u8(b'"');
    }

    fn text(&mut self, text: &[u8]) {
        self.0.put_slice(text);
    }

    fn partition(&mut self, partition: Option<Partition>) {
        let Some(partition) = partition else { return };
        self.text(b";pk=:");
        self.text(&partition.base64());
        self.text(b":");
    }

    fn parameter(&mut self, key: &[u8], number: u64) {
        self.0.put_slice(key);
        self.0.put_slice(itoa::Buffer::new().format(number.min(MAX_STRUCTURED_INTEGER)).as_bytes());
    }
}

impl From<FieldValue> for HeaderValue {
    fn from(field: FieldValue) -> Self {
        Self::from_maybe_shared(Bytes::from(field.0)).expect("a field is printable ASCII")
    }
}

#[cfg(test)]
mod tests;
