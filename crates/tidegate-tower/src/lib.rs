//! Rate limiting as tower middleware: [`RateLimitLayer`] puts the [gate](tidegate_http::Gate) in front of a service.
//!
//! Identity, decisions and responses are those of tidegate's proxy and forward-auth: all of that is in `tidegate-http`, whose
//! modules are re-exported.

mod body;
mod builder;
mod layer;
mod peer;
mod service;

pub use body::LimitedBody;
pub use builder::{LayerBuilder, LayerError};
pub use layer::RateLimitLayer;
pub use peer::{PeerAddr, peer};
pub use service::RateLimit;
pub use tidegate_http::{Refusal, answer, grpc, headers, identity, problem};
pub use tidegate_rules::OnMissingKey;
