//! Envoy's rate limit service, version 3, under short names.
//!
//! The messages are generated from `proto/` and committed; `tests/it/generated.rs` keeps both equal. Nothing here
//! decides anything.

pub use crate::generated::envoy::config::core::v3::HeaderValue;
pub use crate::generated::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor::Entry, rate_limit_descriptor::RateLimitOverride,
};
pub use crate::generated::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus, Quota, RateLimit, quota, rate_limit::Unit},
    rate_limit_service_client, rate_limit_service_server,
};
pub use crate::generated::envoy::r#type::v3::RateLimitUnit;

/// Every message and service above as a `FileDescriptorSet`, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

/// The path of the one method, as it travels in `:path`.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
