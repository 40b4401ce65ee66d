//! Twenty processes on two servers and one Redis.

use std::env;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tidegate_runtime::DataPlane;
use tidegate_store::SystemClock;
use tidegate_testkit::Redis;

use super::{Wants, serve, url_of};
use crate::{Client, OnFailure, Source};

const LIMIT: u64 = 30_000;
const RULES: &str = "
domain: api
rules: [{ name: all, limits: [{ algorithm: fixed_window, limit: 30000, window: 1d }], lease_to_clients: true }]
";

/// The server that a process asks, if this is one of the twenty.
const SERVER: &str = "TIDEGATE_CLIENT_TEST_SERVER";
const REQUESTS: u64 = 5_000;

/// The body of one of twenty processes; on its own it does nothing.
#[tokio::test]
async fn one_of_twenty_processes() {
    let Ok(url) = env::var(SERVER) else { return };
    let builder =
        Client::to(url).domain("api").on_failure(OnFailure::Closed).timeout(Duration::from_secs(20));
    let client = builder.connect().await.unwrap();
    let key = client.key(&[("user", "all")]);
    let (mut passed, mut held) = (0_u64, 0_u64);
    for turn in 0..REQUESTS {
        let decision = key.check(1).await.unwrap();
        assert_ne!(decision.source, Source::Policy);
        passed += u64::from(decision.allowed);
        held += u64::from(decision.source == Source::Held);
        if turn % 10 == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    let stats = client.stats();
    client.shutdown().await;
    println!("passed={passed} held={held} calls={}", stats.asked + stats.messages);
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_processes_on_two_servers_and_one_redis_are_never_over() {
    let redis = Redis::start();
    let servers: Vec<DataPlane> = (0..2)
        .map(|_| {
            let limiter = tidegate::on_redis(RULES, &redis.url()).unwrap();
            serve(&Arc::new(limiter), Arc::new(SystemClock::new()), &Wants::default())
        })
        .collect();
    let process = |number: usize| {
        Command::new(env::current_exe().unwrap())
            .args(["tests::processes::one_of_twenty_processes", "--exact", "--nocapture"])
            .env(SERVER, url_of(&servers[number % 2]))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let processes: Vec<_> = (0..20).map(process).collect();
    let waits = tokio::task::spawn_blocking(|| {
        processes.into_iter().map(|process| process.wait_with_output().unwrap()).collect::<Vec<_>>()
    });
    let mut sums = [0_u64; 3];
    for output in waits.await.unwrap() {
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        for (sum, name) in sums.iter_mut().zip(["passed=", "held=", "calls="]) {
            let (_, rest) = text.split_once(name).unwrap_or_else(|| panic!("no {name} in {text}"));
            *sum += rest.split_whitespace().next().unwrap().parse::<u64>().unwrap();
        }
    }
    let ([passed, held, calls], all) = (sums, 20 * REQUESTS);
    println!(
        "{passed} of {LIMIT} passed, {held} of {all} decided in process, {calls} calls: {} for 1,000",
        calls * 1_000 / all
    );
    assert!(passed <= LIMIT, "{passed} of {LIMIT}");
    assert!(passed * 10 >= LIMIT * 9, "{passed} of {LIMIT}");
    assert!(held * 10 >= all * 8, "{held} of {all} decided in process");
}
