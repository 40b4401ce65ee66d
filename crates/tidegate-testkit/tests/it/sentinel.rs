//! A real Sentinel group that really fails over.

use std::time::Duration;

use tidegate_testkit::{SentinelGroup, eventually};

#[test]
fn sentinels_promote_the_replica_when_the_master_is_killed() {
    let group = SentinelGroup::start();
    let old = group.master();
    assert_eq!(old.addr(), group.nodes()[0].addr());
    old.cmd(&["SET", "key", "value"]);
    assert_eq!(old.cmd(&["WAIT", "1", "5000"]).int(), 1);
    old.kill();
    let new = group.wait_for_failover_from(old.addr());
    assert_eq!(new.addr(), group.nodes()[1].addr());
    assert_eq!(new.cmd(&["GET", "key"]).text(), "value");
    assert_eq!(new.cmd(&["SET", "key", "newer"]).text(), "OK");

    // Back again, the old master is told that it is a replica now.
    old.restart();
    eventually("the old master is a replica", Duration::from_secs(30), || {
        old.info("role").as_deref() == Some("slave")
            && old.info("master_link_status").as_deref() == Some("up")
    });
    assert_eq!(old.cmd(&["GET", "key"]).text(), "newer");
}
