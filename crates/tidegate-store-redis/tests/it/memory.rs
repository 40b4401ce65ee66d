//! What a user costs, as Redis counts it.

use std::num::NonZeroU64;

use tidegate_core::{Ask, Concurrency, Group, LeaseId, Limit, Micros, RefusedHits, SlidingLog, Touch};
use tidegate_store::{Request, Spend, Store};
use tidegate_testkit::Redis;

use crate::subject::{Target, a_bucket, ask, patient, store};

/// The bytes of the one key that there is.
fn bytes_of_the_key(redis: &Redis) -> i64 {
    let keys = redis.cmd(&["KEYS", "*"]);
    let [tidegate_testkit::resp::Value::Bulk(key)] = keys.array() else { panic!("one key, not {keys:?}") };
    redis.cmd(&[&b"MEMORY"[..], b"USAGE", key]).int()
}

fn log(window: Micros) -> Target {
    let limit = SlidingLog::new(100, window, Micros::ZERO, RefusedHits::Forget).unwrap();
    Target::new("per-user", "1000042", Limit::SlidingLog(limit))
}

#[tokio::test]
async fn a_full_log_of_a_hundred_hits_takes_at_most_600_bytes() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    let target = log(Micros::from_secs(3_600));
    // Two by two, as real traffic comes: each request has its own time.
    for _ in 0..60 {
        ask(&store, &[target.spend(2)]).await.unwrap();
    }
    let bytes = bytes_of_the_key(&redis);
    assert!((500..=600).contains(&bytes), "{bytes} bytes");
}

#[tokio::test]
async fn a_log_over_a_day_takes_a_byte_more_per_hit() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    let target = log(Micros::from_secs(86_400));
    for _ in 0..60 {
        ask(&store, &[target.spend(2)]).await.unwrap();
    }
    let bytes = bytes_of_the_key(&redis);
    // Where a whole moment each would take 1,000.
    assert!((600..=750).contains(&bytes), "{bytes} bytes");
}

#[tokio::test]
async fn fifty_leases_take_less_than_twenty_four_bytes_each() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    let limit = Concurrency::new(50, Micros::from_secs(60), RefusedHits::Forget).unwrap();
    let target = Target::new("per-user", "1000042", Limit::Concurrency(limit));
    for number in 1..=50 {
        let lease = Some(LeaseId(NonZeroU64::new(number << 32).unwrap()));
        let touch =
            Touch { limit: &target.limit, ask: Ask { lease, ..Ask::hits(1) }, group: Group::ENFORCED };
        let spends = [Spend { cell: target.cell(), touch }];
        let outcomes = store.decide(&[Request::once(&spends)]).answer().await.unwrap();
        assert!(outcomes[0].is_admitted());
    }
    let bytes = bytes_of_the_key(&redis);
    assert!((800..=1_200).contains(&bytes), "{bytes} bytes");
}

#[tokio::test]
async fn a_bucket_takes_about_a_hundred_bytes() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    let target = Target::new("per-user", "1000042", a_bucket(50));
    ask(&store, &[target.spend(1)]).await.unwrap();
    let bytes = bytes_of_the_key(&redis);
    assert!(bytes <= 160, "{bytes} bytes");
}
