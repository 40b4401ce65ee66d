//! Load is shed before anything is spent, and a request counts for as long as it keeps somebody busy.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use tidegate_limiter::{Capacity, Gradient2Config, Limiter, Shedder, ShedderConfig};
use tidegate_tower::identity::Attributes;
use tidegate_tower::{LimitedBody, RateLimitLayer};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::world::{VirtualClock, limiter, limiter_with_clock, request};

const FEW: &str =
    "  - { name: few, key: [], limits: [{ algorithm: fixed_window, limit: 3, window: 1d }], priority: P3 }";

fn shedder(capacity: Capacity) -> Arc<Shedder> {
    Shedder::new(ShedderConfig::new(capacity), Arc::new(VirtualClock::new()))
}

fn workers(count: usize) -> Capacity {
    Capacity::Workers(count.try_into().unwrap())
}

type Answer = Response<LimitedBody<Full<Bytes>>>;

/// A service behind `limiter` and `shedder` that takes `work` to answer.
fn service(
    limiter: Arc<Limiter>,
    shedder: &Arc<Shedder>,
    work: Duration,
) -> impl Service<Request<Empty<Bytes>>, Response = Answer, Error = Infallible, Future: Send>
+ Clone
+ Send
+ 'static {
    let layer =
        RateLimitLayer::builder(limiter, "api").extract([""; 0], |_| Attributes::new()).build().unwrap();
    layer.shedder(shedder.clone()).clock(Arc::new(VirtualClock::new())).layer(service_fn(
        move |_: Request<Empty<Bytes>>| async move {
            tokio::time::sleep(work).await;
            Ok(Response::new(Full::new(Bytes::from_static(b"done"))))
        },
    ))
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_shed_is_told_so_and_spends_nothing() {
    let (limiter, shedder) = (limiter(FEW), shedder(workers(10)));
    let service = service(limiter, &shedder, Duration::ZERO);
    let busy: Vec<_> = (0..7).map(|_| shedder.enter(tidegate_rules::Priority::P0).unwrap()).collect();
    for _ in 0..5 {
        let answer = service.clone().oneshot(request("/")).await.unwrap();
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer.headers()["retry-after"], "1");
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (&problem["type"], &problem["status"]),
            (
                &"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity".into(),
                &503.into()
            )
        );
        assert!(problem["detail"].as_str().unwrap().contains("priority P3"), "{problem}");
    }
    drop(busy);
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(service.clone().oneshot(request("/")).await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 429], "all three are left");
}

#[tokio::test(start_paused = true)]
async fn a_caller_of_grpc_is_told_that_the_service_is_unavailable() {
    let (limiter, shedder) = (limiter(FEW), shedder(workers(1)));
    let _busy = shedder.enter(tidegate_rules::Priority::P0).unwrap();
    let mut call = request("/");
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let answer = service(limiter, &shedder, Duration::ZERO).oneshot(call).await.unwrap();
    assert_eq!((answer.status(), &answer.headers()["grpc-status"]), (StatusCode::OK, &"14".parse().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_request_keeps_its_place_until_its_response_was_sent_or_it_was_given_up() {
    let (limiter, shedder) = (limiter(FEW), shedder(workers(10)));
    let service = service(limiter, &shedder, Duration::from_secs(1));
    let answer = service.clone().oneshot(request("/")).await.unwrap();
    assert_eq!(shedder.stats().in_use, 1, "its body is still to be read");
    answer.into_body().collect().await.unwrap();
    assert_eq!(shedder.stats().in_use, 0);

    let given_up = tokio::spawn(service.clone().oneshot(request("/")));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(shedder.stats().in_use, 1);
    given_up.abort();
    assert!(given_up.await.is_err());
    assert_eq!(shedder.stats().in_use, 0);

    drop(service.clone().oneshot(request("/")).await.unwrap());
    let refused = service.oneshot(request("/")).await.unwrap();
    assert_eq!((refused.status(), shedder.stats().in_use), (StatusCode::TOO_MANY_REQUESTS, 0));
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_a_queue_keeps_no_worker_busy() {
    let rules = "  - { name: queue, limits: [{ algorithm: leaky_bucket, rate: 1/s, max_delay: 1h }] }";
    let (limiter, shedder) = (limiter_with_clock(rules, VirtualClock::new()), shedder(workers(10)));
    let service = service(limiter, &shedder, Duration::from_millis(500));
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..30 {
        let asks = service.clone().oneshot(request("/"));
        asked.spawn(async { asks.await.unwrap().status() });
        tokio::task::yield_now().await;
    }
    // One a second is let out, and takes half of it.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(shedder.stats().in_use <= 1, "{:?}", shedder.stats());
    }
    while let Some(answer) = asked.join_next().await {
        assert_eq!(answer.unwrap(), StatusCode::OK);
    }
}

#[tokio::test(start_paused = true)]
async fn how_many_a_service_can_work_on_is_found_out_from_its_answers() {
    let limiter = limiter("  - { name: all, limits: unlimited, priority: P1 }");
    let shedder = shedder(Capacity::Adaptive(Gradient2Config::default()));
    let service = service(limiter, &shedder, Duration::from_millis(50));
    let ask = || async {
        let answer = service.clone().oneshot(request("/")).await.unwrap();
        answer.status() == StatusCode::OK
    };
    let before = shedder.stats().workers.unwrap();
    for _ in 0..200 {
        let round = (0..before * 2).map(|_| ask());
        futures_util::future::join_all(round).await;
        // Those that are shed at once are quick; the others are not.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let after = shedder.stats().workers.unwrap();
    assert!(after > before + 5, "{before} then {after}: it never got slower");
}
