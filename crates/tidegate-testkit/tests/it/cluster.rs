//! A real Redis Cluster that serves every slot and survives a master.

use std::collections::BTreeMap;

use tidegate_testkit::resp::Value;
use tidegate_testkit::{RedisCluster, slot_of};

#[test]
fn a_cluster_serves_all_slots_also_after_losing_a_master() {
    let cluster = RedisCluster::start();
    assert_eq!(cluster.url().matches("127.0.0.1:").count(), 6);
    assert_served_everywhere(&cluster, "before");

    let first = &cluster.nodes()[0];
    first.kill();
    // The others may still believe in the dead node for a moment.
    tidegate_testkit::eventually("slot 0 has a new master", std::time::Duration::from_secs(30), || {
        cluster.nodes()[1..].iter().any(|node| {
            let mut client = node.client();
            client.cmd(&["SET", key_of_slot_0(), "1"]) == Value::Simple("OK".into())
        })
    });
    cluster.wait_until_whole();
    assert_ne!(cluster.master_of(0).addr(), first.addr());
    assert_served_everywhere(&cluster, "after");
}

#[test]
fn slots_are_computed_as_redis_computes_them() {
    // Known values of the Cluster specification, then keys with and without tags, checked by Redis itself.
    assert_eq!(slot_of(b"123456789"), 0x31C3);
    let redis =
        tidegate_testkit::Redis::builder().config("cluster-enabled yes").config("cluster-port 0").start();
    let keys: &[&[u8]] =
        &[b"", b"a", b"{user}.x", b"{}a", b"{a", b"a}", b"x{y}{z}", b"{{a}}", b"\xff\x00{\x01}"];
    for key in keys {
        let theirs = redis.cmd(&[b"CLUSTER", b"KEYSLOT", *key]).int();
        assert_eq!(i64::from(slot_of(key)), theirs, "{key:?}");
    }
}

/// Writes one key into each of the 16,384 slots, at the node that the cluster names for it.
#[track_caller]
fn assert_served_everywhere(cluster: &RedisCluster, value: &str) {
    let keys = key_of_each_slot();
    let mut by_master: BTreeMap<u16, Vec<Vec<String>>> = BTreeMap::new();
    let ranges = cluster.master_of(0).cmd(&["CLUSTER", "SLOTS"]);
    for range in ranges.array() {
        let part = |index: usize| usize::try_from(range.array()[index].int()).unwrap();
        let port = u16::try_from(range.array()[2].array()[1].int()).unwrap();
        let writes = keys[part(0)..=part(1)].iter();
        let writes = writes.map(|key| vec!["SET".to_owned(), key.clone(), value.to_owned()]);
        by_master.entry(port).or_default().extend(writes);
    }
    assert_eq!(by_master.len(), 3, "three masters serve");
    let written: usize = by_master.values().map(Vec::len).sum();
    assert_eq!(written, 16_384);
    for (port, writes) in by_master {
        let node = cluster.nodes().iter().find(|node| node.addr().port() == port).unwrap();
        let mut client = node.client();
        for batch in writes.chunks(1000) {
            let refused: Vec<Value> = client.pipeline(batch).into_iter().filter(Value::is_error).collect();
            assert_eq!(refused, [], "{port}");
        }
    }
}

fn key_of_each_slot() -> Vec<String> {
    let mut keys = vec![None; 16_384];
    let mut missing = keys.len();
    for number in 0_u32.. {
        let key = format!("k{number}");
        let place = &mut keys[usize::from(slot_of(key.as_bytes()))];
        missing -= usize::from(place.is_none());
        place.get_or_insert(key);
        if missing == 0 {
            break;
        }
    }
    keys.into_iter().flatten().collect()
}

fn key_of_slot_0() -> &'static str {
    "{3560}"
}
