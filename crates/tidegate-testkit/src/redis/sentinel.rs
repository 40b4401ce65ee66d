//! A master with a replica, and three sentinels that promote the replica when the master is gone.

use std::net::SocketAddr;
use std::time::Duration;

use super::single::Role;
use super::{Redis, host_list};
use crate::clock::poll;
use crate::resp::Value;

/// The name under which the sentinels know the master.
const SERVICE: &str = "tidegate";

/// Sentinels find each other through messages that each sends every two seconds.
const DISCOVERY: Duration = Duration::from_secs(30);
/// Two seconds to notice, then votes; a tied vote is repeated after the failover time-out.
const FAILOVER: Duration = Duration::from_secs(30);

/// One master, one replica, three sentinels.
#[derive(Debug)]
pub struct SentinelGroup {
    nodes: Vec<Redis>,
    sentinels: Vec<Redis>,
}

impl SentinelGroup {
    /// Starts the group, and returns when every sentinel knows the replica and the other sentinels.
    ///
    /// # Panics
    /// When they do not find each other.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        let master = Redis::start();
        let (host, port) = (master.addr().ip(), master.addr().port());
        let replica = Redis::builder().config(format!("replicaof {host} {port}")).start();
        let online = poll(DISCOVERY, || (replica.info("master_link_status")? == "up").then_some(()));
        assert!(online.is_some(), "the replica does not reach its master");
        let sentinel = Redis::builder()
            .role(Role::Sentinel)
            .config(format!("sentinel monitor {SERVICE} {host} {port} 2"))
            // A sentinel pings at most once a second, or as often as this. With a shorter time it would call a
            // master that it just switched to dead, before its first ping, and switch back and forth for ever.
            .config(format!("sentinel down-after-milliseconds {SERVICE} 2000"))
            .config(format!("sentinel failover-timeout {SERVICE} 3000"));
        let sentinels = (0..3).map(|_| sentinel.start()).collect();
        let group = Self { nodes: vec![master, replica], sentinels };
        let known = poll(DISCOVERY, || group.sentinels.iter().all(knows_everybody).then_some(()));
        assert!(known.is_some(), "the sentinels do not find each other and the replica");
        group
    }

    /// The first master, then its replica.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The three sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// The name of the service, for a client that asks a sentinel itself.
    #[must_use]
    pub fn service(&self) -> &'static str {
        SERVICE
    }

    /// The group's store URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{SERVICE}", host_list(self.sentinels.iter().map(Redis::addr)))
    }

    /// The node that the sentinels call master.
    ///
    /// # Panics
    /// When they disagree, or name a node that is not ours.
    #[must_use]
    #[track_caller]
    pub fn master(&self) -> &Redis {
        let addr = self.agreed_master().expect("the sentinels agree on a master");
        self.nodes.iter().find(|node| node.addr() == addr).expect("the master is one of ours")
    }

    /// Waits until all sentinels name another master than `old`, and it says so too.
    ///
    /// # Panics
    /// When that does not happen.
    #[track_caller]
    pub fn wait_for_failover_from(&self, old: SocketAddr) -> &Redis {
        let promoted = poll(FAILOVER, || {
            let addr = self.agreed_master().filter(|addr| *addr != old)?;
            let node = self.nodes.iter().find(|node| node.addr() == addr)?;
            (node.info("role")? == "master").then_some(node)
        });
        promoted.unwrap_or_else(|| panic!("no failover within {FAILOVER:?}"))
    }

    /// The master's address, if all sentinels that answer give the same.
    fn agreed_master(&self) -> Option<SocketAddr> {
        let mut named = self.sentinels.iter().filter_map(named_master);
        let first = named.next()?;
        named.all(|addr| addr == first).then_some(first)
    }
}

fn named_master(sentinel: &Redis) -> Option<SocketAddr> {
    let reply = sentinel.try_cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE])?;
    let Value::Array(parts) = reply else { return None };
    let [host, port] = &parts[..] else { return None };
    format!("{}:{}", host.text(), port.text()).parse().ok()
}

fn knows_everybody(sentinel: &Redis) -> bool {
    let Some(reply) = sentinel.try_cmd(&["SENTINEL", "MASTER", SERVICE]) else { return false };
    let fields: Vec<String> = reply.array().iter().map(Value::text).collect();
    let field = |name: &str| Some(fields.chunks_exact(2).find(|pair| pair[0] == name)?[1].as_str());
    field("num-other-sentinels") == Some("2")
        && field("num-slaves") == Some("1")
        && field("flags") == Some("master")
}
