//! The one integration test binary of the server crate.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod auth;

mod generated;
mod grpc;
mod http;
mod resp;
mod rlqs;
mod rls;
mod waiting;
mod wire;
mod world;
