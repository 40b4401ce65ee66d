//! Envoy's rate limit service over gRPC, as envoyproxy/ratelimit's users know it; the numbers are worked out by hand.

mod failure;
mod headers;
mod hits;
mod hostile;
mod modes;
mod overrides;
mod statuses;

use tidegate_server::rls::{Code, DescriptorStatus, RateLimitResponse, Unit};

/// A status in short: `OK 2 of 3/MINUTE 60s`.
fn short(status: &DescriptorStatus) -> String {
    let mut text = match status.code() {
        Code::Ok => "OK".to_owned(),
        Code::OverLimit => "OVER".to_owned(),
        Code::Unknown => "UNKNOWN".to_owned(),
    };
    if status.limit_remaining > 0 || status.current_limit.is_some() {
        text += &format!(" {}", status.limit_remaining);
    }
    if let Some(limit) = &status.current_limit {
        let unit = match limit.unit() {
            Unit::Unknown => "-",
            unit => unit.as_str_name(),
        };
        text += &format!(" of {}/{unit}", limit.requests_per_unit);
        if let Some(times) = limit.unit_multiplier {
            text += &format!("x{times}");
        }
    }
    if let Some(reset) = &status.duration_until_reset {
        text += &format!(" {}s", reset.seconds);
    }
    text
}

/// An answer in short: whether it passes, and its statuses.
fn told(answer: &RateLimitResponse) -> (Code, Vec<String>) {
    (answer.overall_code(), answer.statuses.iter().map(short).collect())
}
