//! The JSON of `/v1/take` and `/v1/check`, as `docs/reference/leasing.md` has it. It owns no socket.

use std::borrow::Cow;

use serde::{Deserialize, Serialize, Serializer};

/// The protocol that this client implements.
const PROTOCOL: u64 = 1;
/// The most takes of a message, and the most returns.
pub(crate) const MOST_TAKES: usize = 200;
/// A message has at most so many bytes, unless one key needs more: a server reads 256 KiB by default.
pub(crate) const MOST_BYTES: usize = 64 << 10;
/// What one entry of a message needs beside its texts.
const ENTRY_BYTES: usize = 64;

/// The attributes of a request, written as an object.
pub(crate) type Attributes = Box<[(Box<str>, Box<str>)]>;

#[derive(Serialize)]
pub(crate) struct Take<'m> {
    protocol: u64,
    domain: &'m str,
    takes: Vec<Wanted<'m>>,
    returns: Vec<Back<'m>>,
}

#[derive(Serialize)]
pub(crate) struct Wanted<'m> {
    #[serde(serialize_with = "object")]
    pub(crate) attributes: &'m Attributes,
    pub(crate) hits: u64,
}

#[derive(Serialize)]
pub(crate) struct Back<'m> {
    #[serde(serialize_with = "object")]
    pub(crate) attributes: &'m Attributes,
    pub(crate) hits: u64,
    pub(crate) age_ms: u64,
}

/// One check.
#[derive(Serialize)]
pub(crate) struct Check<'m> {
    pub(crate) domain: &'m str,
    #[serde(serialize_with = "object")]
    pub(crate) attributes: &'m Attributes,
    pub(crate) cost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_id: Option<Cow<'m, str>>,
}

#[derive(Serialize)]
struct Batch<'m> {
    checks: &'m [Check<'m>],
}

/// Hits to give back.
#[derive(Serialize)]
pub(crate) struct Refund<'m> {
    pub(crate) domain: &'m str,
    #[serde(serialize_with = "object")]
    pub(crate) attributes: &'m Attributes,
    pub(crate) amount: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) spent: Option<&'m str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_id: Option<String>,
}

#[derive(Serialize)]
struct Held<'m> {
    lease: &'m str,
}

/// The answer to a take.
#[derive(Debug, Deserialize)]
pub(crate) struct TakeReply {
    pub(crate) answers: Vec<Taken>,
}

/// One answer; `ask` excludes the others.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Taken {
    pub(crate) granted: u64,
    pub(crate) held_ms: u64,
    pub(crate) remaining: Option<u64>,
    pub(crate) reset_after_ms: Option<u64>,
    pub(crate) retry_after_ms: Option<u64>,
    pub(crate) ask: Option<String>,
}

/// The answer to a check.
#[derive(Debug, Deserialize)]
pub(crate) struct Checked {
    pub(crate) allowed: bool,
    pub(crate) rule: Option<String>,
    pub(crate) limit: Option<u64>,
    pub(crate) remaining: Option<u64>,
    pub(crate) reset_after_ms: Option<u64>,
    pub(crate) retry_after_ms: Option<u64>,
    #[serde(default)]
    pub(crate) delay_ms: u64,
    pub(crate) lease: Option<String>,
    pub(crate) spent: Option<String>,
}

/// The answer to a batch.
#[derive(Debug, Deserialize)]
pub(crate) struct BatchReply {
    pub(crate) decisions: Vec<Checked>,
}

/// Why a message was refused.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Problem {
    pub(crate) detail: String,
    pub(crate) field: Option<String>,
    pub(crate) hint: Option<String>,
}

pub(crate) fn attributes(pairs: &[(&str, &str)]) -> Attributes {
    pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

/// The bytes that these attributes need in a message, roughly: few texts have characters that JSON escapes.
pub(crate) fn size_of(attributes: &Attributes) -> usize {
    let texts = attributes.iter().map(|(name, value)| name.len() + value.len() + 6);
    ENTRY_BYTES + texts.sum::<usize>()
}

pub(crate) fn take(domain: &str, takes: Vec<Wanted<'_>>, returns: Vec<Back<'_>>) -> Vec<u8> {
    written(&Take { protocol: PROTOCOL, domain, takes, returns })
}

pub(crate) fn check(check: &Check<'_>) -> Vec<u8> {
    written(check)
}

pub(crate) fn batch(checks: &[Check<'_>]) -> Vec<u8> {
    written(&Batch { checks })
}

pub(crate) fn refund(refund: &Refund<'_>) -> Vec<u8> {
    written(refund)
}

pub(crate) fn lease(lease: &str) -> Vec<u8> {
    written(&Held { lease })
}

fn written(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("texts and numbers always serialise")
}

fn object<S: Serializer>(attributes: &Attributes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(attributes.iter().map(|(name, value)| (name, value)))
}
