//! What clients of a gateway can make it send. On an error Envoy admits the request, so nothing of it may cause one.

use bytes::Bytes;
use tidegate_server::rls::{Code, Entry, RateLimitDescriptor, RateLimitRequest};
use tonic::Code as StatusCode;

use super::told;
use crate::world::{World, descriptor, request};

const RULES: &str = "
domain: api
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 1 } }
";

fn user(value: impl Into<Bytes>) -> RateLimitDescriptor {
    let entry = Entry { key: "user".to_owned(), value: value.into() };
    RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() }
}

/// Checks that `value` has its own counter: the first request is admitted, the second is not.
async fn check_counted(world: &World, value: Bytes) {
    for expected in ["OK 0 of 1/MINUTE 60s", "OVER 0 of 1/MINUTE 60s"] {
        let answer = world.ask(request([user(value.clone())])).await.unwrap();
        assert_eq!(told(&answer).1, [expected], "{} bytes: {:?}", value.len(), &value[..value.len().min(8)]);
    }
}

#[tokio::test]
async fn values_that_are_no_text_are_counted_like_others() {
    let world = World::envoy(RULES);
    for value in
        [&b""[..], b"\0", b"\xff", b"\xff\xfe", b"\xed\xa0\x80", b"caf\xe9", "café".as_bytes(), b"\r\n"]
    {
        check_counted(&world, Bytes::copy_from_slice(value)).await;
    }
}

#[tokio::test]
async fn long_values_are_counted_too() {
    let world = World::envoy(RULES);
    for length in [4_096, 4_097, 60_000, 250_000] {
        check_counted(&world, vec![b'x'; length].into()).await;
    }
    // They differ in their last byte alone.
    check_counted(&world, [vec![b'x'; 59_999], vec![b'y']].concat().into()).await;
}

#[tokio::test]
async fn a_message_that_is_too_large_is_over_the_limit() {
    let world = World::envoy(RULES);
    let answer = world.ask(request([user(vec![b'x'; 1 << 20])])).await.unwrap();
    assert_eq!(told(&answer), (Code::OverLimit, vec![]));
    // The connection goes on.
    check_counted(&world, Bytes::from_static(b"42")).await;
}

#[tokio::test]
async fn what_only_a_configuration_can_cause_is_named() {
    let world = World::envoy(RULES);
    let many = |count: usize| RateLimitDescriptor {
        entries: vec![Entry { key: "k".to_owned(), value: Bytes::new() }; count],
        ..RateLimitDescriptor::default()
    };
    let long_domain = RateLimitRequest { domain: "d".repeat(257), ..request([descriptor(&[])]) };
    let long_key = descriptor(&[("user", "42"), (&"k".repeat(257), "v")]);
    for (wrong, problem) in [
        (
            request([user("42"), many(10_000)]),
            "descriptors[1].entries: expected at most 64 entries, found 10000",
        ),
        (request(vec![user("42"); 101]), "descriptors: expected at most 100 descriptors, found 101"),
        (long_domain, "domain: expected at most 256 bytes, found 257"),
        (request([long_key]), "descriptors[0].entries[1].key: expected at most 256 bytes, found 257"),
    ] {
        let status = world.ask(wrong).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (StatusCode::InvalidArgument, problem));
    }
    check_counted(&world, Bytes::from_static(b"42")).await;
    assert_eq!(world.ask(request(vec![many(64); 100])).await.unwrap().statuses.len(), 100);
}

#[tokio::test]
async fn a_thousand_requests_at_once_on_one_connection_are_all_answered_exactly() {
    let world = World::envoy(
        "domain: api\ndescriptors: [{ key: user, rate_limit: { unit: minute, requests_per_unit: 300 } }]\n",
    );
    let channel = world.channel();
    let asked: Vec<_> = (0..1_000)
        .map(|_| {
            use tidegate_server::rls::rate_limit_service_client::RateLimitServiceClient;
            let mut client = RateLimitServiceClient::new(channel.clone());
            tokio::spawn(async move { client.should_rate_limit(request([user("42")])).await })
        })
        .collect();
    let mut passed = 0;
    for answer in asked {
        passed += usize::from(answer.await.unwrap().unwrap().into_inner().overall_code() == Code::Ok);
    }
    assert_eq!(passed, 300);
}
