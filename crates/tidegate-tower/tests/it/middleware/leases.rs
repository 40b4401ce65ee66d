//! A place under a concurrency limit is held for as long as a response lasts, and given back however it ends.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get as on_get;
use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use tidegate_limiter::Limiter;
use tidegate_tower::RateLimitLayer;
use tidegate_tower::identity::Attributes;
use tokio::sync::Semaphore;
use tower::{Layer, ServiceExt, service_fn};

use super::world::{
    VirtualClock, becomes_free, begin, connect, get, is_free, limiter, limiter_with_clock, request, serve,
};

const ONE_AT_ONCE: &str = "  - { name: at-once, limits: [{ algorithm: concurrency, limit: 1, ttl: 60s }] }";

/// A server with one place, on which `go` lets whoever waits for it go on.
async fn one_place(go: &Arc<Semaphore>) -> (std::net::SocketAddr, Arc<Limiter>) {
    let limiter = limiter(ONE_AT_ONCE);
    let wait = |go: &Arc<Semaphore>| {
        let go = go.clone();
        async move { go.acquire().await.unwrap().forget() }
    };
    let (slow, streaming, breaking) = (go.clone(), go.clone(), go.clone());
    let app = Router::new()
        .route("/quick", on_get(|| async { "done" }))
        .route("/slow", on_get(move || async move { wait(&slow).await }))
        .route(
            "/streaming",
            on_get(move || async move {
                let first = stream::once(async { Ok::<_, Infallible>("first") });
                let second = stream::once(async move {
                    wait(&streaming).await;
                    Ok("second")
                });
                Body::from_stream(stream::StreamExt::chain(first, second))
            }),
        )
        .route(
            "/breaking",
            on_get(move || async move {
                let broken = async move {
                    wait(&breaking).await;
                    Err::<&str, _>(std::io::Error::other("broken"))
                };
                Body::from_stream(stream::StreamExt::chain(
                    stream::once(async { Ok("first") }),
                    stream::once(broken),
                ))
            }),
        )
        .route(
            "/panicking",
            on_get(|| async { panic!("a handler that panics, as this test wants it to") as () }),
        )
        .layer(RateLimitLayer::new(limiter.clone(), "api").unwrap());
    (serve(app).await, limiter)
}

#[tokio::test]
async fn a_place_is_taken_while_the_handler_works_and_free_once_it_has_answered() {
    let go = Arc::new(Semaphore::new(0));
    let (server, limiter) = one_place(&go).await;
    let slow = tokio::spawn(get(server, "/slow"));
    while is_free(&limiter).await {
        tokio::task::yield_now().await;
    }
    assert_eq!(get(server, "/quick").await.status, 429);
    go.add_permits(1);
    assert_eq!(slow.await.unwrap().status, 200);
    becomes_free(&limiter).await;
    assert_eq!(get(server, "/quick").await.status, 200);
}

