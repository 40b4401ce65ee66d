//! Envoy's rate limit service, version 3: its messages under short names, and what they mean.
//!
//! The messages are generated from `proto/` and committed; `tests/it/generated.rs` keeps both equal. `question` and
//! `answer` hold envoyproxy/ratelimit's rules for them, whichever transport carries them. Nothing here decides anything.

mod answer;
mod question;

use bytes::Bytes;
use tidegate_limiter::{CheckRequest, DescriptorAsk, Patience, RefundError};

pub use crate::generated::envoy::config::core::v3::HeaderValue;
pub use crate::generated::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride,
};
pub use crate::generated::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus, Quota, RateLimit, quota, rate_limit::Unit},
    rate_limit_service_client, rate_limit_service_server,
};
pub use crate::generated::envoy::r#type::v3::RateLimitUnit;
pub(crate) use question::Mistake;

use crate::service::Service;

/// Every message and service above as a `FileDescriptorSet`, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("../generated/descriptors.bin");

/// The path of the one method, as it travels in `:path`.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// One entry of a descriptor.
///
/// Its value is bytes where Envoy's file says text, which is the same on the wire. Envoy passes on what its clients send,
/// a header with any bytes in it included. A message that could not be read for that would be an error, and on an error
/// Envoy lets the request pass.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Entry {
    /// The attribute's name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

impl Service {
    /// Answers Envoy's question.
    ///
    /// # Errors
    /// When the question itself is wrong. Whatever the rules and the store say is an answer.
    pub(crate) async fn should_rate_limit(
        &self,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, Mistake> {
        let began = self.clock.now();
        question::check_bounds(request)?;
        let overrides = question::overrides(request)?;
        let entries = question::entries(request);
        let asks = question::asks(request, &entries, &overrides);
        let negative = |(descriptor, _): &(&RateLimitDescriptor, _)| descriptor.is_negative_hits;
        for (descriptor, ask) in request.descriptors.iter().zip(&asks).filter(negative) {
            let returned = for_gateway(&request.domain, std::slice::from_ref(ask));
            match self.limiter.refund(&returned, question::hits(request, descriptor)).await {
                // Its ask is a look, and tells what is left now.
                Ok(()) => {}
                Err(RefundError::UnknownDomain(_)) => return Ok(answer::all_ok(asks.len())),
                Err(RefundError::Store(error)) => {
                    tracing::debug!(domain = request.domain, %error, "negative hits were not given back");
                }
            }
        }
        // An unknown domain passes, as Envoy's users expect; the limiter has told the observer.
        Ok(match self.limiter.check(&for_gateway(&request.domain, &asks)).await {
            Ok(decision) => answer::response(self, &decision, asks.len(), began),
            Err(_) => answer::all_ok(asks.len()),
        })
    }
}

/// A gateway cannot hold a request back.
fn for_gateway<'a>(domain: &'a str, descriptors: &'a [DescriptorAsk<'a>]) -> CheckRequest<'a> {
    CheckRequest { domain, descriptors, patience: Patience::MustGoNow }
}
