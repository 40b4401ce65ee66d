//! One real Redis, in its variants, and several independent ones.

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use tidegate_testkit::resp::{Client, Value};
use tidegate_testkit::{Redis, ShardedRedis, SteppedClock, find_tool};

#[test]
fn every_kind_of_reply_is_read_as_it_was_sent() {
    let redis = Redis::start();
    let mut client = redis.client();
    let binary: &[u8] = b"\x00\r\n\xff";
    assert_eq!(client.cmd(&[b"SET", b"key", binary]), Value::Simple("OK".into()));
    assert_eq!(client.cmd(&["GET", "key"]), Value::Bulk(binary.to_vec()));
    assert_eq!(client.cmd(&["GET", "other"]), Value::Nil);
    assert_eq!(client.cmd(&["INCRBY", "number", "-7"]), Value::Int(-7));
    assert!(client.cmd(&["INCR", "key"]).text().starts_with("ERR"));
    let nested = client.cmd(&["EVAL", "return {1, {'a', false}, {}}", "0"]);
    let inner = Value::Array(vec![Value::Bulk(b"a".to_vec()), Value::Nil]);
    assert_eq!(nested, Value::Array(vec![Value::Int(1), inner, Value::Array(vec![])]));
}

#[test]
fn a_pipeline_is_answered_in_order() {
    let redis = Redis::start();
    let commands: Vec<Vec<String>> = (0..500).map(|n| vec!["ECHO".into(), n.to_string()]).collect();
    let replies: Vec<String> = redis.client().pipeline(&commands).iter().map(Value::text).collect();
    assert_eq!(replies, (0..500).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[test]
fn a_line_of_configuration_is_obeyed() {
    let redis = Redis::builder().config("maxmemory 3mb").start();
    assert_eq!(redis.cmd(&["CONFIG", "GET", "maxmemory"]).array()[1].text(), "3145728");
}

#[test]
#[should_panic(expected = "Address already in use")]
fn a_taken_port_is_named_as_such() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let _ = Redis::builder().config(format!("port {port}")).start();
}

#[test]
fn a_killed_redis_comes_back_empty_on_the_same_port() {
    let redis = Redis::start();
    let addr = redis.addr();
    redis.cmd(&["SET", "key", "value"]);
    redis.kill();
    assert!(Client::try_connect(addr).is_err());
    redis.restart();
    assert_eq!(redis.addr(), addr);
    assert_eq!(redis.cmd(&["GET", "key"]), Value::Nil);
}

#[test]
fn a_paused_redis_accepts_and_does_not_answer_until_it_is_resumed() {
    let redis = Redis::start();
    redis.pause();
    let mut client = Client::connect(redis.addr());
    client.set_patience(Duration::from_millis(100)).unwrap();
    assert!(client.try_cmd(&["PING"]).is_err());
    redis.resume();
    assert_eq!(redis.cmd(&["PING"]).text(), "PONG");
}

#[test]
fn a_terminated_redis_ends_well() {
    assert!(Redis::start().terminate().success());
}

#[test]
fn users_have_their_rights_and_nobody_else_gets_in() {
    let redis = Redis::builder().user("reader", "secret", "~* +get").start();
    assert_eq!(redis.url(), format!("redis://reader:secret@{}", redis.addr()));
    let mut client = Client::connect(redis.addr());
    assert!(client.cmd(&["GET", "key"]).text().starts_with("NOAUTH"));
    assert_eq!(client.cmd(&["AUTH", "reader", "secret"]).text(), "OK");
    assert_eq!(client.cmd(&["GET", "key"]), Value::Nil);
    assert!(client.cmd(&["SET", "key", "value"]).text().starts_with("NOPERM"));
    assert_eq!(redis.cmd(&["SET", "key", "value"]).text(), "OK");
}

#[test]
fn tls_is_served_with_a_certificate_that_the_authority_vouches_for() {
    let redis = Redis::builder().tls().start();
    redis.cmd(&["SET", "key", "over tls"]);
    let ask = |trusted: &std::path::Path| {
        let (host, port) =
            redis.tls_url().strip_prefix("rediss://").unwrap().split_once(':').map(owned).unwrap();
        let mut cli = Command::new(find_tool("redis-cli"));
        cli.args(["-h", &host, "-p", &port, "--tls", "--cacert"]).arg(trusted).args(["GET", "key"]);
        String::from_utf8(cli.output().unwrap().stdout).unwrap()
    };
    assert_eq!(ask(&redis.certificates().ca), "over tls\n");
    let stranger = Redis::builder().tls().start();
    assert_eq!(ask(&stranger.certificates().ca), "");
}

fn owned((host, port): (&str, &str)) -> (String, String) {
    (host.to_owned(), port.to_owned())
}

#[test]
fn sharded_servers_do_not_share_keys() {
    let sharded = ShardedRedis::start(3);
    assert_eq!(sharded.url().matches("127.0.0.1:").count(), 3);
    sharded.nodes()[0].cmd(&["SET", "key", "value"]);
    let seen: Vec<Value> = sharded.nodes().iter().map(|node| node.cmd(&["EXISTS", "key"])).collect();
    assert_eq!(seen, [Value::Int(1), Value::Int(0), Value::Int(0)]);
}

#[test]
fn a_redis_on_a_stepped_clock_tells_its_time_and_expires_by_it() {
    let clock = SteppedClock::new();
    let redis = Redis::builder().clock(&clock).start();
    let seconds = || redis.cmd(&["TIME"]).array()[0].text().parse::<i64>().unwrap();
    let before = seconds();
    redis.cmd(&["SET", "key", "value", "EX", "60"]);
    clock.set_ahead_of_the_machine(-3_600);
    assert!((-3_600..-3_500).contains(&(seconds() - before)));
    assert_eq!(redis.cmd(&["EXISTS", "key"]), Value::Int(1));
    clock.set_ahead_of_the_machine(120);
    assert!((120..220).contains(&(seconds() - before)));
    assert_eq!(redis.cmd(&["EXISTS", "key"]), Value::Int(0));
}
