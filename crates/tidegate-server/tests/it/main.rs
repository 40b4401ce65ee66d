//! The one integration test binary of the server crate.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod connection;
mod generated;
mod grpc;
mod resp;
mod runtime;
mod wire;
