//! A limiter ends with its last handle: no task, no connection and no member of the fleet is left of it.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::{
    Ask, BlockingError, Limiter, ManualClock, OnRedisError, RedisConfig, TimeSource, Timestamp, on_redis,
    on_redis_with,
};
use tidegate_testkit::{Redis, poll};
use tokio::runtime::Handle;

const RULES: &str = "{ domain: api, rules: [
    { name: r, key: [user], limits: [100/h] },
    { name: held, match: { hold: '*' }, limits: [{ algorithm: concurrency, limit: 50, ttl: 1h }] },
    { name: near, key: [user], limits: [1000/h], coordination: approximate }] }";

/// What limiters have left behind: tasks of this runtime, connections besides the one that asks, members of the fleet.
fn left_behind(redis: &Redis) -> (usize, usize, i64) {
    let connections = redis.cmd(&["CLIENT", "LIST"]).text().lines().filter(|line| !line.is_empty()).count();
    (Handle::current().metrics().num_alive_tasks(), connections - 1, members(redis))
}

fn members(redis: &Redis) -> i64 {
    let sets = "local n = 0 for _, key in ipairs(redis.call('KEYS', '*{members}*')) do n = n + redis.call('ZCARD', key) end return n";
    redis.cmd(&["EVAL", sets, "0"]).int()
}

/// Waits until `is_so`, for as long as a busy machine may need.
async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn limiter(redis: &Redis) -> Limiter {
    let config = RedisConfig::default().timeout(Duration::from_secs(30));
    on_redis_with(RULES, &redis.url(), &config).unwrap()
}

/// What happens to one of several limiters, one thing after the other.
#[derive(Clone, Debug)]
enum Act {
    Check,
    /// A request that is dropped before it is answered, after so many polls.
    Abandon(u8),
    HoldLease,
    Clone,
    DropOne,
    Pause(u8),
}

fn acts() -> impl Strategy<Value = Vec<(usize, Act)>> {
    let act = prop_oneof![
        Just(Act::Check),
        (0..4u8).prop_map(Act::Abandon),
        Just(Act::HoldLease),
        Just(Act::Clone),
        Just(Act::DropOne),
        (0..4u8).prop_map(Act::Pause),
    ];
    proptest::collection::vec((0..3usize, act), 0..12)
}

async fn play(limiters: &mut [Vec<Limiter>], acts: Vec<(usize, Act)>) {
    let alice = Ask::new("api").with("user", "alice").with("hold", "yes");
    let mut held = Vec::new();
    for (which, act) in acts {
        let handles = &mut limiters[which];
        let Some(one) = handles.last().cloned() else { continue };
        match act {
            Act::Check => drop(alice.spend(&one).await.unwrap()),
            Act::Abandon(polls) => {
                let asked = tokio::spawn({
                    let alice = alice.clone();
                    async move { drop(alice.spend(&one).await) }
                });
                for _ in 0..polls {
                    tokio::task::yield_now().await;
                }
                asked.abort();
                let _ = asked.await;
            }
            Act::HoldLease => held.push(alice.spend(&one).await.unwrap()),
            Act::Clone => handles.push(one),
            Act::DropOne => drop(handles.pop()),
            Act::Pause(millis) => tokio::time::sleep(Duration::from_millis(millis.into())).await,
        }
    }
}

#[test]
fn dropping_limiters_at_any_moment_leaves_no_task_no_connection_and_no_member() {
    let redis = Redis::start();
    let cases = ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(cases, |(acts in acts(), threads in prop::bool::ANY)| {
        let mut runtime = match threads {
            true => tokio::runtime::Builder::new_multi_thread(),
            false => tokio::runtime::Builder::new_current_thread(),
        };
        runtime.worker_threads(2).enable_all().build().unwrap().block_on(async {
            let mut limiters: Vec<Vec<Limiter>> = (0..3).map(|_| vec![limiter(&redis)]).collect();
            play(&mut limiters, acts).await;
            drop(limiters);
            eventually("nothing is left", || {
                let (tasks, connections, members) = left_behind(&redis);
                println!("{tasks} tasks, {connections} connections and {members} members are left");
                (tasks, connections, members) == (0, 0, 0)
            })
            .await;
        });
        let leases = redis.cmd(&["EVAL", "local n = 0 for _, key in ipairs(redis.call('KEYS', '*')) do \
            if redis.call('TYPE', key).ok == 'zset' then n = n + redis.call('ZCARD', key) end end return n", "0"]);
        prop_assert_eq!(leases.int(), 0, "leases that nobody holds");
    });
}

