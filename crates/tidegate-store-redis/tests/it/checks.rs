//! What a look at the servers finds before serving.

use tidegate_store_redis::{Finding, RedisConfig};
use tidegate_testkit::{Redis, RedisCluster, SentinelGroup, ShardedRedis};

use crate::subject::{eventually, patient, store};

#[tokio::test]
async fn a_policy_that_evicts_is_warned_about() {
    let redis = Redis::builder().config("maxmemory 100mb").config("maxmemory-policy allkeys-lru").start();
    let reports = store(&redis.url(), &patient()).check_servers().await;
    let [report] = &reports[..] else { panic!("one server, not {reports:?}") };
    let text = report.to_string();
    assert!(text.contains("allkeys-lru") && text.contains("noeviction"), "{text}");
    assert_eq!(report.endpoint, redis.addr().to_string());
}

#[tokio::test]
async fn a_server_with_the_recommended_settings_will_do() {
    let redis = Redis::builder().config("hz 100").config("lazyfree-lazy-expire yes").start();
    let reports = store(&redis.url(), &patient()).check_servers().await;
    let version = redis.info("redis_version").unwrap();
    assert!(
        matches!(&reports[0].finding, Finding::Usable { version: found, warnings, .. }
            if *found == format!("Redis {version}") && warnings.is_empty()),
        "{reports:?}"
    );
}

#[tokio::test]
async fn a_server_that_expires_keys_in_long_pauses_is_warned_about() {
    let redis = Redis::start();
    let reports = store(&redis.url(), &patient()).check_servers().await;
    let text = reports[0].to_string();
    for setting in ["`hz 10`", "`hz 100`", "`lazyfree-lazy-expire yes`"] {
        assert!(text.contains(setting), "{text}");
    }
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[tokio::test]
async fn what_a_server_holds_is_told() {
    let redis = Redis::start();
    for (database, key) in [("0", "a"), ("0", "b"), ("3", "c")] {
        let mut client = redis.client();
        client.cmd(&["SELECT", database]);
        client.cmd(&["SET", key, "1"]);
    }
    let reports = store(&redis.url(), &patient()).check_servers().await;
    let Finding::Usable { keys, bytes, .. } = reports[0].finding else { panic!("{reports:?}") };
    assert_eq!(keys, 3);
    let used: u64 = redis.info("used_memory").unwrap().parse().unwrap();
    assert!(bytes.abs_diff(used) < used / 2, "{bytes} told, {used} used");
}

#[tokio::test]
async fn every_server_of_a_topology_is_looked_at() {
    let (sharded, sentinels, cluster) =
        (ShardedRedis::start(3), SentinelGroup::start(), RedisCluster::start());
    for (url, expected) in [(sharded.url(), 3), (sentinels.url(), 1), (cluster.url(), 3)] {
        let reports = store(&url, &patient()).check_servers().await;
        let usable = reports.iter().filter(|report| matches!(report.finding, Finding::Usable { .. }));
        assert_eq!(usable.count(), expected, "{url}: {reports:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_away_is_said_to_be() {
    let redis = Redis::start();
    let store = store(&redis.url(), &RedisConfig::default());
    redis.kill();
    let reports = store.check_servers().await;
    assert!(matches!(reports[0].finding, Finding::Away(_)), "{reports:?}");
    assert!(reports[0].to_string().contains("does not answer"), "{}", reports[0]);
}

#[tokio::test]
async fn cluster_that_stops_with_one_master_is_warned_about() {
    let cluster = RedisCluster::start();
    let warned = async || {
        let reports = store(&cluster.url(), &patient()).check_servers().await;
        reports
            .iter()
            .filter(|report| report.to_string().contains("`cluster-require-full-coverage no`"))
            .count()
    };
    for (setting, expected) in [("yes", 3), ("no", 0)] {
        for node in cluster.nodes() {
            node.cmd(&["CONFIG", "SET", "cluster-require-full-coverage", setting]);
        }
        assert_eq!(warned().await, expected, "{setting}");
    }
}

#[tokio::test]
async fn replica_that_every_decision_needs_is_warned_about() {
    let master = Redis::start();
    let (host, port) = (master.addr().ip(), master.addr().port());
    let replicas: Vec<Redis> =
        (0..2).map(|_| Redis::builder().config(format!("replicaof {host} {port}")).start()).collect();
    eventually("the replicas are known", async || match master.info("connected_slaves").as_deref() {
        Some("2") => Ok(()),
        other => Err(other.map(str::to_owned)),
    })
    .await;
    let warned = async || store(&master.url(), &patient()).check_servers().await[0].to_string();
    master.cmd(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert!(!warned().await.contains("NOREPLICAS"), "{}", warned().await);
    master.cmd(&["CONFIG", "SET", "min-replicas-to-write", "2"]);
    let text = warned().await;
    assert!(text.contains("`min-replicas-to-write 2` with 2 replicas"), "{text}");
    drop(replicas);
}
