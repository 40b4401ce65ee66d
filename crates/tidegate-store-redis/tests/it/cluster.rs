//! Following the slots of a cluster.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_store::{Request, Spend, Store};
use tidegate_store_redis::RedisStore;
use tidegate_testkit::{Redis, RedisCluster, slot_of};
use tokio::time::Instant;

use crate::subject::{Target, a_bucket, a_day, ask, eventually, left, patient, prompt, spend, store};

fn users(count: usize, limit: u64) -> Vec<Target> {
    (0..count).map(|number| Target::new("rule", &number.to_string(), a_day(limit))).collect()
}

fn keys_of(node: &Redis) -> Vec<Vec<u8>> {
    let keys = node.cmd(&["KEYS", "*"]);
    keys.array()
        .iter()
        .map(|key| match key {
            tidegate_testkit::resp::Value::Bulk(key) => key.clone(),
            other => panic!("a key is a string, not {other:?}"),
        })
        .collect()
}

#[tokio::test]
async fn keys_are_spread_over_all_masters_and_most_slots() {
    let cluster = RedisCluster::start();
    let store = store(&cluster.url(), &patient());
    let users = users(2_000, 5);
    let spends: Vec<[Spend<'_>; 1]> = users.iter().map(|user| [user.spend(1)]).collect();
    for chunk in spends.chunks(500) {
        let batch: Vec<Request<'_>> = chunk.iter().map(|spends| Request::once(spends)).collect();
        let outcomes = store.decide(&batch).answer().await.unwrap();
        assert!(outcomes.iter().all(|outcome| outcome.is_admitted()));
    }
    let keys: Vec<Vec<Vec<u8>>> = cluster.nodes()[..3].iter().map(keys_of).collect();
    assert!(keys.iter().all(|keys| keys.len() > 500), "{:?}", keys.iter().map(Vec::len).collect::<Vec<_>>());
    let slots: HashSet<u16> = keys.iter().flatten().map(|key| slot_of(key)).collect();
    assert!(slots.len() > 1_700, "{} slots for 2,000 keys", slots.len());
}

#[tokio::test]
async fn limits_of_one_key_are_decided_together() {
    let cluster = RedisCluster::start();
    let store = store(&cluster.url(), &patient());
    let (day, bucket) = (Target::new("a", "42", a_day(5)), Target::new("b", "42", a_bucket(1)));
    assert!(
        ask(&store, &[day.spend(1), bucket.spend(1)]).await.unwrap().iter().all(|told| told.is_admitted())
    );
    assert!(!ask(&store, &[day.spend(1), bucket.spend(1)]).await.unwrap()[1].is_admitted());
    assert_eq!(left(&store, &day).await, 4);
    let reservations =
        cluster.nodes()[..3].iter().flat_map(keys_of).filter(|key| key.starts_with(b"tidegate:2r"));
    assert_eq!(reservations.count(), 0, "one script decides them, nothing is reserved");
}

/// How many scripts the masters ran.
fn scripts_run(cluster: &RedisCluster) -> u64 {
    let of_one = |node: &Redis| {
        let stats = node.cmd(&["INFO", "commandstats"]);
        let tidegate_testkit::resp::Value::Bulk(stats) = stats else { panic!("statistics, not {stats:?}") };
        let stats = String::from_utf8(stats).unwrap();
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        calls.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    };
    cluster.nodes()[..3].iter().map(of_one).sum()
}

#[tokio::test]
async fn only_masters_are_probed() {
    let cluster = RedisCluster::start();
    let store = store(&cluster.url(), &patient());
    let nodes = store.nodes();
    for node in 0..nodes {
        store.probe(node).answer().await.unwrap();
    }
    let before = scripts_run(&cluster);
    for node in 0..nodes {
        store.probe(node).answer().await.unwrap();
    }
    assert_eq!(scripts_run(&cluster) - before, 3, "{nodes} numbers, of which three are masters");
}

/// Kills a master, and says how long after its failover everybody went on.
async fn survive_a_master() -> Duration {
    let cluster = RedisCluster::start();
    let store = store(&cluster.url(), &prompt());
    let users = users(60, 1_000);
    for user in &users {
        assert!(spend(&store, user).await.unwrap());
    }
    let victim = cluster.master_of(0);
    let lost: Vec<bool> = users.iter().map(|user| serves(&cluster, victim, user)).collect();
    assert!(lost.iter().any(|lost| *lost));
    victim.kill();
    // Those of other masters go on at once.
    for (user, lost) in users.iter().zip(&lost) {
        if !lost {
            eventually("others go on", async || spend(&store, user).await).await;
        }
    }
    cluster.wait_until_whole();
    let began = Instant::now();
    for user in &users {
        eventually("everybody goes on", async || spend(&store, user).await).await;
    }
    let took = began.elapsed();
    for node in 0..store.nodes() {
        eventually("every node can decide", async || store.probe(node).answer().await).await;
    }
    took
}

#[tokio::test]
async fn when_a_master_dies_its_replica_is_used() {
    let mut took = survive_a_master().await;
    for _ in 0..2 {
        if took < Duration::from_secs(3) {
            return;
        }
        took = survive_a_master().await;
    }
    assert!(took < Duration::from_secs(3), "{took:?} after the failover, three times in a row");
}

fn serves(cluster: &RedisCluster, node: &Redis, user: &Target) -> bool {
    let mut key = b"{".to_vec();
    key.extend(&user.key);
    key.push(b'}');
    cluster.master_of(slot_of(&key)).addr() == node.addr()
}

/// Asks on and on, and counts what is admitted, until told to stop. Any error is one too many.
async fn load(store: Arc<RedisStore>, users: Arc<Vec<Target>>, stop: Arc<AtomicBool>) -> usize {
    let admitted = AtomicUsize::new(0);
    while !stop.load(Ordering::Relaxed) {
        let asked = users.iter().map(|user| async {
            let admits = spend(&store, user).await.unwrap_or_else(|error| panic!("{error:?}"));
            admitted.fetch_add(usize::from(admits), Ordering::Relaxed);
        });
        futures_util::future::join_all(asked).await;
    }
    admitted.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_under_load_lose_and_double_nothing() {
    let cluster = RedisCluster::start();
    let store = Arc::new(store(&cluster.url(), &patient()));
    let users = Arc::new(users(8, 1_000_000));
    let stop = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn(load(Arc::clone(&store), Arc::clone(&users), Arc::clone(&stop)));
    for user in users.iter() {
        let mut key = b"{".to_vec();
        key.extend(&user.key);
        key.push(b'}');
        migrate(&cluster, slot_of(&key)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let admitted = load.await.unwrap();
    let mut spent = 0;
    for user in users.iter() {
        spent += 1_000_000 - left(&store, user).await;
    }
    assert!(admitted > 0);
    assert_eq!(admitted as u64, spent);
}

/// Moves a slot from its master to the next, key by key, as `redis-cli --cluster reshard` does.
async fn migrate(cluster: &RedisCluster, slot: u16) {
    let source = cluster.master_of(slot);
    let masters = &cluster.nodes()[..3];
    let place = masters.iter().position(|node| node.addr() == source.addr()).unwrap();
    let target = &masters[(place + 1) % 3];
    let (slot, source_id, target_id) =
        (slot.to_string(), source.cmd(&["CLUSTER", "MYID"]).text(), target.cmd(&["CLUSTER", "MYID"]).text());
    let ok = |node: &Redis, words: &[&str]| assert_eq!(node.cmd(words).text(), "OK", "{words:?}");
    ok(target, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]);
    ok(source, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]);
    // Long enough for calls to find the slot half-way.
    tokio::time::sleep(Duration::from_millis(20)).await;
    loop {
        let keys = source.cmd(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]);
        let [tidegate_testkit::resp::Value::Bulk(key), ..] = keys.array() else { break };
        let (host, port) = (target.addr().ip().to_string(), target.addr().port().to_string());
        source.cmd(&[b"MIGRATE", host.as_bytes(), port.as_bytes(), &key[..], b"0", b"5000"]);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for node in [target, source] {
        ok(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]);
    }
}

#[tokio::test]
async fn a_member_that_is_gone_does_not_keep_the_others_from_being_found() {
    let cluster = RedisCluster::start();
    cluster.nodes()[3].kill();
    // The URL names the dead replica first.
    let url = format!("redis+cluster://{},{}", cluster.nodes()[3].addr(), cluster.nodes()[1].addr());
    let store = store(&url, &patient());
    for user in users(20, 5) {
        assert!(spend(&store, &user).await.unwrap());
    }
}

#[tokio::test]
async fn one_lost_master_takes_no_healthy_one_along_however_few_seeds_the_url_names() {
    let cluster = RedisCluster::start();
    let store = store(&format!("redis+cluster://{}", cluster.nodes()[0].addr()), &prompt());
    let users = users(60, 1_000);
    for user in &users {
        assert!(spend(&store, user).await.unwrap());
    }
    let nodes: HashSet<usize> = users.iter().map(|user| store.node_of(&user.key)).collect();
    assert_eq!(nodes.len(), 3, "each master is a node, and has a breaker");
    let names: HashSet<String> = (0..store.nodes()).map(|node| store.endpoint(node)).collect();
    assert_eq!(names.len(), 4, "three masters, and nodes that hold nothing: {names:?}");

    let victim = cluster.master_of(0);
    let lost = store.node_of(&users.iter().find(|user| serves(&cluster, victim, user)).unwrap().key);
    victim.pause();
    for _ in 0..3 {
        for user in &users {
            let answer = spend(&store, user).await;
            assert!(answer.is_ok() || store.node_of(&user.key) == lost, "{answer:?}");
        }
    }
    for node in nodes.into_iter().filter(|node| *node != lost) {
        store.probe(node).answer().await.unwrap();
    }
    victim.resume();
}
