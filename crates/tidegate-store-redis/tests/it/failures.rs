//! What becomes of a call when the server, or the way to it, fails: nothing hangs, nothing is charged twice, and every
//! failure says whether the call may have been applied.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate_store::{Store, StoreError};
use tidegate_store_redis::{Observer, Operation, Reason, RedisConfig, RedisStore};
use tidegate_testkit::{Fault, FaultProxy, Redis, RedisCluster};
use tokio::time::Instant;

use crate::subject::{Target, a_day, assert_found_again, eventually, left, patient, prompt, spend, store};

fn target() -> Target {
    Target::new("rule", "42", a_day(100))
}

/// A store behind a bad network.
fn through(proxy: &FaultProxy, config: &RedisConfig) -> RedisStore {
    store(&format!("redis://{}", proxy.addr()), config)
}

#[track_caller]
fn assert_not_applied(error: &StoreError, says: &str) {
    assert!(error.is_certainly_not_applied(), "{error:?}");
    assert!(cause(error).contains(says), "{error:?}");
}

fn cause(error: &StoreError) -> String {
    std::error::Error::source(error).map(ToString::to_string).unwrap_or_default()
}

/// Spends again and again until it works.
async fn recovers(store: &RedisStore, target: &Target) {
    eventually("the store answers again", async || spend(store, target).await).await;
}

/// A server that comes back is used again within this.
const SOON: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_server_without_memory_applies_nothing() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    spend(&store, &target()).await.unwrap();
    redis.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_not_applied(&spend(&store, &target()).await.unwrap_err(), "OOM");
    redis.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(left(&store, &target()).await, 99);
}

