//! The transports of tidegate: how a request reaches the limiter, and how the decision gets back.
//!
//! A transport parses, calls the limiter, and answers. It never decides, knows no other transport, and never touches a
//! store. [`tidegate_runtime`] owns threads, sockets and the HTTP on them; this is plain code that turns bytes
//! into requests and decisions into bytes.

pub mod access;
// Generated from `proto/`, so neither formatted nor linted: `tests/it/generated.rs` compares it byte by byte.
#[rustfmt::skip]
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all, reason = "generated")]
mod generated;
pub mod grpc;
pub mod http;
pub mod json;
pub mod resp;
pub mod rlqs;
pub mod rls;
pub mod service;
pub mod xds;

pub use tidegate_http::{headers, problem};
