//! The reverse proxy on real sockets, between real clients and real upstream servers.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod conformance;
mod drain;
mod floods;
mod forwarding;
mod hostile;
mod limits;
// HTTP and gRPC listeners, for what all of them must do alike.
#[path = "../../../tidegate-server/tests/it/world.rs"]
#[allow(dead_code, reason = "the server's own tests use the rest")]
mod listeners;
mod meaning;
mod real_servers;
mod refusals;
mod slow;
mod streams;
mod tunnels;
mod upstreams;
mod versions;
mod world;