#[tokio::test]
async fn a_limiter_that_outlives_others_has_the_whole_limit_to_itself() {
    let redis = Redis::start();
    let rules = "{ domain: api, rules: [{ name: r, limits: [100/h], on_store_failure: local }] }";
    // By a clock that stands nobody is forgotten for its silence: those who go must say so.
    let time = TimeSource::Given(Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000))));
    let config = RedisConfig::default().timeout(Duration::from_secs(5)).time(time);
    let make = || on_redis_with(rules, &redis.url(), &config).unwrap();
    let mut all: Vec<Limiter> = (0..5).map(|_| make()).collect();
    let last = all.pop().unwrap();
    // A heartbeat tells it how many there are.
    let fleet = || last.remote_stats().unwrap().fleet;
    eventually("it knows of five", || fleet() == 5).await;
    drop(all);
    eventually("one is counted", || members(&redis) == 1).await;
    eventually("it knows that it is alone", || fleet() == 1).await;
    assert!(Ask::new("api").check(&last).await.unwrap().allowed);
    redis.kill();
    let mut admitted = 1;
    while Ask::new("api").check(&last).await.unwrap().allowed {
        admitted += 1;
        assert!(admitted <= 101);
    }
    assert!(admitted >= 99, "{admitted}");
}

#[tokio::test]
async fn shutdown_settles_debts_leaves_the_fleet_and_stops_the_background() {
    let redis = Redis::start();
    let mut config = RedisConfig::default().timeout(Duration::from_secs(30));
    config.key_prefix = "one".into();
    let rules =
        "{ domain: api, rules: [{ name: r, limits: [1000/d], coordination: approximate, sync_every: 1h }] }";
    let node = on_redis_with(rules, &redis.url(), &config).unwrap();
    eventually("it joins", || members(&redis) == 1).await;
    // It decides by itself once it knows the fleet.
    let alone = async {
        while Ask::new("api").check(&node).await.unwrap().source != tidegate::Source::Approximate {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), alone).await.expect("it decides by itself");
    // With the one before: admitted here and reported in an hour, unless it is shut down before.
    assert!(Ask::new("api").cost(50).check(&node).await.unwrap().allowed);
    let there = |node: &Limiter| {
        let node = node.clone();
        async move { Ask::new("api").cost(0).check(&node).await.unwrap().remaining().unwrap() }
    };
    let other =
        on_redis_with(rules.replace("approximate, sync_every: 1h", "exact"), &redis.url(), &config).unwrap();
    let before = there(&other).await;
    node.shutdown().await.unwrap();
    assert_eq!(there(&other).await, before - 51);
    drop(node);
    eventually("one is left", || members(&redis) == 1).await;
    other.shutdown().await.unwrap();
    assert_eq!(members(&redis), 0);
    // Again is no harm.
    other.shutdown().await.unwrap();
}

