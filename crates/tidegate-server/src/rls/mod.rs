//! Envoy's rate limit service, version 3: its messages under short names, and their semantics.
//!
//! The messages are generated from `proto/` and committed; `tests/it/generated.rs` checks that they match. `question` and
//! `answer` implement envoyproxy/ratelimit's semantics for any transport. Nothing here decides anything.

mod answer;
mod question;

use bytes::Bytes;
use tidegate_core::Timestamp;
use tidegate_limiter::{CheckRequest, DescriptorAsk, Patience, RefundError, SpentAt};
use tidegate_rules::UnknownDomain;

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

/// The path of the only method, as sent in `:path`.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// One entry of a descriptor.
///
/// Its value is bytes where Envoy's file says string, which is the same on the wire. Envoy forwards what its clients send,
/// including headers with arbitrary bytes. A message that is rejected for that would be an error, and on an error Envoy
/// admits the request.
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
    /// Answers an Envoy request.
    ///
    /// # Errors
    /// The request itself is invalid. Any result of the rules or the store is an answer.
    pub(crate) async fn should_rate_limit(
        &self,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, Mistake> {
        let began = self.clock.now();
        question::check_bounds(request)?;
        let overrides = question::overrides(request)?;
        let entries = question::entries(request);
        let asks = question::asks(request, &entries, &overrides);
        let answer = if request.descriptors.iter().any(|descriptor| descriptor.is_negative_hits) {
            self.spend_and_give_back(request, &asks, began).await
        } else {
            let decided = self.limiter.check(&for_gateway(&request.domain, &asks)).await;
            decided.map(|decision| {
                let places = (0..asks.len()).map(|place| (&decision, place));
                answer::response(self, (&decision, &asks), places, began)
            })
        };
        // An unknown domain is admitted, as Envoy's users expect; the limiter has notified the observer.
        Ok(answer.unwrap_or_else(|_| answer::all_ok(asks.len())))
    }

    /// Answers a request with negative hits in some descriptors: those are refunded if the others are admitted; a refused
    /// request changes nothing. The protocol has no field for when the hits were spent, so they go back into the current
    /// window.
    async fn spend_and_give_back(
        &self,
        request: &RateLimitRequest,
        asks: &[DescriptorAsk<'_>],
        began: Timestamp,
    ) -> Result<RateLimitResponse, UnknownDomain> {
        let is_negative = |place: &usize| request.descriptors[*place].is_negative_hits;
        let (returned, spent): (Vec<usize>, Vec<usize>) = (0..asks.len()).partition(is_negative);
        let spends: Vec<DescriptorAsk<'_>> = spent.iter().map(|place| asks[*place]).collect();
        let decision = match spends.is_empty() {
            true => None,
            false => Some(self.limiter.check(&for_gateway(&request.domain, &spends)).await?),
        };
        let passes = decision.as_ref().is_none_or(|decision| decision.allowed);
        for place in returned.iter().filter(|_| passes) {
            let hits = question::hits(request, &request.descriptors[*place]);
            let ask = for_gateway(&request.domain, std::slice::from_ref(&asks[*place]));
            match self.limiter.refund(&ask, hits, SpentAt::Unknown).await {
                Ok(()) => {}
                Err(RefundError::UnknownDomain(error)) => return Err(error),
                Err(error) => {
                    tracing::debug!(domain = request.domain, %error, "negative hits were not refunded");
                }
            }
        }
        // Checks with cost 0, which report the current remainder.
        let looks: Vec<DescriptorAsk<'_>> = returned.iter().map(|place| asks[*place]).collect();
        let left = self.limiter.check(&for_gateway(&request.domain, &looks)).await?;
        let (overall, about) = match &decision {
            Some(decision) => (decision, &spends),
            None => (&left, &looks),
        };
        let at = |place: usize| match returned.binary_search(&place) {
            Ok(among) => (&left, among),
            Err(among) => (overall, place - among),
        };
        Ok(answer::response(self, (overall, about), (0..asks.len()).map(at), began))
    }
}

/// A gateway cannot delay a request.
fn for_gateway<'a>(domain: &'a str, descriptors: &'a [DescriptorAsk<'a>]) -> CheckRequest<'a> {
    CheckRequest::new(domain, descriptors).patience(Patience::MustGoNow)
}
