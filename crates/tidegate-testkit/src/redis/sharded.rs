//! Independent Redis servers over which a client spreads its keys.

use super::{Redis, host_list};

/// Some servers that know nothing of each other.
#[derive(Debug)]
pub struct ShardedRedis {
    nodes: Vec<Redis>,
}

impl ShardedRedis {
    /// Starts `count` of them.
    #[must_use]
    #[track_caller]
    pub fn start(count: usize) -> Self {
        Self { nodes: (0..count).map(|_| Redis::start()).collect() }
    }

    /// The servers, in the order of the URL.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Their store URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis+sharded://{}", host_list(self.nodes.iter().map(Redis::addr)))
    }
}
