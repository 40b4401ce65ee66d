//! The one integration test binary of the server crate.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod auth;
mod conformance;
mod connection;
mod floods;
mod frames;
mod generated;
mod grpc;
mod http;
mod proxy;
mod refusals;
mod resp;
mod rls;
mod runtime;
mod waiting;
mod wire;
mod world;
