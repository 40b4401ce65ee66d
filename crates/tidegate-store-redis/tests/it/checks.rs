//! What a look at the servers finds before serving.

use tidegate_store_redis::{Finding, RedisConfig};
use tidegate_testkit::{Redis, RedisCluster, SentinelGroup, ShardedRedis};

use crate::subject::{patient, store};

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
