//! What fails this is not a store.

use tidegate_store::conformance;
use tidegate_testkit::{Redis, RedisCluster, SentinelGroup, ShardedRedis};

use crate::subject::Timed;

#[tokio::test]
async fn one_redis_is_a_store() {
    let redis = Redis::start();
    conformance::check(&Timed::new(&redis.url()), 0..1_000).await;
}

#[tokio::test]
async fn sentinels_and_their_master_are_a_store() {
    let group = SentinelGroup::start();
    conformance::check(&Timed::new(&group.url()), 0..300).await;
}

#[tokio::test]
async fn a_cluster_is_a_store() {
    let cluster = RedisCluster::start();
    conformance::check(&Timed::new(&cluster.url()), 0..1_000).await;
}

#[tokio::test]
async fn five_sharded_servers_are_a_store() {
    let sharded = ShardedRedis::start(5);
    conformance::check(&Timed::new(&sharded.url()), 0..1_000).await;
}
