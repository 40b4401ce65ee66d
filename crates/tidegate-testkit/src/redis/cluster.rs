//! A Redis Cluster: three masters that share the slots, and a replica of each.

use std::time::Duration;

use super::single::Role;
use super::{Redis, host_list};
use crate::clock::poll;

const MASTERS: usize = 3;
const SLOTS: u16 = 16_384;

/// Six processes that gossip ten times a second, on a machine that may be busy.
const AGREEMENT: Duration = Duration::from_secs(60);

/// Three masters, then their three replicas in the same order.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts the cluster, and returns when every node says that it is whole.
    ///
    /// # Panics
    /// When they do not come to agree.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        let node = Redis::builder()
            .role(Role::ClusterNode)
            .config("cluster-enabled yes")
            .config("cluster-config-file nodes.conf")
            // Until they know each other: an introduction that takes longer is forgotten, for good.
            .config("cluster-node-timeout 30000")
            // A replica of a cluster this young may always stand for election.
            .config("cluster-replica-validity-factor 0");
        let cluster = Self { nodes: (0..2 * MASTERS).map(|_| node.start()).collect() };
        cluster.introduce();
        cluster.await_on_all("know each other", |node| cluster.knows_all(node));
        cluster.attach_replicas();
        cluster.wait_until_whole();
        for node in &cluster.nodes {
            // From now on a dead master is noticed after this many milliseconds.
            expect_ok(node, &["CONFIG", "SET", "cluster-node-timeout", "1000"]);
        }
        cluster
    }

    /// The masters at the start, then their replicas.
    #[must_use]
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The cluster's store URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", host_list(self.nodes.iter().map(Redis::addr)))
    }

    /// The node that serves `slot`, as the first node that answers sees it.
    ///
    /// # Panics
    /// When nobody serves it.
    #[must_use]
    #[track_caller]
    pub fn master_of(&self, slot: u16) -> &Redis {
        let ranges = self.nodes.iter().find_map(|node| node.try_cmd(&["CLUSTER", "SLOTS"]));
        let ranges = ranges.expect("a node answers");
        let holds = |range: &&crate::resp::Value| {
            let (from, to) = (range.array()[0].int(), range.array()[1].int());
            (from..=to).contains(&i64::from(slot))
        };
        let range = ranges.array().iter().find(holds);
        let range = range.unwrap_or_else(|| panic!("nobody serves slot {slot}"));
        let port = range.array()[2].array()[1].int();
        let node = self.nodes.iter().find(|node| i64::from(node.addr().port()) == port);
        node.expect("the cluster has no other nodes")
    }

    /// Waits until every node that runs says that all slots are served.
    ///
    /// # Panics
    /// When that does not happen.
    #[track_caller]
    pub fn wait_until_whole(&self) {
        let all = SLOTS.to_string();
        self.await_on_all("see all slots served", |node| {
            let field = |name| node.field_of(&["CLUSTER", "INFO"], name);
            // A replica that has not loaded its master's data could not replace it.
            let in_sync = node.info("master_link_status").is_none_or(|status| status == "up");
            field("cluster_state").as_deref() == Some("ok")
                && field("cluster_slots_ok") == Some(all.clone())
                && in_sync
        });
    }

    /// Gives each master its slots and an epoch of its own, and lets the first node meet the others.
    #[track_caller]
    fn introduce(&self) {
        let first = &self.nodes[0];
        for (index, node) in self.nodes.iter().enumerate() {
            expect_ok(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            if index < MASTERS {
                let slots =
                    (0..SLOTS).filter(|slot| usize::from(*slot) * MASTERS / usize::from(SLOTS) == index);
                let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
                let words = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
                expect_ok(node, &words.collect::<Vec<_>>());
            }
            let addr = node.addr();
            expect_ok(first, &["CLUSTER", "MEET", &addr.ip().to_string(), &addr.port().to_string()]);
        }
    }

    #[track_caller]
    fn attach_replicas(&self) {
        let (masters, replicas) = self.nodes.split_at(MASTERS);
        for (master, replica) in masters.iter().zip(replicas) {
            let id = master.cmd(&["CLUSTER", "MYID"]).text();
            expect_ok(replica, &["CLUSTER", "REPLICATE", &id]);
        }
        self.await_on_all("know who replicates whom", |node| count_nodes(node, "slave") == Some(MASTERS));
    }

    fn knows_all(&self, node: &Redis) -> bool {
        count_nodes(node, "master") == Some(self.nodes.len()) && count_nodes(node, "handshake") == Some(0)
    }

    /// Waits until `holds` on every node that runs.
    #[track_caller]
    fn await_on_all(&self, what: &str, holds: impl Fn(&Redis) -> bool) {
        let running = || self.nodes.iter().filter(|node| node.process().is_running());
        let agreed = poll(AGREEMENT, || running().all(&holds).then_some(()));
        assert!(agreed.is_some(), "the nodes do not {what} within {AGREEMENT:?}");
    }
}

/// How many nodes `node` lists with `flag`; nothing while it does not answer.
fn count_nodes(node: &Redis, flag: &str) -> Option<usize> {
    let listing = node.try_cmd(&["CLUSTER", "NODES"])?.text();
    let flags = listing.lines().filter_map(|line| line.split(' ').nth(2));
    Some(flags.filter(|flags| flags.split(',').any(|known| known == flag)).count())
}

#[track_caller]
fn expect_ok(node: &Redis, command: &[&str]) {
    let reply = node.cmd(command);
    let shown = &command[..command.len().min(3)];
    assert!(!reply.is_error(), "{shown:?} on {}: {reply:?}", node.addr());
}

/// The slot of a key, by the Cluster specification: CRC16 of the hash tag, or of the whole key without one.
///
/// Independent of the code under test, so that tests can use it as an oracle.
#[must_use]
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) % SLOTS
}

/// What stands between the first `{` and the first `}` after it, unless that is nothing.
fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let rest = &key[open + 1..];
    match rest.iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(close) => &rest[..close],
    }
}

/// CRC-16/XMODEM: polynomial 0x1021, starting from 0.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let start = crc ^ (u16::from(*byte) << 8);
        (0..8).fold(start, |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 })
    })
}
