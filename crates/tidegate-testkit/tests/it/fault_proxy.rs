//! Each fault, between a real client and a real Redis.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use tidegate_testkit::resp::{Client, Value};
use tidegate_testkit::{Fault, FaultProxy, Redis, in_three_tries};

/// Long against a loopback round trip, short against a person's.
const A_WHILE: Duration = Duration::from_millis(100);

struct Path {
    redis: Redis,
    proxy: FaultProxy,
    client: Client,
}

/// A client that reached Redis through the proxy, and gives up after a while.
fn path() -> Path {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.addr());
    let mut client = Client::connect(proxy.addr());
    assert_eq!(client.cmd(&["SET", "n", "0"]).text(), "OK");
    client.set_patience(A_WHILE).unwrap();
    Path { redis, proxy, client }
}

#[track_caller]
fn assert_no_reply(client: &mut Client) {
    let error = client.try_cmd(&["INCR", "n"]).expect_err("no reply comes");
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
}

fn increments(redis: &Redis) -> String {
    redis.cmd(&["GET", "n"]).text()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a delay is measured against the real clock")]
fn a_delay_adds_to_each_round_trip_and_not_to_the_throughput() {
    let Path { redis: _redis, proxy, mut client } = path();
    proxy.set(Fault::Delay(A_WHILE));
    client.set_patience(200 * A_WHILE).unwrap();
    let start = Instant::now();
    client.cmd(&["PING"]);
    assert!(start.elapsed() >= A_WHILE);
    in_three_tries(|| {
        let start = Instant::now();
        client.pipeline(&vec![vec!["ECHO".to_owned(), "x".repeat(10_000)]; 20]);
        let took = start.elapsed();
        if took < 10 * A_WHILE { Ok(()) } else { Err(format!("twenty replies in flight took {took:?}")) }
    });
}

#[test]
fn a_dropped_request_never_reaches_the_server() {
    let Path { redis, proxy, mut client } = path();
    proxy.set(Fault::DropRequests);
    assert_no_reply(&mut client);
    assert_eq!(increments(&redis), "0");
}

#[test]
fn a_dropped_reply_leaves_its_effect_on_the_server() {
    let Path { redis, proxy, mut client } = path();
    proxy.set(Fault::DropReplies);
    assert_no_reply(&mut client);
    assert_eq!(increments(&redis), "1");
}

#[test]
fn a_black_hole_swallows_and_keeps_connections_open() {
    let Path { redis, proxy, mut client } = path();
    proxy.set(Fault::Blackhole);
    assert_no_reply(&mut client);
    assert_eq!(increments(&redis), "0");
    proxy.resume();
    assert_eq!(client.cmd(&["INCR", "n"]), Value::Int(1));
}

#[test]
fn a_pause_delivers_late_what_it_held_back() {
    let Path { redis, proxy, mut client } = path();
    proxy.pause();
    assert_no_reply(&mut client);
    assert_eq!(increments(&redis), "0");
    proxy.resume();
    // The reply to the first request comes first.
    assert_eq!(client.cmd(&["INCR", "n"]), Value::Int(1));
    assert_eq!(increments(&redis), "2");
}

#[test]
fn only_the_reply_to_the_named_request_is_lost() {
    let Path { redis, proxy, mut client } = path();
    proxy.set(Fault::LoseReplyTo(b"INCR"));
    assert_eq!(client.cmd(&["PING"]).text(), "PONG");
    let error = client.try_cmd(&["INCR", "n"]).expect_err("its reply is lost");
    assert!(!matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    assert_eq!(increments(&redis), "1");
    assert_eq!(Client::connect(proxy.addr()).cmd(&["PING"]).text(), "PONG");
}

#[test]
fn a_cut_ends_the_connection_in_the_middle_of_a_reply() {
    let Path { redis, proxy, mut client } = path();
    proxy.set(Fault::CutRepliesAfter(2));
    let error = client.try_cmd(&["INCR", "n"]).expect_err("`:1` is not a whole reply");
    assert_eq!(error.to_string(), r#"not a Redis reply: "a line without an end""#);
    assert_eq!(increments(&redis), "1");
    assert!(client.try_cmd(&["PING"]).is_err());
}

#[test]
fn a_cut_counts_the_bytes_of_several_replies() {
    let Path { redis: _redis, proxy, mut client } = path();
    proxy.set(Fault::CutRepliesAfter(10));
    assert_eq!(client.cmd(&["PING"]).text(), "PONG");
    assert!(client.try_cmd(&["PING"]).is_err());
}

#[test]
fn garbage_has_the_length_of_the_reply_and_no_meaning() {
    let Path { redis: _redis, proxy, mut client } = path();
    proxy.set(Fault::GarbageReplies);
    // The line's end is garbage too, so the client waits for it.
    assert!(client.try_cmd(&["PING"]).is_err());
    proxy.resume();
    assert_eq!(Client::connect(proxy.addr()).cmd(&["PING"]).text(), "PONG");
}

#[test]
fn refusing_closes_old_and_new_connections() {
    let Path { redis: _redis, proxy, mut client } = path();
    proxy.set(Fault::Refuse);
    assert!(client.try_cmd(&["PING"]).is_err());
    assert!(Client::try_connect(proxy.addr()).and_then(|mut client| client.try_cmd(&["PING"])).is_err());
    proxy.resume();
    assert_eq!(Client::connect(proxy.addr()).cmd(&["PING"]).text(), "PONG");
    assert_eq!(proxy.connections(), 3);
}

#[test]
fn cutting_by_hand_ends_only_the_connections_of_that_moment() {
    let Path { redis: _redis, proxy, mut client } = path();
    proxy.cut();
    assert!(client.try_cmd(&["PING"]).is_err());
    assert_eq!(Client::connect(proxy.addr()).cmd(&["PING"]).text(), "PONG");
}

#[test]
fn a_server_that_dies_ends_the_clients_connection() {
    let Path { redis, proxy: _proxy, mut client } = path();
    redis.kill();
    let error = client.try_cmd(&["PING"]).expect_err("the server is dead");
    assert!(!matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
}

#[test]
fn a_dropped_proxy_ends_the_clients_connection() {
    let Path { redis: _redis, proxy, mut client } = path();
    proxy.pause();
    assert_no_reply(&mut client);
    drop(proxy);
    assert!(client.try_cmd(&["PING"]).is_err());
}
