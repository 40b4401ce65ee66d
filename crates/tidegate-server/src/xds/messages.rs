//! The messages of xDS and of envoyproxy/ratelimit's configuration, as far as they are used: names and numbers are theirs.

use prost_types::Any;

/// Asks for resources, or says what became of those in an answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DiscoveryRequest {
    /// The version that was accepted last.
    #[prost(string, tag = "1")]
    pub(super) version_info: String,
    #[prost(message, optional, tag = "2")]
    pub(super) node: Option<Node>,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    /// The answer that this replies to.
    #[prost(string, tag = "5")]
    pub(super) response_nonce: String,
    /// Why that answer was refused.
    #[prost(message, optional, tag = "6")]
    pub(super) error_detail: Option<RpcStatus>,
}

/// All resources of one type.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub(super) version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) resources: Vec<Any>,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    #[prost(string, tag = "5")]
    pub(super) nonce: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Node {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) cluster: String,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

/// The limits of one domain.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RateLimitConfig {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) domain: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) descriptors: Vec<Descriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Descriptor {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
    #[prost(message, optional, tag = "3")]
    pub(super) rate_limit: Option<Policy>,
    #[prost(message, repeated, tag = "4")]
    pub(super) descriptors: Vec<Descriptor>,
    #[prost(bool, tag = "5")]
    pub(super) shadow_mode: bool,
    #[prost(bool, tag = "6")]
    pub(super) detailed_metric: bool,
    #[prost(bool, tag = "7")]
    pub(super) quota_mode: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Policy {
    #[prost(int32, tag = "1")]
    pub(super) unit: i32,
    #[prost(uint32, tag = "2")]
    pub(super) requests_per_unit: u32,
    #[prost(bool, tag = "3")]
    pub(super) unlimited: bool,
    #[prost(string, tag = "4")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) replaces: Vec<Replaced>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Replaced {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}
