//! `request_id` where a client gave up: whatever node it asks next, it is charged once, and the fleet remembers for a minute.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::json;
use tidegate_testkit::resp::{Client, Value};
use tidegate_testkit::{Redis, eventually, http, poll};

use crate::promises::{self, LOCAL, post};
use crate::redis_world::{DEFAULT, Node, PATIENCE, PATIENT, left, pass};

const PER_USER: &str = "\
- { name: per-user, key: [user], on_store_failure: closed, limits: [{ algorithm: sliding_window, limit: 1000, window: 1d }] }
";

fn named(user: &str, id: &str) -> String {
    json!({ "domain": "api", "attributes": { "user": user }, "request_id": id }).to_string()
}

/// Sends a check and hangs up before its answer.
fn ask_and_give_up(http: SocketAddr, body: &str) {
    let mut client = TcpStream::connect(http).unwrap();
    let head = "POST /v1/check HTTP/1.1\r\nhost: api\r\ncontent-type: application/json\r\ncontent-length:";
    client.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
    // It must have reached the server, and what that asks must have reached Redis.
    pass(Duration::from_millis(300));
}

/// Promise 14, where Redis cannot tell that a try is under way.
#[test]
fn request_id_tries_that_overlap_while_redis_stands_still_are_charged_once() {
    let redis = Redis::start();
    let node = Node::ready(&redis.url(), "700ms", &PER_USER.replace("closed", "open"));
    for user in ["a", "b"] {
        assert_eq!(left(&mut node.client(), user), 1_000);
        redis.pause();
        // Each begins before the one before it has given up on Redis.
        (0..3).for_each(|_| ask_and_give_up(node.http, &named(user, user)));
        // And none of them hears from it in time.
        pass(Duration::from_millis(800));
        redis.resume();
        let retried = poll(PATIENCE, || {
            let answer = http::post_json(node.http, "/v1/check", &named(user, user));
            (answer.status != 409).then_some(answer)
        });
        assert_eq!(retried.map(|answer| answer.status), Some(200), "{user}");
        eventually("it is charged", PATIENCE, || left(&mut node.client(), user) < 1_000);
        // What else is owed would be charged within a second.
        pass(Duration::from_millis(1_500));
        assert_eq!(left(&mut node.client(), user), 999, "{user}");
    }
}

/// Every key of Redis.
fn keys(client: &mut Client) -> BTreeSet<Vec<u8>> {
    let name = |key: &Value| match key {
        Value::Bulk(key) => key.clone(),
        other => panic!("not a key: {other:?}"),
    };
    client.cmd(&["KEYS", "*"]).array().iter().map(name).collect()
}

/// Promise 14.
#[test]
fn request_id_a_retry_on_another_node_after_the_client_gave_up_does_not_spend_again() {
    let redis = Redis::start();
    let [one, other] = [0, 1].map(|_| Node::ready(&redis.url(), PATIENT, PER_USER));
    for number in 0..4 {
        let (user, id) = (format!("u{number}"), format!("r-{number}"));
        redis.pause();
        ask_and_give_up(one.http, &named(&user, &id));
        redis.resume();
        // While the first try is under way, its name is taken.
        let retried = poll(PATIENCE, || {
            let answer = http::post_json(other.http, "/v1/check", &named(&user, &id));
            (answer.status != 409).then_some(answer)
        });
        assert_eq!(retried.map(|answer| answer.status), Some(200), "{user}");
        for node in [&one, &other] {
            assert_eq!(left(&mut node.client(), &user), 999, "{user}");
        }
    }
}

/// Promise 14: what is kept for a request, besides its counter, is kept for the minute that is promised.
#[test]
fn request_id_an_answer_is_kept_in_redis_for_a_minute_and_no_longer() {
    let redis = Redis::start();
    let node = Node::ready(&redis.url(), PATIENT, PER_USER);
    let mut client = redis.client();
    let before = keys(&mut client);
    assert_eq!(http::post_json(node.http, "/v1/check", &named("42", "r-1")).status, 200);
    let after = keys(&mut client);
    // Besides the counter, and what nodes keep about the fleet and its alerts meanwhile.
    let others = ["per-user", "fleet", "{alerts"];
    let is_other = |key: &[u8]| others.iter().any(|part| String::from_utf8_lossy(key).contains(part));
    let kept: Vec<&Vec<u8>> = after.difference(&before).filter(|key| !is_other(key)).collect();
    let [record] = kept[..] else { panic!("one record, not {kept:?}") };
    let ttl_ms = client.cmd(&[b"PTTL".as_slice(), record]).int();
    assert!((50_000..=60_000).contains(&ttl_ms), "{ttl_ms} ms");
}

#[test]
fn request_id_who_passed_without_the_store_has_passed() {
    let redis = Redis::start();
    let nodes = [0, 1].map(|_| Node::ready(&redis.url(), DEFAULT, LOCAL));
    redis.pause();
    let first = poll(PATIENCE, || {
        pass(Duration::from_millis(20));
        let answer = post(nodes[0].http, "/v1/check", &promises::named("42", "r-1"));
        (answer.0 == 200).then_some(answer)
    });
    let first = first.expect("it passes by its share");
    // By its share, whether Redis counts as failed already or only as late.
    assert!(["fallback_local", "overload_local"].contains(&first.1["source"].as_str().unwrap()), "{first:?}");
    for _ in 0..3 {
        assert_eq!(
            post(nodes[0].http, "/v1/check", &promises::named("42", "r-1")),
            first,
            "while the store is away"
        );
    }
    assert_eq!(
        post(nodes[0].http, "/v1/check", &promises::named("7", "r-1")).0,
        200,
        "another caller's name is its own"
    );
    redis.resume();
    let spent = || nodes.each_ref().map(|node| 1000 - left(&mut node.client(), "42"));
    eventually("it is charged", PATIENCE, || spent() == [1; 2]);
    for node in &nodes {
        eventually("the answer is left in the store", PATIENCE, || {
            post(node.http, "/v1/check", &promises::named("42", "r-1")) == first
        });
    }
    assert_eq!(spent(), [1; 2]);
}
