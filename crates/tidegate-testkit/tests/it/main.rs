//! Every starter on the real binary it starts.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod caddy;
mod cluster;
mod envoy;
mod fault_proxy;
mod nginx;
mod process;
mod redis;
mod sentinel;
mod server;
mod upstream;
