//! Rate limiting as tower middleware: who a request is, whether it may pass, and what it is told.
//!
//! [`RateLimitLayer`] is the middleware. Its parts serve other HTTP surfaces as well: [`identity`] reads a request's
//! attributes; [`answer`], [`headers`], [`problem`] and [`grpc`] say what a caller reads about a decision; [`Hold`] and
//! [`LimitedBody`] keep a lease for as long as a response lasts. Nothing here decides: that is the limiter's business.

pub mod answer;
mod body;
pub mod grpc;
pub mod headers;
mod hold;
pub mod identity;
mod layer;
mod peer;
pub mod problem;
mod service;

pub use body::LimitedBody;
pub use hold::Hold;
pub use layer::RateLimitLayer;
pub use peer::{PeerAddr, peer};
pub use service::RateLimit;