#[tokio::test]
async fn a_replica_applies_nothing() {
    let master = Redis::start();
    let (host, port) = (master.addr().ip(), master.addr().port());
    let replica = Redis::builder().config(format!("replicaof {host} {port}")).start();
    let store = store(&replica.url(), &patient());
    // It must first have loaded its master's data.
    eventually("the replica refuses to write", async || match spend(&store, &target()).await {
        Err(error) if cause(&error).contains("READONLY") => {
            assert_not_applied(&error, "READONLY");
            Ok(())
        }
        other => Err(other),
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_loading_applies_nothing() {
    let redis = Redis::builder().config("enable-debug-command yes").start();
    let mut client = redis.client();
    client.cmd(&["DEBUG", "POPULATE", "20000"]);
    // Half a second in all, during which it looks at its connections now and then.
    client.cmd(&["CONFIG", "SET", "key-load-delay", "25", "loading-process-events-interval-bytes", "1024"]);
    let store = store(&redis.url(), &patient());
    spend(&store, &target()).await.unwrap();
    let reloading = std::thread::spawn(move || client.try_cmd(&["DEBUG", "RELOAD"]));
    eventually("a call meets the loading server", async || match spend(&store, &target()).await {
        Err(error) => {
            assert_not_applied(&error, "LOADING");
            Ok(())
        }
        Ok(admitted) => Err(admitted),
    })
    .await;
    reloading.join().unwrap().unwrap();
    recovers(&store, &target()).await;
}

#[tokio::test]
async fn a_member_of_a_cluster_that_is_asked_alone_applies_nothing() {
    let cluster = RedisCluster::start();
    let store = store(&cluster.nodes()[0].url(), &patient());
    let mut moved = 0;
    for user in 0..20 {
        if let Err(error) = spend(&store, &Target::new("rule", &user.to_string(), a_day(1))).await {
            assert_not_applied(&error, "MOVED");
            moved += 1;
        }
    }
    assert!(moved > 0, "three masters share the slots");
}

#[tokio::test]
async fn a_server_that_is_gone_is_noticed_at_once_and_found_again() {
    let redis = Redis::start();
    let store = store(&redis.url(), &prompt());
    spend(&store, &target()).await.unwrap();
    let away_and_back = async || {
        redis.kill();
        // The first call may have been on its way when the connection broke.
        let _ = spend(&store, &target()).await.unwrap_err();
        let mut waits = Vec::new();
        for _ in 0..20 {
            let began = Instant::now();
            let error = spend(&store, &target()).await.unwrap_err();
            assert_not_applied(&error, "refused");
            waits.push(began.elapsed());
        }
        // A busy machine may hold up some of them.
        waits.sort_unstable();
        assert!(waits[5] < Duration::from_millis(100), "nobody waits for a server that is gone: {waits:?}");
        redis.restart();
    };
    assert_found_again(SOON, away_and_back, async || spend(&store, &target()).await).await;
    assert_eq!(left(&store, &target()).await, 99, "it came back empty, and one was spent since");
}

#[tokio::test]
async fn a_server_that_is_absent_at_first_is_found_when_it_comes() {
    let redis = Redis::start();
    redis.kill();
    let store = store(&redis.url(), &prompt());
    let away_and_back = async || {
        redis.kill();
        let _ = spend(&store, &target()).await.unwrap_err();
        redis.restart();
    };
    let error = spend(&store, &target()).await.unwrap_err();
    assert!(error.is_certainly_not_applied(), "{error:?}");
    assert_found_again(SOON, away_and_back, async || spend(&store, &target()).await).await;
}

#[tokio::test]
async fn a_server_that_stands_still_costs_three_callers_their_time_and_no_more() {
    let redis = Redis::start();
    let timeout = Duration::from_millis(50);
    let store = store(&redis.url(), &RedisConfig::default().timeout(timeout));
    spend(&store, &target()).await.unwrap();
    let away_and_back = async || {
        redis.pause();
        for _ in 0..3 {
            let error = spend(&store, &target()).await.unwrap_err();
            assert!(matches!(error, StoreError::TimedOut { waited, .. } if waited == timeout), "{error:?}");
        }
        eventually("calls fail without waiting", async || {
            let began = Instant::now();
            let error = spend(&store, &target()).await.unwrap_err();
            if error.is_certainly_not_applied() && began.elapsed() < timeout { Ok(()) } else { Err(error) }
        })
        .await;
        redis.resume();
    };
    assert_found_again(SOON, away_and_back, async || spend(&store, &target()).await).await;
}

#[tokio::test]
async fn a_reply_that_was_lost_leaves_its_call_in_doubt_and_is_not_repeated() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    let store = through(&proxy, &prompt());
    spend(&store, &target()).await.unwrap();
    proxy.set(Fault::CutRepliesAfter(3));
    let error = spend(&store, &target()).await.unwrap_err();
    assert!(matches!(error, StoreError::FateUnknown { .. }), "{error:?}");
    proxy.resume();
    recovers(&store, &target()).await;
    assert_eq!(left(&store, &target()).await, 97, "one before, one in doubt, one after");
}

#[tokio::test]
async fn replies_that_vanish_leave_their_calls_in_doubt_and_are_not_repeated() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    let store = through(&proxy, &prompt());
    spend(&store, &target()).await.unwrap();
    proxy.set(Fault::DropReplies);
    let error = spend(&store, &target()).await.unwrap_err();
    assert!(matches!(error, StoreError::TimedOut { .. }), "{error:?}");
    proxy.resume();
    proxy.cut();
    recovers(&store, &target()).await;
    assert_eq!(left(&store, &target()).await, 97);
}

#[tokio::test]
async fn a_connection_that_swallows_everything_is_given_up() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    let store = through(&proxy, &RedisConfig::default().timeout(Duration::from_millis(50)));
    spend(&store, &target()).await.unwrap();
    proxy.set(Fault::Blackhole);
    for _ in 0..3 {
        spend(&store, &target()).await.unwrap_err();
    }
    // The old connection stays dead, as it would after a firewall forgot it; only a new one can work.
    let before = proxy.connections();
    proxy.resume();
    recovers(&store, &target()).await;
    assert!(proxy.connections() > before || before > 1);
}

#[tokio::test]
async fn a_server_that_answers_garbage_is_not_believed() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    let store = through(&proxy, &prompt());
    spend(&store, &target()).await.unwrap();
    proxy.set(Fault::GarbageReplies);
    for _ in 0..5 {
        spend(&store, &target()).await.unwrap_err();
    }
    proxy.resume();
    recovers(&store, &target()).await;
}

#[tokio::test]
async fn a_connection_that_the_server_closes_is_made_again_before_the_next_call() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    for _ in 0..10 {
        spend(&store, &target()).await.unwrap();
        redis.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        // Both ends must have noticed: what is sent into a closing connection is in doubt.
        eventually("the store has a new connection", async || spend(&store, &target()).await).await;
    }
    assert!(left(&store, &target()).await >= 100 - 30);
}

