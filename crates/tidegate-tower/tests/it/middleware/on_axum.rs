//! What a client of a real axum server sees.

use std::sync::Arc;

use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::routing::get as on_get;
use axum::{Extension, Router};
use serde_json::json;
use tidegate_core::{Micros, Timestamp};
use tidegate_store::ManualClock;
use tidegate_store::conformance::Broken;
use tidegate_tower::RateLimitLayer;
use tidegate_tower::answer::ClosedStatus;
use tidegate_tower::headers::HeaderSet;
use tidegate_tower::identity::{Attributes, Identity, IdentityConfig, Named};

use super::world::{get, limiter, limiter_on, limiter_with_clock, rules, serve};

const PER_CLIENT: &str = "  - { name: per-client, key: [client], limits: [2/minute] }";

fn app() -> Router {
    Router::new().route("/", on_get(|| async { "hello" })).route("/login", on_get(|| async { "login" }))
}

fn layer(rules: &str) -> RateLimitLayer {
    RateLimitLayer::new(limiter(rules), "api").unwrap()
}

#[tokio::test]
async fn an_admitted_request_is_answered_with_what_is_left() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(Micros::from_secs(1_200_000_000).get())));
    let limiter = limiter_with_clock(
        "  - { name: per-client, key: [client], limits: [{ algorithm: fixed_window, limit: 2, window: 1m }] }",
        clock.clone(),
    );
    let server = serve(app().layer(RateLimitLayer::new(limiter, "api").unwrap().clock(clock))).await;
    let answer = get(server, "/").await;
    assert_eq!((answer.status.as_u16(), answer.body.as_ref()), (200, &b"hello"[..]));
    assert_eq!(answer.header("x-ratelimit-limit"), "2");
    assert_eq!(answer.header("x-ratelimit-remaining"), "1");
    assert_eq!(answer.header("x-ratelimit-reset"), "1200000060");
    assert_eq!(answer.header("ratelimit-policy"), r#""per-client";q=2;w=60"#);
    assert_eq!(answer.header("ratelimit"), r#""per-client";r=1;t=60"#);
}

#[tokio::test]
async fn a_refused_request_never_arrives_and_is_told_why() {
    let server = serve(app().layer(layer(PER_CLIENT))).await;
    for _ in 0..2 {
        assert_eq!(get(server, "/").await.status, 200);
    }
    let answer = get(server, "/").await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("content-type"), "application/problem+json");
    let retry_after: u64 = answer.header("retry-after").parse().unwrap();
    // A sliding window still counts part of the one before.
    assert!((1..=120).contains(&retry_after), "{retry_after}");
    assert_eq!(answer.header("x-ratelimit-remaining"), "0");
    let problem = answer.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], json!(["per-client"]));
}

#[tokio::test]
async fn headers_are_sent_as_chosen_and_a_refusal_always_says_when_to_come_back() {
    let layer = layer(PER_CLIENT).headers([HeaderSet::Ietf]);
    let server = serve(app().layer(layer)).await;
    let admitted = get(server, "/").await;
    assert!(
        admitted.headers.contains_key("ratelimit") && !admitted.headers.contains_key("x-ratelimit-limit")
    );
    get(server, "/").await;
    assert!(get(server, "/").await.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn what_no_rule_matches_passes_without_a_word() {
    let rules = "  - { name: login, match: { path: /login }, limits: [1/minute] }";
    let server = serve(app().layer(layer(rules))).await;
    for _ in 0..3 {
        let answer = get(server, "/").await;
        assert_eq!(answer.status, 200);
        assert!(!answer.headers.contains_key("ratelimit"));
    }
    assert_eq!(get(server, "/login").await.status, 200);
    // However it is written.
    assert_eq!(get(server, "//LOGIN/").await.status, 429);
}

#[tokio::test]
async fn a_server_that_does_not_know_its_peers_is_told_what_to_do() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let app = app().layer(layer(PER_CLIENT));
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let answer = get(server, "/").await;
    assert_eq!(answer.status, 500);
    assert!(answer.json()["hint"].as_str().unwrap().contains("into_make_service_with_connect_info"));
}

#[tokio::test]
async fn a_path_that_means_two_things_is_refused() {
    let server = serve(app().layer(layer(PER_CLIENT))).await;
    let answer = get(server, "/v1/a%2Fb/../login").await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["field"], "path");
}

#[tokio::test]
async fn identity_is_read_as_configured() {
    let rules = "  - { name: per-tenant, key: [tenant], limits: [1/minute] }";
    let query = Named(vec![("tenant".to_owned(), "t".to_owned())]);
    let mut config = IdentityConfig::default();
    config.query = query;
    let identity = Arc::new(Identity::new(&config).unwrap());
    let server = serve(
        app().layer(RateLimitLayer::builder(limiter(rules), "api").identity(identity).build().unwrap()),
    )
    .await;
    assert_eq!(get(server, "/?t=a").await.status, 200);
    assert_eq!(get(server, "/?t=b").await.status, 200);
    assert_eq!(get(server, "/?t=a").await.status, 429);
}

