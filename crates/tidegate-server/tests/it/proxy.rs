//! The reverse proxy on real sockets, between real clients and real upstream servers.

mod drain;
mod forwarding;
mod hostile;
mod limits;
mod meaning;
mod real_upstreams;
mod slow;
mod streams;
mod tunnels;
mod upstreams;
mod versions;
pub(crate) mod world;
