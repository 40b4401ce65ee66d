//! Questions with whole answers, against the real server.

use std::time::Duration;

use tidegate_core::Micros;
use tidegate_testkit::{Fault, FaultProxy, eventually};
use tokio::time::{sleep, timeout};

use super::World;
use crate::{Client, Error, OnFailure, Request, Source};

const RULES: &str = "
domain: api
rules:
  - { name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 3, window: 1h }] }
  - { name: tokens, key: [model], limits: [{ algorithm: token_bucket, rate: 100/h, burst: 100 }], over: debt }
  - { name: uploads, key: [tenant], limits: [{ algorithm: concurrency, limit: 1, ttl: 1h }] }
  - { name: refilled, key: [refilled], limits: [{ algorithm: token_bucket, rate: 1/s, burst: 1 }] }
";
/// Long enough for a busy machine.
const PATIENT: Duration = Duration::from_secs(20);

async fn client(world: &World) -> Client {
    let builder = Client::to(world.url()).domain("api").on_failure(OnFailure::Closed).timeout(PATIENT);
    builder.connect().await.unwrap()
}

async fn left(client: &Client, user: &str) -> u64 {
    client.ask(&Request::of(&[("user", user)]).cost(0)).await.unwrap().remaining.unwrap()
}

#[tokio::test]
async fn an_answer_has_the_numbers_and_the_headers_to_pass_on() {
    let world = World::new(RULES);
    let client = client(&world).await;
    let request = Request::of(&[("user", "42")]);
    let first = client.ask(&request).await.unwrap();
    assert_eq!(
        (first.allowed, first.source, first.rule.as_deref()),
        (true, Source::Server, Some("per-user"))
    );
    assert_eq!((first.limit, first.remaining, first.retry_after), (Some(3), Some(2), None));
    assert_eq!(first.headers["x-ratelimit-remaining"], "2");
    assert!(first.headers.contains_key("ratelimit") && !first.headers.contains_key("content-type"));
    let refused = client.ask(&request.cost(3)).await.unwrap();
    assert!(!refused.allowed);
    assert_eq!(refused.retry_after, Some(Duration::from_secs(3_600)));
    assert_eq!(refused.headers["retry-after"], "3600");
}

#[tokio::test]
async fn a_batch_is_answered_in_order_and_one_without_a_server_by_the_policy() {
    let world = World::new(RULES);
    let client = client(&world).await;
    let user = || Request::of(&[("user", "42")]);
    assert_eq!(client.batch(&[]).await.unwrap(), []);
    let answers = client.batch(&[user(), user().cost(3), user().cost(2)]).await.unwrap();
    assert_eq!(answers.iter().map(|answer| answer.allowed).collect::<Vec<_>>(), [true, false, true]);
    let error = client.batch(&[user(), Request::of(&[("user", &"x".repeat(5_000))])]).await;
    assert!(matches!(error, Err(Error::Refused { status: 422, .. })), "{error:?}");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let alone = Client::to(format!("http://{nobody}")).on_failure(OnFailure::Closed).start().unwrap();
    let answers = alone.batch(&[user(), user()]).await.unwrap();
    assert!(answers.iter().all(|answer| !answer.allowed && answer.source == Source::Policy), "{answers:?}");
    assert!(
        answers[1].failure.as_ref().is_some_and(|why| why.contains("cannot reach tidegate")),
        "{answers:?}"
    );
}

#[tokio::test]
async fn what_was_charged_can_be_given_back_and_a_charge_may_leave_a_debt() {
    let world = World::new(RULES);
    let client = client(&world).await;
    // A refund counts as 50 ms older than it seems.
    world.advance(Micros::from_secs(1));
    let spent = client.charge(&[("user", "42")], 3).await.unwrap().spent.unwrap();
    assert_eq!(left(&client, "42").await, 0);
    client.refund(&[("user", "42")], 2, Some(&spent)).await.unwrap();
    assert_eq!(left(&client, "42").await, 2);
    let error = client.refund(&[("user", "42")], 2, Some("nonsense")).await;
    assert!(matches!(error, Err(Error::Refused { status: 422, .. })), "{error:?}");
    // Of a hundred an hour.
    client.charge(&[("model", "m")], 500).await.unwrap();
    let after = client.ask(&Request::of(&[("model", "m")])).await.unwrap();
    assert!(!after.allowed && after.retry_after > Some(Duration::from_secs(4 * 3_600)), "{after:?}");
}

