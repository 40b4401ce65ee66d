//! Servers that do not know the scripts.

use tidegate_testkit::{Redis, RedisCluster};

use crate::subject::{Target, a_bucket, a_day, ask, left, patient, spend, store};

#[tokio::test]
async fn a_server_whose_scripts_were_flushed_is_told_them_again() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    let target = Target::new("rule", "42", a_day(10));
    assert!(spend(&store, &target).await.unwrap());
    redis.cmd(&["SCRIPT", "FLUSH"]);
    assert!(spend(&store, &target).await.unwrap());
    assert_eq!(left(&store, &target).await, 8, "neither call was lost or made twice");
}

#[tokio::test]
async fn a_cluster_whose_scripts_were_flushed_still_puts_back_what_was_reserved() {
    let cluster = RedisCluster::start();
    let store = store(&cluster.url(), &patient());
    let (roomy, full) = (Target::new("rule", "roomy", a_bucket(5)), Target::new("rule", "full", a_day(0)));
    assert!(!ask(&store, &[roomy.spend(1), full.spend(1)]).await.unwrap()[1].is_admitted());
    cluster.nodes().iter().for_each(|node| drop(node.cmd(&["SCRIPT", "FLUSH"])));
    assert!(!ask(&store, &[roomy.spend(1), full.spend(1)]).await.unwrap()[1].is_admitted());
    assert_eq!(left(&store, &roomy).await, 5);
}

#[tokio::test]
async fn scripts_that_a_server_holds_are_few() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    for value in 0..100 {
        let (bucket, day) = (
            Target::new("a", &value.to_string(), a_bucket(5)),
            Target::new("b", &value.to_string(), a_day(5)),
        );
        ask(&store, &[bucket.spend(1), day.spend(1)]).await.unwrap();
        spend(&store, &bucket).await.unwrap();
    }
    let scripts = redis.info("number_of_cached_scripts").unwrap();
    assert_eq!(scripts, "2", "one per set of algorithms, however many keys");
}