#[test]
fn blocking_calls_on_redis_answer_from_any_thread() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let limiter = {
        let _within = runtime.enter();
        limiter(&redis)
    };
    let alice = Ask::new("api").with("user", "alice").with("hold", "yes");
    let free = || {
        let look = Ask::new("api").with("hold", "yes").cost(0);
        look.check_blocking(&limiter).unwrap().remaining().unwrap()
    };
    let all = free();
    let spend = alice.spend_blocking(&limiter).unwrap();
    assert!(spend.is_allowed() && spend.source == tidegate::Source::Store);
    assert_eq!(free(), all - 1, "it holds a lease");
    let within = runtime.spawn_blocking({
        let (limiter, bob) = (limiter.clone(), Ask::new("api").with("user", "bob"));
        move || bob.check_blocking(&limiter).unwrap().allowed
    });
    assert!(runtime.block_on(within).unwrap());
    // Its lease goes back from a thread that has no runtime.
    drop(spend);
    poll(Duration::from_secs(60), || (free() == all).then_some(())).expect("its lease is free");
    runtime.block_on(async {
        drop(limiter);
        eventually("nothing is left", || left_behind(&redis) == (0, 0, 0)).await;
    });
}

#[tokio::test]
async fn a_check_that_nobody_waits_for_spends_once_or_not_at_all() {
    const ASKED: u64 = 200;
    let redis = Redis::start();
    let limiter = limiter(&redis);
    let bob = Ask::new("api").with("user", "bob").with("hold", "yes");
    let left = async || Ask::new("api").with("user", "bob").cost(0).check(&limiter).await.unwrap();
    // What was never polled has asked for nothing.
    drop(bob.spend(&limiter));
    assert_eq!(left().await.remaining(), Some(100));
    let (mut asked_for, mut answered) = (0, 0);
    for polls in 0..ASKED {
        asked_for += 1;
        let asked = tokio::spawn({
            let (bob, limiter) = (bob.clone(), limiter.clone());
            async move { bob.check(&limiter).await.unwrap() }
        });
        for _ in 0..polls % 20 {
            tokio::task::yield_now().await;
        }
        asked.abort();
        if let Ok(decision) = asked.await
            && let Some(lease) = decision.into_lease()
        {
            answered += 1;
            lease.release().await.unwrap();
        }
        if left().await.remaining() == Some(0) {
            break;
        }
    }
    eventually("no call is under way", || limiter.remote_stats().unwrap().calls == 0).await;
    let spent = 100 - left().await.remaining().unwrap();
    assert!(
        (answered..=asked_for).contains(&spent),
        "of {asked_for} {answered} were answered, {spent} are spent"
    );
    // Every lease is free again.
    let mut held = Vec::new();
    let all = async {
        while held.len() < 50 {
            let ask = Ask::new("api").with("hold", "yes");
            held.extend(ask.spend(&limiter).await.unwrap().into_lease());
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("all places are free");
}

#[test]
fn a_limiter_that_outlives_its_runtime_decides_by_its_failure_policies_and_ends() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (limiter, held) = runtime.block_on(async {
        let limiter = limiter(&redis);
        let held = Ask::new("api").with("user", "ann").with("hold", "yes").spend(&limiter).await.unwrap();
        (limiter, held)
    });
    assert!(held.lease().is_some());
    assert!(!limiter.health().to_string().contains("runtime"), "{}", limiter.health());
    drop(runtime);
    assert!(limiter.health().to_string().contains("runtime"), "{}", limiter.health());
    let decision = Ask::new("api").with("user", "ann").check_blocking(&limiter).unwrap();
    assert!(decision.allowed && decision.source == tidegate::Source::FallbackLocal, "{decision:?}");
    // Neither panics, nor waits for a runtime that is gone.
    drop(held);
    let _ = tidegate::block_on(limiter.shutdown());
}

#[tokio::test]
async fn a_blocking_call_on_the_thread_that_runs_redis_is_an_error_and_no_hang() {
    let redis = Redis::start();
    let config = RedisConfig::default().timeout(Duration::from_millis(10));
    let limiter = on_redis_with(RULES, &redis.url(), &config).unwrap();
    let alice = Ask::new("api").with("user", "alice");
    assert_eq!(alice.check_blocking(&limiter).unwrap_err(), BlockingError::RuntimeBlocked);
}

#[test]
fn without_a_runtime_there_is_an_error_and_no_panic() {
    assert!(matches!(on_redis(RULES, "redis://127.0.0.1:1"), Err(OnRedisError::NoRuntime)));
}