#[tokio::test]
async fn a_lease_holds_the_only_slot_until_it_is_released_or_dropped() {
    let world = World::new(RULES);
    let client = client(&world).await;
    let tenant = Request::of(&[("tenant", "a")]);
    let lease = client.lease(&tenant).await.unwrap();
    assert!(lease.answer().allowed);
    let other = client.lease(&tenant).await.unwrap();
    assert!(!other.answer().allowed, "both hold the only slot");
    lease.renew().await.unwrap();
    lease.release().await.unwrap();
    let again = client.lease(&tenant).await.unwrap();
    assert!(again.answer().allowed, "a released slot is not free");
    drop(again);
    let free = async {
        while !client.ask(&tenant.clone().cost(0)).await.unwrap().allowed {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENT, free).await.expect("a dropped lease is released");
}

#[tokio::test]
async fn a_lease_that_is_over_cannot_be_renewed() {
    let world = World::new(RULES);
    let client = client(&world).await;
    let lease = client.lease(&Request::of(&[("tenant", "a")])).await.unwrap();
    world.advance(Micros::from_secs(3_601));
    let error = lease.renew().await;
    assert!(matches!(error, Err(Error::Refused { status: 410, .. })), "{error:?}");
}

#[tokio::test]
async fn a_request_id_is_charged_once() {
    let world = World::new(RULES);
    let client = client(&world).await;
    for _ in 0..3 {
        let answer = client.ask(&Request::of(&[("user", "42")]).id("order-17")).await.unwrap();
        assert_eq!(answer.remaining, Some(2));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_answer_was_lost_is_asked_again_and_charged_once() {
    let world = World::new(RULES);
    let proxy = FaultProxy::start(world.plane.addresses()[0].1);
    let builder = Client::to(format!("http://{}", proxy.addr())).domain("api").on_failure(OnFailure::Closed);
    let again = builder.timeout(Duration::from_secs(10)).retries(4).start().unwrap();
    proxy.set(Fault::DropReplies);
    let asked = tokio::spawn(async move { again.check(&[("user", "42")]).await });
    let proxy = tokio::task::spawn_blocking(move || {
        eventually("it asks again", PATIENT, || proxy.connections() > 1);
        proxy.resume();
        proxy
    });
    let proxy = proxy.await.unwrap();
    let decision = asked.await.unwrap().unwrap();
    assert_eq!((decision.allowed, decision.source), (true, Source::Server));
    assert_eq!(left(&client(&world).await, "42").await, 2, "it was charged for each try");
    drop(proxy);
}

#[tokio::test]
async fn a_request_without_an_id_is_asked_once() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let client = Client::to(url).timeout(Duration::from_millis(300)).start().unwrap();
    let answer = client.ask(&Request::of(&[("user", "42")])).await.unwrap();
    assert!(answer.failure.is_some_and(|why| why.contains("no answer within 300ms")));
    assert!(silent.accept().is_ok() && silent.accept().is_err(), "one connection");
}

#[tokio::test]
async fn acquire_waits_as_the_server_says_and_not_in_vain() {
    let world = World::new(RULES);
    let client = client(&world).await;
    let (request, clock) = (Request::of(&[("refilled", "a")]), world.clock.clone());
    assert!(client.acquire(&request, PATIENT).await.unwrap().allowed);
    let ticking = tokio::spawn(async move {
        loop {
            clock.advance(Micros::from_millis(10));
            sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(client.acquire(&request, PATIENT).await.unwrap().allowed);
    ticking.abort();
    let user = Request::of(&[("user", "42")]);
    client.charge(&[("user", "42")], 3).await.unwrap();
    let refused = client.acquire(&user, Duration::from_secs(60)).await.unwrap();
    assert!(!refused.allowed, "the window ends in an hour");
}
