//! `POST /v1/take`: what clients send that decide by themselves, and are answered. `docs/reference/leasing.md` has the protocol.

use serde::de::Deserializer;
use serde::{Deserialize, Serialize};

use super::fields::{Attributes, Count, Text};
use super::requests::bounded;
use super::{MAX_DOMAIN_BYTES, MAX_TAKES};

/// One message for all keys that a client uses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Take<'a> {
    /// The protocol that the client uses: [`TAKE_PROTOCOL`](super::TAKE_PROTOCOL).
    pub protocol: Count,
    /// The domain whose rules apply.
    #[serde(borrow)]
    pub domain: Text<'a, MAX_DOMAIN_BYTES>,
    /// At most [`MAX_TAKES`].
    #[serde(borrow, default, deserialize_with = "takes")]
    pub takes: Vec<Wanted<'a>>,
    /// At most [`MAX_TAKES`].
    #[serde(borrow, default, deserialize_with = "returns")]
    pub returns: Vec<Returned<'a>>,
}

/// Hits that a client wants.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted<'a> {
    /// The attributes of the requests.
    #[serde(borrow, default)]
    pub attributes: Attributes<'a>,
    /// How many.
    pub hits: Count,
}

/// Hits that a client took and did not spend.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Returned<'a> {
    /// The attributes that they were taken for.
    #[serde(borrow, default)]
    pub attributes: Attributes<'a>,
    /// How many.
    pub hits: Count,
    /// How long ago they were asked for, at least.
    pub age_ms: Count,
}

fn takes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Wanted<'de>>, D::Error> {
    bounded(deserializer, "takes", MAX_TAKES, "send several messages")
}

fn returns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Returned<'de>>, D::Error> {
    bounded(deserializer, "returns", MAX_TAKES, "send several messages")
}

/// The answer to a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TakeReply {
    /// One for each take, in order.
    pub answers: Vec<Taken>,
}

/// What a client may spend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Taken {
    /// Hits are granted; none if they are refused.
    Decided {
        /// How many.
        granted: u64,
        /// How long they may be held, counted from before the message was sent.
        held_ms: u64,
        /// The rule that the numbers belong to; none if none matched.
        rule: Option<String>,
        /// Its limit, as it counts hits that are taken ahead.
        limit: Option<u64>,
        /// What remains of it.
        remaining: Option<u64>,
        /// The time until the full quota is back.
        reset_after_ms: Option<u64>,
        /// If nothing is granted: the time until one hit passes; none if it never does.
        retry_after_ms: Option<u64>,
    },
    /// Ask `/v1/check` for each request.
    Ask {
        /// Why.
        ask: String,
    },
}
