//! A call says until when it may begin, by the server's clock: a server that paused does not spend for who has long left.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Micros, Timestamp};
use tidegate_store::{Clock, ManualClock, StoreError, SystemClock};
use tidegate_store_redis::RedisConfig;
use tidegate_testkit::{Redis, RedisCluster};

use crate::subject::{Target, a_day, ask, left, patient, spend, store};

/// Longer after its deadline nothing begins.
const TOO_LONG: Duration = Duration::from_millis(900);

fn target() -> Target {
    Target::new("rule", "42", a_day(100))
}

fn hears_late_answers() -> RedisConfig {
    RedisConfig::default().timeout(Duration::from_millis(50)).late_answers(Duration::from_secs(10))
}

/// Asks while `redis` is stopped, for longer than a call may take to begin.
async fn ask_while_stopped(redis: &Redis, work: impl Future<Output = Result<(), StoreError>>) -> StoreError {
    redis.pause();
    let resume = async {
        tokio::time::sleep(TOO_LONG).await;
        redis.resume();
    };
    tokio::join!(work, resume).0.expect_err("nobody answers in time")
}

#[tokio::test]
async fn a_server_that_comes_to_a_call_too_late_spends_nothing_and_says_so() {
    let redis = Redis::start();
    let store = store(&redis.url(), &hears_late_answers());
    assert!(spend(&store, &target()).await.unwrap());
    let error = ask_while_stopped(&redis, async { spend(&store, &target()).await.map(drop) }).await;
    assert!(matches!(error, StoreError::TooLate { .. }) && error.is_certainly_not_applied(), "{error:?}");
    assert_eq!(left(&store, &target()).await, 99);
}

#[tokio::test]
async fn a_call_whose_answer_nobody_hears_spends_nothing_when_the_server_goes_on() {
    let redis = Redis::start();
    let config = RedisConfig::default().timeout(Duration::from_millis(50));
    let (asking, other) = (store(&redis.url(), &config), store(&redis.url(), &patient()));
    assert!(spend(&asking, &target()).await.unwrap());
    let error = ask_while_stopped(&redis, async { spend(&asking, &target()).await.map(drop) }).await;
    assert!(matches!(error, StoreError::TimedOut { .. }), "{error:?}");
    crate::subject::eventually("the first connection is read again", async || {
        spend(&asking, &target()).await.map(drop)
    })
    .await;
    assert_eq!(left(&other, &target()).await, 98);
}

#[tokio::test]
async fn a_call_that_is_a_little_late_is_carried_out() {
    let redis = Redis::start();
    let store = store(&redis.url(), &hears_late_answers());
    assert!(spend(&store, &target()).await.unwrap());
    redis.pause();
    let resume = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        redis.resume();
    };
    let target = target();
    let (told, ()) = tokio::join!(spend(&store, &target), resume);
    assert!(told.unwrap());
    assert_eq!(left(&store, &target).await, 98);
}

#[tokio::test]
async fn a_member_of_a_cluster_and_a_shard_spend_nothing_too_late_either() {
    let (cluster, shards) = (RedisCluster::start(), [Redis::start(), Redis::start()]);
    let sharded = format!("redis+sharded://{},{}", shards[0].addr(), shards[1].addr());
    for (url, servers) in [(cluster.url(), cluster.nodes()), (sharded, &shards[..])] {
        let store = store(&url, &hears_late_answers());
        let targets = ["1", "2", "3", "4"].map(|user| Target::new("rule", user, a_day(100)));
        for target in &targets {
            assert!(spend(&store, target).await.unwrap());
        }
        servers.iter().for_each(Redis::pause);
        // One request alone, and one whose cells live apart.
        let all = targets.each_ref().map(|target| target.spend(1));
        let resume = async {
            tokio::time::sleep(TOO_LONG).await;
            servers.iter().for_each(Redis::resume);
        };
        let (alone, apart, ()) = tokio::join!(ask(&store, &all[..1]), ask(&store, &all), resume);
        assert!(alone.is_err() && apart.is_err(), "{alone:?} {apart:?}");
        for target in &targets {
            crate::subject::eventually("nothing is spent", async || match left(&store, target).await {
                99 => Ok(()),
                left => Err(left),
            })
            .await;
        }
    }
}

/// A node's clock, as far ahead of the machine's as the test says.
struct Ahead(ManualClock, SystemClock);

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        self.1.now() + self.0.now().since(Timestamp::default())
    }
}

#[tokio::test]
async fn a_node_whose_clock_steps_goes_on_deciding() {
    let redis = Redis::start();
    let ahead = Arc::new(Ahead(ManualClock::at(Timestamp::default()), SystemClock::new()));
    let store = store(&redis.url(), &patient().node_clock(ahead.clone()));
    for (number, seconds) in [0, 30, 7_200, 3, 0, 60].into_iter().enumerate() {
        ahead.0.set(Timestamp::default() + Micros::from_secs(seconds));
        assert!(spend(&store, &target()).await.unwrap());
        assert_eq!(left(&store, &target()).await, 99 - number as u64);
    }
}