/// Who a layer before ours says it is.
#[derive(Clone)]
struct User(&'static str);

#[tokio::test]
async fn a_closure_may_read_what_an_earlier_layer_found_out() {
    let rules =
        "  - { name: per-user, key: [user], limits: [{ algorithm: token_bucket, rate: 1/h, burst: 10 }] }";
    let layer = RateLimitLayer::builder(limiter(rules), "api")
        .extract(["user"], |parts| {
            let mut attributes = Attributes::new();
            if let Some(user) = parts.extensions.get::<User>() {
                attributes.push("user", user.0.as_bytes());
            }
            attributes
        })
        .build()
        .unwrap()
        .cost(|parts| if parts.uri.path() == "/login" { 10 } else { 1 });
    let authenticate = |mut request: Request, next: Next| async {
        let bob = request.uri().query() == Some("bob");
        request.extensions_mut().insert(User(if bob { "bob" } else { "alice" }));
        next.run(request).await
    };
    let server = serve(app().layer(layer).layer(middleware::from_fn(authenticate))).await;
    assert_eq!(get(server, "/").await.header("x-ratelimit-remaining"), "9");
    assert_eq!(get(server, "/login").await.status, 429);
    assert_eq!(get(server, "/login?bob").await.status, 200);
}

#[tokio::test]
async fn a_layer_may_be_put_on_single_routes() {
    let app = Router::new()
        .route("/limited", on_get(|| async { "a" }).layer(layer(PER_CLIENT)))
        .route("/free", on_get(|Extension(User(name))| async move { name }).layer(Extension(User("x"))));
    let server = serve(app).await;
    for _ in 0..3 {
        get(server, "/limited").await;
        assert_eq!(get(server, "/free").await.status, 200);
    }
    assert_eq!(get(server, "/limited").await.status, 429);
}

#[tokio::test]
async fn rules_change_while_requests_go_on() {
    let limiter = limiter(PER_CLIENT);
    let server = serve(app().layer(RateLimitLayer::new(limiter.clone(), "api").unwrap())).await;
    assert_eq!(get(server, "/").await.header("x-ratelimit-remaining"), "1");
    limiter.use_rules(rules("  - { name: per-client, key: [client], limits: [9/minute] }"));
    assert_eq!(get(server, "/").await.header("x-ratelimit-remaining"), "7");
}

#[test]
fn a_domain_that_no_rule_speaks_of_is_refused_at_once() {
    let error = RateLimitLayer::new(limiter(PER_CLIENT), "apj").unwrap_err();
    assert_eq!(error.to_string(), "unknown domain `apj`");
}

#[tokio::test]
async fn a_domain_that_later_rules_no_longer_have_is_refused_as_the_proxy_refuses_it() {
    let limiter = limiter(PER_CLIENT);
    let server = serve(app().layer(RateLimitLayer::new(limiter.clone(), "api").unwrap())).await;
    assert_eq!(get(server, "/").await.status, 200);
    let other = tidegate_rules::Source::new("other.yaml", "{ domain: other, rules: [] }");
    let other = tidegate_rules::RuleSet::compile(&[other], tidegate_rules::Format::Native).unwrap();
    limiter.use_rules(other);
    let answer = get(server, "/").await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["type"].as_str()),
        (500, Some("urn:tidegate:problem:unknown-domain"))
    );
}

#[tokio::test]
async fn a_rule_that_must_not_decide_without_its_store_answers_503() {
    for (policy, status) in [("closed", 503), ("open", 200), ("local", 200)] {
        let rules = format!("  - {{ name: r, limits: [5/minute], on_store_failure: {policy} }}");
        let layer = RateLimitLayer::new(limiter_on(&rules, Broken::AWAY), "api").unwrap();
        let answer = get(serve(app().layer(layer)).await, "/").await;
        assert_eq!(answer.status, status, "{policy}");
        if status == 503 {
            assert_eq!(answer.json()["type"], "urn:tidegate:problem:store-unavailable");
        }
    }
}

#[tokio::test]
async fn closed_status_is_what_the_layer_was_given() {
    let rules = "  - { name: r, limits: [5/minute], on_store_failure: closed }";
    let layer = RateLimitLayer::new(limiter_on(rules, Broken::AWAY), "api")
        .unwrap()
        .closed_status(ClosedStatus::TooManyRequests);
    let answer = get(serve(app().layer(layer)).await, "/").await;
    assert_eq!((answer.status.as_u16(), answer.json()["status"].as_u64()), (429, Some(429)));
    assert_eq!(answer.json()["error"], "store_unavailable");
}
