//! The JSON of `/v1/take` and `/v1/check`, as `docs/reference/leasing.md` has it. It owns no socket.

use serde::{Deserialize, Serialize, Serializer};

/// The protocol that this client implements.
const PROTOCOL: u64 = 1;
/// The most takes of a message, and the most returns.
pub(crate) const MOST_TAKES: usize = 200;

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

#[derive(Serialize)]
struct Check<'m> {
    domain: &'m str,
    #[serde(serialize_with = "object")]
    attributes: &'m Attributes,
    cost: u64,
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
    pub(crate) reset_after_ms: Option<u64>,
    pub(crate) retry_after_ms: Option<u64>,
    pub(crate) ask: Option<String>,
}

/// The answer to a check.
#[derive(Debug, Deserialize)]
pub(crate) struct Checked {
    pub(crate) allowed: bool,
    #[serde(default)]
    pub(crate) retry_after_ms: Option<u64>,
}

/// Why a message was refused.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Problem {
    pub(crate) detail: String,
    pub(crate) hint: Option<String>,
}

pub(crate) fn take(domain: &str, takes: Vec<Wanted<'_>>, returns: Vec<Back<'_>>) -> Vec<u8> {
    written(&Take { protocol: PROTOCOL, domain, takes, returns })
}

pub(crate) fn check(domain: &str, attributes: &Attributes, cost: u64) -> Vec<u8> {
    written(&Check { domain, attributes, cost })
}

fn written(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("texts and numbers always serialise")
}

fn object<S: Serializer>(attributes: &Attributes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(attributes.iter().map(|(name, value)| (name, value)))
}
