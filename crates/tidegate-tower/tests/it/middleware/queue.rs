//! A leaky bucket as a queue: requests leave in order, at its rate, never early.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{Empty, Full};
use tidegate_limiter::Limiter;
use tidegate_store::SystemClock;
use tidegate_tower::RateLimitLayer;
use tidegate_tower::identity::Attributes;
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};

use super::world::{VirtualClock, limiter_with_clock, request};

/// When the requests that came at once, by their numbers, reached the service, and how many never did.
async fn departures(limiter: Arc<Limiter>, requests: usize) -> (Vec<(usize, Duration)>, usize) {
    let left = Arc::new(Mutex::new(Vec::new()));
    let began = Instant::now();
    let layer =
        RateLimitLayer::builder(limiter, "api").extract([""; 0], |_| Attributes::new()).build().unwrap();
    let mut asked = Vec::new();
    for number in 0..requests {
        let left = left.clone();
        let service = layer.layer(service_fn(move |_: Request<Empty<Bytes>>| {
            left.lock().unwrap().push((number, began.elapsed()));
            std::future::ready(Ok::<_, Infallible>(Response::new(Full::new(Bytes::new()))))
        }));
        asked.push(tokio::spawn(service.oneshot(request("/"))));
        // Each has asked before the next does: their order is known.
        tokio::task::yield_now().await;
    }
    let mut refused = 0;
    for answer in asked {
        refused += usize::from(answer.await.unwrap().unwrap().status() == StatusCode::TOO_MANY_REQUESTS);
    }
    let left = left.lock().unwrap().clone();
    (left, refused)
}

/// Departures per second, by the line that fits them best: one that was held up does not matter.
fn rate(departures: &[(usize, Duration)]) -> f64 {
    let count = departures.len() as f64;
    let times: Vec<f64> = departures.iter().map(|(_, at)| at.as_secs_f64()).collect();
    let mean_time = times.iter().sum::<f64>() / count;
    let mean_place = (count - 1.0) / 2.0;
    let pairs = times.iter().enumerate().map(|(place, at)| (place as f64 - mean_place, at - mean_time));
    let (above, below) =
        pairs.fold((0.0, 0.0), |(above, below), (place, at)| (above + place * at, below + place * place));
    below / above
}

#[tokio::test(start_paused = true)]
async fn requests_leave_in_order_at_the_configured_rate_within_one_percent() {
    for configured in [5, 100, 900] {
        let rules = format!(
            "  - {{ name: queue, limits: [{{ algorithm: leaky_bucket, rate: {configured}/s, max_delay: 1h }}] }}"
        );
        let limiter = limiter_with_clock(&rules, VirtualClock::new());
        let (left, refused) = departures(limiter, 1000).await;
        assert_eq!(refused, 0);
        let order: Vec<usize> = left.iter().map(|(number, _)| *number).collect();
        assert!(order.is_sorted(), "{configured}/s: {order:?}");
        let measured = rate(&left);
        assert!((measured / f64::from(configured) - 1.0).abs() < 0.01, "{measured} instead of {configured}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_request_leaves_early() {
    let rules = "  - { name: queue, limits: [{ algorithm: leaky_bucket, rate: 100/s, max_delay: 1h }] }";
    let (left, _) = departures(limiter_with_clock(rules, VirtualClock::new()), 500).await;
    for (place, (_, at)) in left.iter().enumerate() {
        let earliest = Duration::from_millis(10) * u32::try_from(place).unwrap();
        assert!(*at >= earliest, "number {place} left after {at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_would_wait_longer_than_max_delay_is_refused_at_once() {
    let rules = "  - { name: queue, limits: [{ algorithm: leaky_bucket, rate: 10/s, max_delay: 2s }] }";
    let (left, refused) = departures(limiter_with_clock(rules, VirtualClock::new()), 100).await;
    // The one that goes at once, and two seconds' worth behind it.
    assert_eq!((left.len(), refused), (21, 79));
    assert!(left.last().unwrap().1 <= Duration::from_millis(2_002));
}

/// The figure is the product's promise: an output rate within one percent of the configured one, on real timers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_real_clock_the_rate_is_within_one_percent_too() {
    let rules = "  - { name: queue, limits: [{ algorithm: leaky_bucket, rate: 200/s, max_delay: 1h }] }";
    let (left, _) = departures(limiter_with_clock(rules, SystemClock::new()), 600).await;
    let measured = rate(&left);
    println!("configured 200/s, measured {measured:.3}/s over {} requests", left.len());
    assert!((measured / 200.0 - 1.0).abs() < 0.01, "{measured}");
}
