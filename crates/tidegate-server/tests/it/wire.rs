//! The wire format is Envoy's: every field's number and type, as the descriptors inside Envoy 1.40 have them.

use prost_reflect::{DescriptorPool, Kind};
use tidegate_server::rls::DESCRIPTORS;

#[track_caller]
fn check(message: &str, expected: &[&str]) {
    let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
    let message = pool.get_message_by_name(message).expect("a vendored message");
    let found: Vec<_> = message
        .fields()
        .map(|field| {
            let kind = match field.kind() {
                Kind::Message(message) => message.name().to_owned(),
                Kind::Enum(values) => values.name().to_owned(),
                scalar => format!("{scalar:?}").to_lowercase(),
            };
            let many = if field.is_list() { "repeated " } else { "" };
            format!("{} {many}{kind} {}", field.number(), field.name())
        })
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn requests_have_envoys_fields() {
    check(
        "envoy.service.ratelimit.v3.RateLimitRequest",
        &["1 string domain", "2 repeated RateLimitDescriptor descriptors", "3 uint32 hits_addend"],
    );
    check(
        "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor",
        &[
            "1 repeated Entry entries",
            "2 RateLimitOverride limit",
            "3 UInt64Value hits_addend",
            "4 bool is_negative_hits",
        ],
    );
    check(
        "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry",
        &["1 string key", "2 string value"],
    );
    check(
        "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride",
        &["1 uint32 requests_per_unit", "2 RateLimitUnit unit", "3 UInt32Value unit_multiplier"],
    );
}

#[test]
fn replies_have_envoys_fields() {
    check(
        "envoy.service.ratelimit.v3.RateLimitResponse",
        &[
            "1 Code overall_code",
            "2 repeated DescriptorStatus statuses",
            "3 repeated HeaderValue response_headers_to_add",
            "4 repeated HeaderValue request_headers_to_add",
            "5 bytes raw_body",
            "6 Struct dynamic_metadata",
            "7 Quota quota",
        ],
    );
    check(
        "envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus",
        &[
            "1 Code code",
            "2 RateLimit current_limit",
            "3 uint32 limit_remaining",
            "4 Duration duration_until_reset",
            "5 Quota quota",
        ],
    );
    check(
        "envoy.service.ratelimit.v3.RateLimitResponse.RateLimit",
        &["1 uint32 requests_per_unit", "2 Unit unit", "3 string name", "4 UInt32Value unit_multiplier"],
    );
    check(
        "envoy.service.ratelimit.v3.RateLimitResponse.Quota",
        &["1 uint32 requests", "2 Timestamp valid_until", "3 string id"],
    );
    check("envoy.config.core.v3.HeaderValue", &["1 string key", "2 string value", "3 bytes raw_value"]);
}

#[test]
fn units_have_envoys_numbers() {
    let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
    let numbers = |name: &str| {
        let values = pool.get_enum_by_name(name).expect("a vendored enum");
        let mut numbers: Vec<_> =
            values.values().map(|value| (value.number(), value.name().to_owned())).collect();
        numbers.sort();
        numbers.into_iter().map(|(_, name)| name).collect::<Vec<_>>()
    };
    let shared = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"];
    assert_eq!(numbers("envoy.type.v3.RateLimitUnit"), shared);
    let reply = numbers("envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit");
    assert_eq!(reply, [&shared[..], &["WEEK"]].concat());
}
