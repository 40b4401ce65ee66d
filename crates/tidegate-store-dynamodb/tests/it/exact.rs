//! Several nodes together admit exactly what a limit says, also while the server is away for a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::Outcome;
use tidegate_store_dynamodb::DynamoDbStore;
use tidegate_testkit::Moto;
use tokio::time::Instant;

use crate::subject::{left, limit, patient, ready, spend, store};

const USERS: usize = 8;
const LIMIT: u64 = 100;

/// Asks for each user until `asked` requests are answered, eight at once on each of two nodes; how many were admitted.
async fn flood(nodes: &[Arc<DynamoDbStore>; 2], users: &[String], asked: u64) -> Vec<u64> {
    let admitted: Arc<Vec<AtomicU64>> = Arc::new(users.iter().map(|_| AtomicU64::new(0)).collect());
    let tasks: Vec<_> = (0..16)
        .map(|task| {
            let (node, users, admitted) =
                (Arc::clone(&nodes[task % 2]), users.to_vec(), Arc::clone(&admitted));
            tokio::spawn(async move {
                for number in 0..asked {
                    let user = (task / 2 + number as usize) % users.len();
                    let told = spend(&node, &limit(LIMIT), &[&users[user]]).await.expect("an answer");
                    admitted[user].fetch_add(u64::from(told[0].is_admitted()), Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    admitted.iter().map(|count| count.load(Ordering::Relaxed)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_with_sixteen_in_flight_admit_exactly_the_limit_of_each_of_eight_users() {
    let server = Moto::start();
    let one = Arc::new(ready(&server.url("limits"), &patient()).await);
    let nodes = [one, Arc::new(store(&server.url("limits"), &patient()))];
    let users: Vec<String> = (0..USERS).map(|number| format!("user{number}")).collect();
    // 16 tasks of 60 requests over 8 users: 120 for each.
    assert_eq!(flood(&nodes, &users, 60).await, vec![LIMIT; USERS]);
}

/// Calls one after another until `until`, each of which must be answered soon after its deadline.
async fn calls(node: &DynamoDbStore, timeout: Duration, until: Instant) -> Vec<bool> {
    let mut answered = Vec::new();
    while Instant::now() < until {
        let from = Instant::now();
        let told: Result<Vec<Outcome>, _> = spend(node, &limit(1_000_000), &["a"]).await;
        let took = from.elapsed();
        assert!(took < timeout + Duration::from_secs(1), "{took:?}");
        answered.push(told.is_ok());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    answered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_or_is_killed_holds_nobody_beyond_the_deadline() {
    let mut server = Moto::start();
    let timeout = Duration::from_millis(500);
    let patient_one = ready(&server.url("limits"), &patient()).await;
    let node = store(&server.url("limits"), &patient().timeout(timeout).connect_timeout(timeout));
    spend(&patient_one, &limit(10), &["kept"]).await.unwrap();
    server.process().pause();
    let answered = calls(&node, timeout, Instant::now() + Duration::from_secs(2)).await;
    assert!(answered.iter().all(|answered| !answered), "it stood still: {answered:?}");
    server.process().resume();
    assert_eq!(left(&patient_one, &limit(10), "kept").await, 9, "it kept what it had");
    server.process().kill();
    let answered = calls(&node, timeout, Instant::now() + Duration::from_secs(1)).await;
    assert!(answered.iter().all(|answered| !answered), "it was gone: {answered:?}");
    server.start_again();
    patient_one.look().await.expect("a table, made again");
    assert_eq!(left(&patient_one, &limit(10), "kept").await, 10, "an emulator forgets");
}
