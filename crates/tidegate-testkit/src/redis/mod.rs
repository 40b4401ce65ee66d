//! Real Redis servers: one, a Sentinel group, a Cluster, or several that know nothing of each other.

mod cluster;
mod sentinel;
mod sharded;
mod single;

pub use cluster::{RedisCluster, slot_of};
pub use sentinel::SentinelGroup;
pub use sharded::ShardedRedis;
pub use single::{Redis, RedisBuilder};

use std::net::SocketAddr;

/// `host:port,host:port`, as store URLs list nodes.
fn host_list(addrs: impl IntoIterator<Item = SocketAddr>) -> String {
    let hosts: Vec<String> = addrs.into_iter().map(|addr| addr.to_string()).collect();
    hosts.join(",")
}
