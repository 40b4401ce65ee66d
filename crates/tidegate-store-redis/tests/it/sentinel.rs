//! Following the master that the sentinels name.

use std::time::Duration;

use tidegate_store::Store;
use tidegate_store_redis::RedisStore;
use tidegate_testkit::SentinelGroup;
use tokio::time::Instant;

use crate::subject::{Target, a_day, ask, eventually, prompt, spend, store};

fn target() -> Target {
    Target::new("rule", "42", a_day(1_000_000))
}

/// Asks until it works, and says how long that took.
async fn recovers(store: &RedisStore) -> Duration {
    let began = Instant::now();
    eventually("the store has found the new master", async || spend(store, &target()).await).await;
    began.elapsed()
}

/// Kills the master of a new group, and says how long after the failover the new one was found.
async fn survive_the_master() -> Duration {
    let group = SentinelGroup::start();
    let store = store(&group.url(), &prompt());
    spend(&store, &target()).await.unwrap();
    let old = group.master();
    let (old_addr, replica) =
        (old.addr(), group.nodes().iter().find(|node| node.addr() != old.addr()).unwrap());
    // Scripts are not replicated: the one that takes over has never seen any.
    assert_eq!(replica.info("number_of_cached_scripts").as_deref(), Some("0"));
    old.kill();
    let promoted = group.wait_for_failover_from(old_addr).addr();
    assert_eq!(promoted, replica.addr());
    let took = recovers(&store).await;
    assert!(replica.cmd(&["DBSIZE"]).int() > 0);
    eventually("it can decide", async || store.probe(0).answer().await).await;
    took
}

#[tokio::test]
async fn when_the_master_dies_the_promoted_replica_is_used() {
    let mut took = survive_the_master().await;
    for _ in 0..2 {
        if took < Duration::from_secs(2) {
            return;
        }
        took = survive_the_master().await;
    }
    assert!(took < Duration::from_secs(2), "{took:?} after the failover, three times in a row");
}

#[tokio::test]
async fn a_master_that_is_demoted_while_it_lives_is_left() {
    let group = SentinelGroup::start();
    let store = store(&group.url(), &prompt());
    spend(&store, &target()).await.unwrap();
    let old = group.master().addr();
    group.sentinels()[0].cmd(&["SENTINEL", "FAILOVER", group.service()]);
    let new = group.wait_for_failover_from(old);
    // Until the sentinels reach it, the old one believes to be the master and decides: what it then admits is lost.
    let demoted = group.nodes().iter().find(|node| node.addr() == old).unwrap();
    tidegate_testkit::eventually("the old master is demoted", Duration::from_secs(20), || {
        demoted.info("role").as_deref() == Some("slave")
    });
    recovers(&store).await;
    let before = calls(new);
    for _ in 0..10 {
        eventually("the new master decides", async || spend(&store, &target()).await).await;
    }
    assert!(calls(new) >= before + 10, "all calls go to the new master");
}

fn calls(node: &tidegate_testkit::Redis) -> u64 {
    let stats = node.cmd(&["INFO", "commandstats"]).text();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
}

#[tokio::test]
async fn sentinels_that_are_gone_do_no_harm_while_one_is_left() {
    let group = SentinelGroup::start();
    group.sentinels()[..2].iter().for_each(tidegate_testkit::Redis::kill);
    let store = store(&group.url(), &crate::subject::patient());
    assert!(spend(&store, &target()).await.unwrap());
}

#[tokio::test]
async fn a_service_that_no_sentinel_knows_is_said_so() {
    let group = SentinelGroup::start();
    let store = store(&group.url().replace(group.service(), "other"), &crate::subject::patient());
    let error = spend(&store, &target()).await.unwrap_err();
    assert!(error.is_certainly_not_applied());
    assert!(format!("{error:?}").contains("No such master"), "{error:?}");
}

/// A planned failover leaves the old master alive, and it takes writes that are lost: the announcement must be heard.
#[tokio::test]
async fn failover_is_heard_though_one_sentinel_is_silent() {
    for silent in 0..2 {
        let group = SentinelGroup::start();
        let store = store(&group.url(), &prompt());
        spend(&store, &target()).await.unwrap();
        let old = group.master().addr();
        // A connection that was made and nothing else: its last command asked for the role.
        let has_moved = || {
            let others = group.nodes().iter().filter(|node| node.addr() != old);
            let mut masters = others.filter(|node| node.info("role").as_deref() == Some("master"));
            masters.any(|node| node.cmd(&["CLIENT", "LIST"]).text().contains(" cmd=role "))
        };
        group.sentinels()[silent].pause();
        group.sentinels()[silent + 1].cmd(&["SENTINEL", "FAILOVER", group.service()]);
        eventually("it moves by itself", async || if has_moved() { Ok(()) } else { Err(silent) }).await;
        group.sentinels()[silent].resume();
    }
}

/// What a planned failover lost: hits that were admitted and that the new master does not know, and for how long such were
/// admitted.
#[derive(Debug, Default)]
struct LostHits {
    hits: u64,
    during: Duration,
}

/// Asks every few milliseconds while one of two servers takes over from the other.
async fn lost_in_a_planned_failover(replicas_to_write: &str) -> LostHits {
    let group = SentinelGroup::start();
    for node in group.nodes() {
        node.cmd(&["CONFIG", "SET", "min-replicas-to-write", replicas_to_write]);
    }
    let store = store(&group.url(), &prompt());
    eventually("it decides", async || spend(&store, &target()).await).await;
    let old = group.master().addr();
    let new = group.nodes().iter().find(|node| node.addr() != old).unwrap();
    group.sentinels()[0].cmd(&["SENTINEL", "FAILOVER", group.service()]);
    // What was left after each hit that was admitted, and when that was.
    let mut admitted: Vec<(u64, Instant)> = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < deadline, "the new master decides nothing after {admitted:?}");
        let decides = calls(new) > 0;
        if let Ok(outcomes) = ask(&store, &[target().spend(1)]).await {
            admitted.push((outcomes[0].remaining, Instant::now()));
            if decides {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let Some(place) = admitted.windows(2).position(|pair| pair[1].0 >= pair[0].0) else {
        return LostHits::default();
    };
    let ((last, until), (first, _)) = (admitted[place], admitted[place + 1]);
    let hits = first + 1 - last;
    let known = place.saturating_sub(usize::try_from(hits).unwrap());
    LostHits { hits, during: until - admitted[known].1 }
}

/// Sentinel announces a promoted replica only when it has seen that it is a master, and looks once a second: until then the
/// old one admits what is lost.
#[tokio::test]
async fn planned_failover_loses_the_hits_of_some_seconds_at_most() {
    let lost = lost_in_a_planned_failover("0").await;
    println!("a planned failover lost {lost:?}");
    assert!(lost.during < Duration::from_secs(5), "{lost:?}");
}

#[tokio::test]
async fn planned_failover_loses_next_to_nothing_where_a_master_needs_its_replica() {
    let lost = lost_in_a_planned_failover("1").await;
    println!("a planned failover with min-replicas-to-write 1 lost {lost:?}");
    assert!(lost.hits < 50 && lost.during < Duration::from_millis(500), "{lost:?}");
}