#[tokio::test]
async fn a_slow_network_times_out_and_is_forgiven() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    let store = through(&proxy, &RedisConfig::default().timeout(Duration::from_millis(20)));
    recovers(&store, &target()).await;
    // Far longer than it waits, also on a machine so busy that it runs late itself.
    let delay = Duration::from_secs(10);
    proxy.set(Fault::Delay(delay));
    let began = Instant::now();
    spend(&store, &target()).await.unwrap_err();
    assert!(began.elapsed() < delay / 2, "{:?}", began.elapsed());
    proxy.resume();
    recovers(&store, &target()).await;
}

#[tokio::test]
async fn server_that_is_always_late_keeps_its_connection() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    let late = Duration::from_secs(5);
    let config = RedisConfig::default().timeout(Duration::from_millis(20)).late_answers(late);
    let store = through(&proxy, &config);
    recovers(&store, &target()).await;
    let before = proxy.connections();
    proxy.set(Fault::Delay(Duration::from_millis(60)));
    // Longer than a silence that would be looked into.
    for _ in 0..10 {
        spend(&store, &target()).await.unwrap();
    }
    assert_eq!(proxy.connections(), before);
}

#[tokio::test]
async fn probe_of_a_late_server_is_answered_late() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    let store = through(&proxy, &RedisConfig::default().timeout(Duration::from_millis(20)));
    eventually("it can decide", async || store.probe(0).answer().await).await;
    let delay = Duration::from_millis(200);
    proxy.set(Fault::Delay(delay));
    let began = Instant::now();
    store.probe(0).answer().await.unwrap();
    assert!(began.elapsed() >= delay, "{:?}", began.elapsed());
}

#[tokio::test]
async fn probe_asks_for_a_write_and_not_for_a_ping() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    store.probe(0).answer().await.unwrap();
    redis.cmd(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    assert_eq!(redis.client().cmd(&["PING"]).text(), "PONG");
    let mut probe = std::pin::pin!(store.probe(0).answer());
    let paused = tokio::time::timeout(Duration::from_millis(300), probe.as_mut()).await;
    assert!(paused.is_err(), "{paused:?}");
    redis.cmd(&["CLIENT", "UNPAUSE"]);
    probe.await.unwrap();
}

#[tokio::test]
async fn probe_is_as_large_as_a_usual_call() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    store.probe(0).answer().await.unwrap();
    let read = || redis.info("total_net_input_bytes").unwrap().parse::<u64>().unwrap();
    let before = read();
    for _ in 0..10 {
        store.probe(0).answer().await.unwrap();
    }
    assert!(read() - before > 10 * 1_024, "{}", read() - before);
}

#[tokio::test]
async fn calls_beyond_the_bound_are_turned_away_at_once() {
    let redis = Redis::start();
    let store = store(&redis.url(), &prompt().max_in_flight(2));
    spend(&store, &target()).await.unwrap();
    redis.pause();
    let target = target();
    let calls = (0..5).map(|_| spend(&store, &target));
    let answers = join_all(calls).await;
    let turned_away = answers.iter().filter(|answer| {
        answer.as_ref().is_err_and(|error| format!("{error:?}").contains("too many calls in flight"))
    });
    assert_eq!(turned_away.count(), 3, "{answers:?}");
    redis.resume();
}

#[derive(Debug, Default)]
struct Heard(parking_lot::Mutex<Vec<(Operation, usize, Option<Reason>)>>);

impl Observer for Heard {
    fn called(&self, operation: Operation, items: usize, _: Duration, failure: Option<Reason>) {
        self.0.lock().push((operation, items, failure));
    }
}

#[tokio::test]
async fn an_observer_hears_of_every_call_and_why_it_failed() {
    let redis = Redis::start();
    let heard = Arc::new(Heard::default());
    let observer = Arc::clone(&heard) as Arc<_>;
    let store = store(&redis.url(), &prompt().observer(observer));
    spend(&store, &target()).await.unwrap();
    redis.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
    spend(&store, &target()).await.unwrap_err();
    redis.pause();
    spend(&store, &target()).await.unwrap_err();
    redis.resume();
    let expected = [None, Some(Reason::OutOfMemory), Some(Reason::Timeout)];
    assert_eq!(*heard.0.lock(), expected.map(|reason| (Operation::Decide, 1, reason)));
}
