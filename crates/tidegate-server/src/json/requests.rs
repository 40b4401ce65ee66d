//! Request bodies.

use super::fields::{Attributes, Count, Object, Text};
use super::{MAX_CHECKS, MAX_DOMAIN_BYTES, MAX_LEASE_BYTES, MAX_REQUEST_ID_BYTES, MAX_SPENT_BYTES};
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// `POST /v1/check`: is this request admitted?
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check<'a> {
    /// The domain whose rules apply.
    #[serde(borrow)]
    pub domain: Text<'a, MAX_DOMAIN_BYTES>,
    /// The attributes of the request.
    #[serde(borrow, default)]
    pub attributes: Attributes<'a>,
    /// Hits to spend; 0 reads without spending.
    #[serde(default = "one")]
    pub cost: Count,
    /// Makes a retry safe.
    #[serde(borrow, default, deserialize_with = "not_empty")]
    pub request_id: Option<Text<'a, MAX_REQUEST_ID_BYTES>>,
}

/// An empty id would be the same for every request without one.
fn not_empty<'de: 'a, 'a, D: Deserializer<'de>, const MAX: usize>(
    deserializer: D,
) -> Result<Option<Text<'a, MAX>>, D::Error> {
    let text = Option::<Text<'a, MAX>>::deserialize(deserializer)?;
    match &text {
        Some(text) if text.as_str().is_empty() => Err(D::Error::custom(
            "expected at least one character; hint: leave it out, or give each request its own",
        )),
        _ => Ok(text),
    }
}

fn one() -> Count {
    Count(1)
}

/// `POST /v1/check/batch`: several checks, each decided separately, in order.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch<'a> {
    /// At most [`MAX_CHECKS`].
    #[serde(borrow, deserialize_with = "at_most_max_checks")]
    pub checks: Vec<Check<'a>>,
}

/// `POST /v1/release` and `POST /v1/renew`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease<'a> {
    /// The `lease` of a check's answer.
    #[serde(borrow)]
    pub lease: Text<'a, MAX_LEASE_BYTES>,
}

/// `POST /v1/refund`: returns hits.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refund<'a> {
    /// The domain whose rules apply.
    #[serde(borrow)]
    pub domain: Text<'a, MAX_DOMAIN_BYTES>,
    /// The attributes of the refunded request.
    #[serde(borrow, default)]
    pub attributes: Attributes<'a>,
    /// Hits to return.
    pub amount: Count,
    /// How long ago the check that spent them was sent, at least.
    #[serde(default)]
    pub age_ms: Option<Count>,
    /// The `spent` token of the check's answer, instead of `age_ms`.
    #[serde(borrow, default)]
    pub spent: Option<Text<'a, MAX_SPENT_BYTES>>,
    /// Makes a retry safe.
    #[serde(borrow, default, deserialize_with = "not_empty")]
    pub request_id: Option<Text<'a, MAX_REQUEST_ID_BYTES>>,
}

/// `POST /v1/utilization`: how busy the workers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerReport {
    /// Requests in progress, or waiting for a worker.
    pub in_use: Count,
    /// Requests that can be in progress at once.
    pub capacity: Count,
}

fn at_most_max_checks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Check<'de>>, D::Error> {
    bounded(deserializer, "checks", MAX_CHECKS, "send several batches")
}

/// A list of at most `most` objects.
pub(super) fn bounded<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
    what: &'static str,
    most: usize,
    hint: &'static str,
) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(ListVisitor { what, most, hint, of: PhantomData })
}

struct ListVisitor<T> {
    what: &'static str,
    most: usize,
    hint: &'static str,
    of: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an array of {}", self.what)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
        let Self { what, most, hint, .. } = self;
        let mut list = Vec::new();
        while let Some(Object(one)) = sequence.next_element()? {
            if list.len() == most {
                return Err(A::Error::custom(format_args!("expected at most {most} {what}; hint: {hint}")));
            }
            list.push(one);
        }
        Ok(list)
    }
}
