//! Rate limit headers of responses.
//!
//! Two sets: the `X-RateLimit-*` headers that most clients know, and the IETF's `RateLimit` and `RateLimit-Policy` (draft
//! 11, structured fields). Time is a parameter; everything is rounded so that a client that waits as told is never early.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Duration;

const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const IETF_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const IETF_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The largest integer a structured field may hold (RFC 9651): fifteen digits.
const MAX_STRUCTURED_INTEGER: u64 = 999_999_999_999_999;

/// Which headers a response carries. `Retry-After` is always sent with a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderSets {
    x_ratelimit: bool,
    ietf: bool,
}

/// One set of headers, by its name in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HeaderSet {
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset` (Unix seconds).
    XRatelimit,
    /// `RateLimit-Policy` and `RateLimit`.
    Ietf,
}

impl HeaderSets {
    /// All sets.
    pub const ALL: Self = Self { x_ratelimit: true, ietf: true };
}

impl FromIterator<HeaderSet> for HeaderSets {
    fn from_iter<I: IntoIterator<Item = HeaderSet>>(sets: I) -> Self {
        let mut chosen = Self::default();
        for set in sets {
            match set {
                HeaderSet::XRatelimit => chosen.x_ratelimit = true,
                HeaderSet::Ietf => chosen.ietf = true,
            }
        }
        chosen
    }
}

/// The limit that a response reports: the one that refused, otherwise the one nearest to refusing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported<'a> {
    /// The rule, or rule and limit, by its policy's name.
    pub policy: &'a str,
    /// Hits per window.
    pub limit: u64,
    /// Hits left.
    pub remaining: u64,
    /// The window, if the limit has one and it is a whole number of seconds.
    pub window: Option<Duration>,
    /// The time until the full quota is back.
    pub reset_after: Duration,
}

impl Reported<'_> {
    /// Appends the chosen headers; `now` is the time since the Unix epoch.
    pub fn write(&self, sets: HeaderSets, now: Duration, headers: &mut HeaderMap) {
        if sets.x_ratelimit {
            headers.insert(X_LIMIT, self.limit.into());
            headers.insert(X_REMAINING, self.remaining.into());
            headers.insert(X_RESET, ceil_seconds(now.saturating_add(self.reset_after)).into());
        }
        if sets.ietf {
            headers.insert(IETF_POLICY, self.policy_value());
            headers.insert(IETF_LIMIT, self.limit_value());
        }
    }

    /// The value of `RateLimit-Policy`, such as `"per-user";q=100;w=60`. It is the same for every request of a limit.
    #[must_use]
    pub fn policy_value(&self) -> HeaderValue {
        let mut value = FieldValue::name(self.policy);
        value.parameter(b";q=", self.limit);
        if let Some(window) = self.window.filter(|window| window.subsec_nanos() == 0) {
            value.parameter(b";w=", window.as_secs());
        }
        value.into()
    }

    /// The value of `RateLimit`, such as `"per-user";r=42;t=18`.
    #[must_use]
    pub fn limit_value(&self) -> HeaderValue {
        let mut value = FieldValue::name(self.policy);
        value.parameter(b";r=", self.remaining);
        value.parameter(b";t=", ceil_seconds(self.reset_after));
        value.into()
    }
}

/// Sets `Retry-After`: whole seconds, rounded up.
pub fn write_retry_after(retry_after: Duration, headers: &mut HeaderMap) {
    headers.insert(RETRY_AFTER, ceil_seconds(retry_after).into());
}

fn ceil_seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// A structured field under construction: one quoted name with integer parameters.
struct FieldValue(BytesMut);

impl FieldValue {
    /// Quotes `name`. A structured string may contain only printable ASCII; any other byte is written as `%xx`, and so is
    /// `%` itself so that two names never become one.
    fn name(name: &str) -> Self {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut value = BytesMut::with_capacity(name.len() + 40);
        value.put_u8(b'"');
        for byte in name.bytes() {
            match byte {
                b'"' | b'\\' => value.put_slice(&[b'\\', byte]),
                b'%' | ..b' ' | 0x7f.. => {
                    value.put_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
                }
                plain => value.put_u8(plain),
            }
        }
        value.put_u8(b'"');
        Self(value)
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
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sfv::{BareItem, List, ListEntry, Parser};

    const REPORTED: Reported<'_> = Reported {
        policy: "per-user",
        limit: 100,
        remaining: 42,
        window: Some(Duration::from_secs(60)),
        reset_after: Duration::from_millis(17_001),
    };

    /// Parses one structured-field item with an independent parser: its string and its integer parameters in order.
    fn parse(value: &HeaderValue) -> (String, Vec<(String, i64)>) {
        let list = Parser::new(value.as_bytes()).parse::<List>().expect("a structured list");
        let [ListEntry::Item(item)] = list.as_slice() else { panic!("not one item: {value:?}") };
        let BareItem::String(name) = &item.bare_item else { panic!("not a string: {value:?}") };
        let parameters = item.params.iter().map(|(key, number)| {
            let BareItem::Integer(number) = number else { panic!("not an integer: {value:?}") };
            (key.as_str().to_owned(), i64::from(*number))
        });
        (name.as_str().to_owned(), parameters.collect())
    }

    fn written(sets: HeaderSets, now: Duration) -> Vec<String> {
        let mut headers = HeaderMap::new();
        REPORTED.write(sets, now, &mut headers);
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn x_ratelimit_counts_its_reset_in_unix_seconds_rounded_up() {
        assert_eq!(
            written([HeaderSet::XRatelimit].into_iter().collect(), Duration::from_secs(1_000)),
            ["x-ratelimit-limit: 100", "x-ratelimit-remaining: 42", "x-ratelimit-reset: 1018"]
        );
    }

    #[test]
    fn the_ietf_set_reads_as_in_draft_11() {
        assert_eq!(
            written([HeaderSet::Ietf].into_iter().collect(), Duration::ZERO),
            [r#"ratelimit-policy: "per-user";q=100;w=60"#, r#"ratelimit: "per-user";r=42;t=18"#]
        );
    }

    #[test]
    fn no_set_means_no_header() {
        assert_eq!(written(HeaderSets::default(), Duration::ZERO), [""; 0]);
    }

    #[test]
    fn a_window_that_is_no_whole_number_of_seconds_is_left_out() {
        let reported = Reported { window: Some(Duration::from_millis(1_500)), ..REPORTED };
        assert_eq!(reported.policy_value(), r#""per-user";q=100"#);
    }

    #[test]
    fn retry_after_is_never_early() {
        for (span, expected) in [(0, "0"), (1, "1"), (999, "1"), (1_000, "1"), (1_001, "2")] {
            let mut headers = HeaderMap::new();
            write_retry_after(Duration::from_millis(span), &mut headers);
            assert_eq!(headers[RETRY_AFTER], expected, "{span} ms");
        }
    }

    #[test]
    fn the_longest_spans_do_not_overflow() {
        let reported = Reported { reset_after: Duration::MAX, ..REPORTED };
        let mut headers = HeaderMap::new();
        reported.write(HeaderSets::ALL, Duration::MAX, &mut headers);
        assert_eq!(headers["x-ratelimit-reset"], u64::MAX.to_string());
    }

    proptest! {
        #[test]
        fn any_rule_and_numbers_make_valid_structured_fields(
            policy in any::<String>(), limit: u64, remaining: u64, window: u64, reset in 0..u64::MAX,
        ) {
            let reported = Reported {
                policy: &policy,
                limit,
                remaining,
                window: Some(Duration::from_secs(window)),
                reset_after: Duration::from_secs(reset),
            };
            let cap = |number: u64| i64::try_from(number.min(999_999_999_999_999)).unwrap();
            let (name, numbers) = parse(&reported.policy_value());
            prop_assert_eq!(percent_decoded(&name), policy.as_bytes());
            prop_assert_eq!(numbers, [("q".to_owned(), cap(limit)), ("w".to_owned(), cap(window))]);
            let (_, numbers) = parse(&reported.limit_value());
            prop_assert_eq!(numbers, [("r".to_owned(), cap(remaining)), ("t".to_owned(), cap(reset))]);
        }
    }

    fn percent_decoded(text: &str) -> Vec<u8> {
        let mut bytes = text.bytes();
        let mut decoded = Vec::new();
        while let Some(byte) = bytes.next() {
            decoded.push(match byte {
                b'%' => {
                    let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                plain => plain,
            });
        }
        decoded
    }
}
