//! What a caller learns when a call fails, and what is left in the servers.

use std::sync::Arc;
use std::time::Duration;

use tidegate_store::{Store, StoreError};
use tidegate_store_memcached::MemcachedConfig;
use tidegate_testkit::{Fault, FaultProxy, Memcached};

use crate::subject::{left, limit, patient, spend, store};

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_several_items_in_any_order_all_get_on() {
    let servers = [(); 2].map(|()| Memcached::start());
    let url = Memcached::url_of(&servers.each_ref());
    let keys: Vec<String> = (0..6).map(|number| format!("key{number}")).collect();
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (one, keys) = (Arc::new(store(&url, &patient())), keys.clone());
            tokio::spawn(async move {
                for round in 0..25 {
                    let mut own: Vec<&str> = keys.iter().map(String::as_str).collect();
                    own.rotate_left((task * 5 + round) % 6);
                    spend(&one, &limit(1_000_000), &own).await.expect("it gets on");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(left(&store(&url, &patient()), &limit(1_000_000), "key3").await, 1_000_000 - 8 * 25);
}

#[tokio::test]
async fn a_request_that_one_key_refuses_spends_from_none() {
    let servers = [(); 3].map(|()| Memcached::start());
    let one = store(&Memcached::url_of(&servers.each_ref()), &patient());
    assert!(spend(&one, &limit(1), &["spent"]).await.unwrap()[0].is_admitted());
    for other in ["a", "b", "c", "d", "e"] {
        assert!(!spend(&one, &limit(1), &["spent", other]).await.unwrap()[0].is_admitted());
        assert_eq!(left(&one, &limit(1), other).await, 1);
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_has_certainly_applied_nothing() {
    let one = store("memcached://127.0.0.1:1", &MemcachedConfig::default().timeout(Duration::from_secs(5)));
    let error = spend(&one, &limit(1), &["a"]).await.unwrap_err();
    assert!(error.is_certainly_not_applied() && !error.is_late(), "{error:?}");
}

#[tokio::test]
async fn a_read_whose_answer_is_lost_is_certainly_not_applied() {
    let server = Memcached::start();
    let proxy = FaultProxy::start(server.addr());
    let quick =
        store(&format!("memcached://{}", proxy.addr()), &patient().timeout(Duration::from_millis(500)));
    while spend(&quick, &limit(10), &["a"]).await.is_err() {}
    let before = left(&quick, &limit(10), "a").await;
    proxy.set(Fault::DropReplies);
    let error = spend(&quick, &limit(10), &["a"]).await.unwrap_err();
    assert!(error.is_certainly_not_applied(), "{error:?}");
    proxy.resume();
    assert_eq!(left(&store(&Memcached::url_of(&[&server]), &patient()), &limit(10), "a").await, before);
}

#[tokio::test]
async fn write_whose_answer_is_lost_is_in_doubt_and_counts() {
    let server = Memcached::start();
    let proxy = FaultProxy::start(server.addr());
    let one = store(&format!("memcached://{}", proxy.addr()), &patient());
    spend(&one, &limit(10), &["a"]).await.unwrap();
    proxy.set(Fault::LoseReplyTo(b"ms "));
    let error = spend(&one, &limit(10), &["a"]).await.unwrap_err();
    assert!(matches!(error, StoreError::FateUnknown { .. }), "{error:?}");
    proxy.resume();
    assert_eq!(left(&one, &limit(10), "a").await, 8, "it was stored, and not sent again");
}

#[tokio::test]
async fn a_server_that_restarts_decides_again_on_the_next_call() {
    let mut server = Memcached::start();
    let one = store(&Memcached::url_of(&[&server]), &patient());
    spend(&one, &limit(10), &["a"]).await.unwrap();
    server.process().kill();
    server.start_again();
    assert_eq!(left(&one, &limit(10), "a").await, 10, "it forgot what it had");
}

#[tokio::test]
async fn what_is_no_memcached_is_named_in_one_line() {
    let redis = tidegate_testkit::Redis::start();
    let one = store(&format!("memcached://{}", redis.addr()), &patient());
    let error = spend(&one, &limit(1), &["a"]).await.unwrap_err();
    let StoreError::NotApplied { source, .. } = &error else { panic!("{error:?}") };
    assert!(source.to_string().contains("it does not answer as Memcached does"), "{source}");
}

#[tokio::test]
async fn canaries_tell_when_a_full_server_forgets() {
    // A server of the smallest size, filled by others.
    let server = Memcached::start_with(&["-m", "2", "-o", "no_lru_crawler,no_lru_maintainer"]);
    let one = store(&Memcached::url_of(&[&server]), &patient().canary_age(Duration::ZERO));
    let look = async || one.look().await.remove(0).unwrap();
    look().await;
    let fine = look().await;
    assert_eq!((fine.evictions, fine.warnings.len(), one.canaries()), (0, 0, (0, 1)));
    fill(&server);
    let full = look().await;
    assert!(full.evictions > 0, "{full:?}");
    assert_eq!(one.canaries(), (1, 2), "the one that nobody touched is gone");
    assert!(full.warnings[0].contains("Give it more memory (-m)"), "{full:?}");
    assert_eq!(one.endpoint(0), server.addr().to_string());
}

/// Stores far more small items than it has room for.
fn fill(server: &Memcached) {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(server.addr()).unwrap();
    let value = "x".repeat(60);
    let mut commands = String::new();
    for number in 0..100_000 {
        commands.push_str(&format!("ms other{number} 60 q\r\n{value}\r\n"));
    }
    commands.push_str("mn\r\n");
    stream.write_all(commands.as_bytes()).unwrap();
    let mut end = [0; 4];
    stream.read_exact(&mut end).unwrap();
    assert_eq!(&end, b"MN\r\n");
}
