//! Envoy's messages in protobuf's JSON form, for `POST /json`.
//!
//! The mapping (camelCase or original names, enums by name, 64-bit numbers as strings, durations as `"60s"`) is done
//! by reflection over the committed descriptors, so it cannot drift from the messages.

use super::mistakes;
use crate::problem::Problem;
use crate::rls::{DESCRIPTORS, RateLimitRequest, RateLimitResponse};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde::de::DeserializeSeed;
use std::sync::LazyLock;

struct Messages {
    request: MessageDescriptor,
    response: MessageDescriptor,
}

static MESSAGES: LazyLock<Messages> = LazyLock::new(|| {
    let pool = DescriptorPool::decode(DESCRIPTORS).expect("committed descriptors decode");
    let message = |name: &str| {
        let full = format!("envoy.service.ratelimit.v3.{name}");
        pool.get_message_by_name(&full).expect("committed descriptors have the service's messages")
    };
    Messages { request: message("RateLimitRequest"), response: message("RateLimitResponse") }
});

/// Parses a request.
///
/// # Errors
/// A problem that names the field.
pub fn parse_rls(body: &[u8]) -> Result<RateLimitRequest, Problem> {
    let descriptor = &MESSAGES.request;
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let read = descriptor.clone().deserialize(&mut deserializer).and_then(|message| {
        deserializer.end()?;
        Ok(message)
    });
    let message = read.map_err(|_| mistakes::explain(body, descriptor.clone()))?;
    Ok(message.transcode_to().expect("the descriptor is that of the message"))
}

/// Serializes a reply.
#[must_use]
pub fn write_rls(reply: &RateLimitResponse) -> Vec<u8> {
    let message = DynamicMessage::decode(MESSAGES.response.clone(), reply.encode_to_vec().as_slice())
        .expect("the descriptor is that of the message");
    serde_json::to_vec(&message).expect("a reply holds no type that JSON lacks")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Kind;
    use crate::rls::{Code, DescriptorStatus, Entry, RateLimit, RateLimitDescriptor, Unit};

    #[test]
    fn a_request_is_read_in_either_spelling() {
        let descriptor = RateLimitDescriptor {
            entries: vec![Entry { key: "user".to_owned(), value: "42".into() }],
            hits_addend: Some(5),
            is_negative_hits: true,
            ..RateLimitDescriptor::default()
        };
        let expected =
            RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor], hits_addend: 2 };
        for body in [
            r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"42"}],"hitsAddend":"5","isNegativeHits":true}],"hitsAddend":2}"#,
            r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"42"}],"hits_addend":5,"is_negative_hits":true}],"hits_addend":2}"#,
        ] {
            assert_eq!(parse_rls(body.as_bytes()).unwrap(), expected);
        }
    }

    #[test]
    fn a_reply_is_written_as_envoyproxys_service_writes_it() {
        let reply = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![DescriptorStatus {
                code: Code::OverLimit.into(),
                current_limit: Some(RateLimit {
                    requests_per_unit: 10,
                    unit: Unit::Minute.into(),
                    ..RateLimit::default()
                }),
                duration_until_reset: Some(prost_types::Duration { seconds: 35, nanos: 0 }),
                ..DescriptorStatus::default()
            }],
            ..RateLimitResponse::default()
        };
        let written: serde_json::Value = serde_json::from_slice(&write_rls(&reply)).unwrap();
        assert_eq!(
            written,
            serde_json::json!({
                "overallCode": "OVER_LIMIT",
                "statuses": [{
                    "code": "OVER_LIMIT",
                    "currentLimit": {"requestsPerUnit": 10, "unit": "MINUTE"},
                    "durationUntilReset": "35s",
                }],
            })
        );
    }

    #[track_caller]
    fn check_refused(body: &str, kind: Kind, field: &str) {
        let problem = parse_rls(body.as_bytes()).expect_err("the body should be refused");
        assert_eq!((problem.kind(), problem.field.as_deref().unwrap_or("")), (kind, field), "{problem:?}");
    }

    #[test]
    fn mistakes_are_named() {
        check_refused("{", Kind::MalformedJson, "");
        check_refused(r#"{"domain":"d"} {}"#, Kind::MalformedJson, "");
        check_refused(r#"{"domain":7}"#, Kind::InvalidField, "domain");
        check_refused(r#"{"domian":"d"}"#, Kind::InvalidField, "domian");
        check_refused(
            r#"{"descriptors":[{"entries":[{"key":1}]}]}"#,
            Kind::InvalidField,
            "descriptors[0].entries[0].key",
        );
        check_refused(r#"{"hitsAddend":-1}"#, Kind::InvalidField, "hitsAddend");
    }
}
