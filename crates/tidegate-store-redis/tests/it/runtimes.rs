//! One store, many runtimes: each core talks to Redis alone.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use tidegate_store_redis::{RedisStore, Topology};
use tidegate_testkit::Redis;

use crate::subject::{Target, a_day, left, patient, spend, store};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// One that goes on while nobody waits for it.
fn running_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn connections(redis: &Redis) -> usize {
    // The one that asks is the test's own.
    redis.info("connected_clients").unwrap().parse::<usize>().unwrap() - 1
}

#[test]
fn each_core_has_its_own_connection_and_all_see_one_truth() {
    let redis = Redis::start();
    let shared = Arc::new(store(&redis.url(), &patient()));
    let target = Target::new("rule", "42", a_day(100));
    let core = |store: Arc<RedisStore>, target: Target| {
        let runtime = runtime();
        runtime.block_on(async {
            let mut admitted = 0;
            for _ in 0..50 {
                admitted += u32::from(spend(&store, &target).await.unwrap());
            }
            admitted
        })
    };
    let cores: Vec<_> = (0..4)
        .map(|_| {
            let (store, target) = (Arc::clone(&shared), target.clone());
            thread::spawn(move || core(store, target))
        })
        .collect();
    let admitted: u32 = cores.into_iter().map(|core| core.join().unwrap()).sum();
    assert_eq!(admitted, 100);
}

#[test]
fn once_a_core_has_reached_a_server_that_was_away_no_other_core_fails() {
    let redis = Redis::start();
    let shared = store(&redis.url(), &patient());
    let target = Target::new("rule", "42", a_day(100));
    let cores: Vec<_> = (0..6).map(|_| running_runtime()).collect();
    redis.kill();
    let deaf = TcpListener::bind(redis.addr()).unwrap();
    // Whoever has tried so often pauses for up to a second before the next attempt.
    let attempts = cores.len() * 7;
    let hangs_up = thread::spawn(move || (0..attempts).for_each(|_| drop(deaf.accept().unwrap())));
    for core in &cores {
        core.block_on(spend(&shared, &target)).unwrap_err();
    }
    hangs_up.join().unwrap();
    redis.restart();
    let first = cores[0].block_on(async {
        crate::subject::eventually("one core reaches it", async || spend(&shared, &target).await).await
    });
    assert!(first);
    for core in &cores[1..] {
        assert!(core.block_on(spend(&shared, &target)).unwrap());
    }
}

#[test]
fn a_runtime_makes_one_connection_however_many_ask() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    runtime().block_on(async {
        let targets: Vec<Target> = (0..64).map(|n| Target::new("rule", &n.to_string(), a_day(5))).collect();
        let asked = futures_util::future::join_all(targets.iter().map(|target| spend(&store, target))).await;
        assert!(asked.into_iter().all(|admitted| admitted.unwrap()));
        assert_eq!(connections(&redis), 1);
    });
}

#[test]
fn a_runtime_that_ended_leaves_the_store_usable_by_the_next() {
    let redis = Redis::start();
    let store = store(&redis.url(), &patient());
    let target = Target::new("rule", "42", a_day(10));
    for _ in 0..3 {
        assert!(runtime().block_on(spend(&store, &target)).unwrap());
    }
    assert_eq!(runtime().block_on(left(&store, &target)), 7);
}

#[test]
fn a_store_that_is_dropped_hangs_up() {
    let redis = Redis::start();
    let runtime = runtime();
    let store = store(&redis.url(), &patient());
    runtime.block_on(async { spend(&store, &Target::new("rule", "42", a_day(10))).await.unwrap() });
    assert_eq!(connections(&redis), 1);
    drop(store);
    // The runtime must get a chance to end the task.
    runtime.block_on(async {
        crate::subject::eventually("the connection is closed", async || match connections(&redis) {
            0 => Ok(()),
            open => Err(open),
        })
        .await;
    });
}

#[test]
fn making_a_store_needs_no_runtime_and_no_server() {
    let store = store("redis+cluster://127.0.0.1:1,127.0.0.1:2", &patient());
    assert!(format!("{store:?}").contains("RedisStore"));
    assert_eq!(crate::subject::url("redis+cluster://127.0.0.1:1").topology, Topology::Cluster);
}