#[tokio::test]
async fn a_place_is_held_until_the_body_has_been_sent() {
    let go = Arc::new(Semaphore::new(0));
    let (server, limiter) = one_place(&go).await;
    let (mut response, _connection) = begin(server, "/streaming").await;
    assert_eq!(response.frame().await.unwrap().unwrap().into_data().unwrap(), "first");
    assert!(!is_free(&limiter).await);
    go.add_permits(1);
    assert_eq!(response.collect().await.unwrap().to_bytes(), "second");
    becomes_free(&limiter).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_gives_its_place_back() {
    let go = Arc::new(Semaphore::new(0));
    let (server, limiter) = one_place(&go).await;
    // Before the answer,
    let (mut sender, connection) = connect(server).await;
    let asking = tokio::spawn(async move { drop(sender.send_request(request("/slow")).await) });
    while is_free(&limiter).await {
        tokio::task::yield_now().await;
    }
    drop(connection);
    asking.await.unwrap();
    becomes_free(&limiter).await;
    // and in the middle of it.
    let (mut response, connection) = begin(server, "/streaming").await;
    response.frame().await.unwrap().unwrap();
    assert!(!is_free(&limiter).await);
    drop((response, connection));
    becomes_free(&limiter).await;
}

#[tokio::test]
async fn a_body_that_breaks_off_gives_its_place_back() {
    let go = Arc::new(Semaphore::new(0));
    let (server, limiter) = one_place(&go).await;
    let (response, _connection) = begin(server, "/breaking").await;
    assert!(!is_free(&limiter).await);
    go.add_permits(1);
    assert!(response.collect().await.is_err());
    becomes_free(&limiter).await;
}

#[tokio::test]
async fn a_handler_that_panics_gives_its_place_back() {
    let (server, limiter) = one_place(&Arc::new(Semaphore::new(0))).await;
    for _ in 0..3 {
        let (mut sender, _connection) = connect(server).await;
        assert!(sender.send_request(request("/panicking")).await.is_err());
        becomes_free(&limiter).await;
    }
}

type Empties = Request<Empty<Bytes>>;

fn nobody(limiter: &Arc<Limiter>) -> RateLimitLayer {
    RateLimitLayer::builder(limiter.clone(), "api").extract([""; 0], |_| Attributes::new()).build().unwrap()
}

#[tokio::test]
async fn a_service_that_fails_gives_its_place_back() {
    let limiter = limiter(ONE_AT_ONCE);
    let fails = service_fn(|_: Empties| async { Err::<Response<Full<Bytes>>, _>("failed") });
    for _ in 0..3 {
        assert_eq!(nobody(&limiter).layer(fails).oneshot(request("/")).await.unwrap_err(), "failed");
        becomes_free(&limiter).await;
    }
}

#[tokio::test]
async fn a_response_that_nobody_reads_gives_its_place_back() {
    let limiter = limiter(ONE_AT_ONCE);
    let answers =
        service_fn(|_: Empties| async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::new()))) });
    let response = nobody(&limiter).layer(answers).oneshot(request("/")).await.unwrap();
    assert!(!is_free(&limiter).await);
    drop(response);
    becomes_free(&limiter).await;
}

/// On one thread no task gets a turn between two lines without an await: nobody but the body can have given it back.
#[tokio::test]
async fn in_memory_a_place_is_free_as_soon_as_its_body_has_ended() {
    let limiter = limiter(ONE_AT_ONCE);
    let answers =
        service_fn(|_: Empties| async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("done")))) });
    for _ in 0..3 {
        let response = nobody(&limiter).layer(answers).oneshot(request("/")).await.unwrap();
        assert!(!is_free(&limiter).await);
        let mut body = response.into_body();
        while body.frame().await.is_some() {}
        assert!(is_free(&limiter).await);
        drop(nobody(&limiter).layer(answers).oneshot(request("/")).await.unwrap());
        assert!(is_free(&limiter).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_is_held_for_many_times_its_time_to_live() {
    let rules = "  - { name: at-once, limits: [{ algorithm: concurrency, limit: 1, ttl: 3s }] }";
    let limiter = limiter_with_clock(rules, VirtualClock::new());
    let answers =
        service_fn(|_: Empties| async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::new()))) });
    let response = nobody(&limiter).layer(answers).oneshot(request("/")).await.unwrap();
    for second in 0..60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!is_free(&limiter).await, "lost after {second} s");
    }
    drop(response);
    becomes_free(&limiter).await;
}

#[tokio::test(start_paused = true)]
async fn a_place_whose_holder_died_is_free_after_its_time_to_live() {
    let rules = "  - { name: at-once, limits: [{ algorithm: concurrency, limit: 1, ttl: 3s }] }";
    let limiter = limiter_with_clock(rules, VirtualClock::new());
    let entries = tidegate_rules::Descriptor { entries: &[] };
    let asks = [tidegate_limiter::DescriptorAsk::of(entries)];
    let request = tidegate_limiter::CheckRequest::new("api", &asks);
    // As a process that was killed: nobody renews, nobody releases.
    drop(limiter.check(&request).await.unwrap().lease.unwrap());
    tokio::time::sleep(Duration::from_millis(2_900)).await;
    assert!(!is_free(&limiter).await);
    tokio::time::sleep(Duration::from_millis(101)).await;
    assert!(is_free(&limiter).await);
}
