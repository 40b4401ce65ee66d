//! What the middleware adds to a bare axum handler, in one run: `cargo xtask bench layer`.
//!
//! Requests go through the router without a socket, so that nothing but the service is measured. Cases take turns, and each
//! figure is the median of its rounds.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a bench measures time and prints it"
)]

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::{Request, Response};
use http_body_util::BodyExt;
use tidegate_limiter::{Limiter, LimiterConfig, NoObserver};
use tidegate_rules::{Format, RuleSet, Source};
use tidegate_store::{Clock, MemoryConfig, MemoryStore, SystemClock};
use tidegate_tower::RateLimitLayer;
use tidegate_tower::identity::{Identity, IdentityConfig, RequestHead};
use tower::ServiceExt;
use tower::util::MapResponseLayer;

const ROUNDS: usize = 15;
const REQUESTS: usize = 20_000;
const CLIENTS: u32 = 1_000;

const PER_CLIENT: &str = "{ name: per-client, key: [client], limits: [{ algorithm: token_bucket, rate: 1000000/s, burst: 1000000 }] }";
const TWO_RULES: &str = "{ name: per-client, key: [client], limits: [1000000/s] }, { name: per-path, key: [client, path], match: { path: '/v1/*' }, limits: [1000000/minute] }";
const AT_ONCE: &str =
    "{ name: at-once, key: [client], limits: [{ algorithm: concurrency, limit: 100, ttl: 60s }] }";
const REFUSED: &str = "{ name: banned, limits: [0/minute] }";

fn bare() -> Router {
    Router::new().route("/v1/items", get(|| async { "hello" }))
}

fn limited(rules: &str) -> Router {
    let source = Source::new("bench.yaml", format!("{{ domain: api, rules: [{rules}] }}"));
    let rules = RuleSet::compile(&[source], Format::Native).unwrap();
    let store = Arc::new(MemoryStore::new(MemoryConfig::default()));
    let limiter = Arc::new(Limiter::new(LimiterConfig::new(rules, store, Arc::new(NoObserver))));
    bare().layer(RateLimitLayer::new(limiter, "api").unwrap())
}

fn request(client: u32) -> Request<Body> {
    let peer = SocketAddr::new(std::net::Ipv4Addr::from(0x0a00_0000 + client).into(), 4711);
    let mut request =
        Request::get("/v1/items?page=3").header("host", "api.example.com").body(Body::empty()).unwrap();
    request.extensions_mut().insert(ConnectInfo(peer));
    request
}

/// Nanoseconds per request of one round.
async fn round(app: &Router) -> f64 {
    let requests: Vec<Request<Body>> =
        (0..REQUESTS).map(|number| request(u32::try_from(number).unwrap() % CLIENTS)).collect();
    let began = Instant::now();
    for request in requests {
        let response = app.clone().oneshot(request).await.unwrap();
        black_box(response.into_body().collect().await.unwrap());
    }
    began.elapsed().as_nanos() as f64 / REQUESTS as f64
}

/// Nanoseconds to read a request's attributes.
fn identity_round(identity: &Identity) -> f64 {
    let (parts, _) = request(7).into_parts();
    let clock = SystemClock::new();
    let peer = Some(std::net::Ipv4Addr::new(10, 0, 0, 7).into());
    let began = Instant::now();
    for _ in 0..REQUESTS {
        let head = RequestHead {
            method: &parts.method,
            uri: &parts.uri,
            headers: &parts.headers,
            peer,
            now: clock.now(),
            forwarded_path: tidegate_tower::identity::ForwardedPath::AsWritten,
        };
        let _ = black_box(identity.attributes(black_box(&head)));
    }
    began.elapsed().as_nanos() as f64 / REQUESTS as f64
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let cases = [
        ("bare axum handler", bare()),
        (
            "a layer that does nothing",
            bare().layer(MapResponseLayer::new(|response: Response<Body>| response)),
        ),
        ("one limit per client", limited(PER_CLIENT)),
        ("two rules, four headers more", limited(TWO_RULES)),
        ("one lease per request", limited(AT_ONCE)),
        ("refused", limited(REFUSED)),
    ];
    let identity = Identity::new(&IdentityConfig::default()).unwrap();
    let mut figures = vec![Vec::new(); cases.len()];
    let mut identities = Vec::new();
    for _ in 0..ROUNDS {
        for ((_, app), figures) in cases.iter().zip(&mut figures) {
            figures.push(round(app).await);
        }
        identities.push(identity_round(&identity));
    }
    let figures: Vec<f64> = figures.into_iter().map(median).collect();
    println!("{REQUESTS} requests, {CLIENTS} clients, median of {ROUNDS} rounds, one core\n");
    println!("{:<32} {:>12} {:>12}", "", "ns/request", "added");
    for ((name, _), figure) in cases.iter().zip(&figures) {
        println!("{name:<32} {figure:>12.0} {:>12.0}", figure - figures[0]);
    }
    println!("{:<32} {:>12.0}", "(of it, reading who it is)", median(identities));
}
