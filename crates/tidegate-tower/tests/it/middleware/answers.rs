//! Nothing passes uncounted, and what is answered can be changed: on axum and on tonic.

use std::net::SocketAddr;

use axum::routing::get as on_get;
use axum::{Extension, Router};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tidegate_limiter::Decision;
use tidegate_tower::identity::Attributes;
use tidegate_tower::{LayerError, OnMissingKey, RateLimitLayer, Refusal};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceExt;

use super::world::{get, limiter, rules, serve};

fn layer(rules: &str) -> RateLimitLayer {
    RateLimitLayer::new(limiter(rules), "api").unwrap()
}

fn app() -> Router {
    Router::new().route("/login", on_get(|| async { "in" }))
}

async fn oneshot(app: Router, path: &str) -> Response<axum::body::Body> {
    app.oneshot(Request::get(path).body(axum::body::Body::empty()).unwrap()).await.unwrap()
}

#[tokio::test]
async fn inside_nest_rules_see_the_whole_path() {
    let rules = "  - { name: login, match: { path: /api/login }, limits: [1/minute] }";
    let app = Router::new().nest("/api", app().layer(layer(rules)));
    let server = serve(app).await;
    assert_eq!(get(server, "/api/login").await.status, 200);
    assert_eq!(get(server, "/api/login").await.status, 429);
}

#[tokio::test]
async fn a_test_without_a_peer_is_answered_unless_a_rule_counts_by_it() {
    let by_path = layer("  - { name: login, key: [path], limits: [1/minute] }");
    let app = app().layer(by_path);
    assert_eq!(oneshot(app.clone(), "/login").await.status(), 200);
    assert_eq!(oneshot(app, "/login").await.status(), 429);
    for needs_it in ["key: [client]", "key: [ip]", "match: { ip: '10.*' }"] {
        let by_peer = layer(&format!("  - {{ name: login, {needs_it}, limits: [1/minute] }}"));
        assert_eq!(oneshot(self::app().layer(by_peer), "/login").await.status(), 500, "{needs_it}");
    }
}

#[tokio::test]
async fn a_request_without_the_key_passes_by_its_rule_or_is_refused_by_the_layer() {
    let text = "  - { name: per-user, key: [user], limits: [1/minute] }";
    let build = || RateLimitLayer::builder(limiter(text), "api").also(["user"], |_, _| {}).build().unwrap();
    let (usual, strict) = (build(), build().on_missing_key(OnMissingKey::Refuse));
    assert_eq!(oneshot(app().layer(usual), "/login").await.status(), 200);
    let refused = oneshot(app().layer(strict), "/login").await;
    assert_eq!(refused.status(), 400);
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("per-user"), "{body:?}");
}

#[tokio::test]
async fn a_layer_that_reads_no_key_of_its_rules_does_not_build() {
    let rules = "  - { name: per-client, key: [client], limits: [1/s] }\n  - { name: per-user, key: [ip, user], limits: [1/s] }";
    let error = RateLimitLayer::new(limiter(rules), "api").unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("rule per-user counts by `user`, which this layer does not read"), "{text}");
    assert!(text.contains("the layer reads client, host, ip, method, path;"), "{text}");
    let nothing = RateLimitLayer::builder(limiter(rules), "api").extract(["user"], |_| Attributes::new());
    assert!(matches!(nothing.build(), Err(LayerError::Unread { attribute, .. }) if attribute == "client"));
    let elsewhere = RateLimitLayer::builder(limiter(rules), "api").asked_elsewhere(["user"]);
    assert!(elsewhere.build().is_ok());
    let off = "  - { name: per-user, key: [user], enabled: false, limits: [1/s] }";
    assert!(RateLimitLayer::new(limiter(off), "api").is_ok());
}

#[tokio::test]
async fn a_layer_whose_rules_never_match_what_it_reads_does_not_build() {
    let build = |rule: &str| RateLimitLayer::new(limiter(&format!("  - {{ name: free, {rule} }}")), "api");
    let error = build("match: { plan: free }, key: [ip], limits: [1/s]").unwrap_err();
    assert!(
        matches!(&error, LayerError::Unmatched { rule, attribute, .. } if rule == "free" && attribute == "plan")
    );
    let text = error.to_string();
    assert!(text.starts_with("rule free matches by `plan`, which this layer does not read"), "{text}");
    for never in ["{ plan: free*, path: / }", "{ plan: [free, none] }"] {
        assert!(build(&format!("match: {never}, key: [ip], limits: [1/s]")).is_err(), "{never}");
    }
    // What holds for a request without the attribute, or does not ask for it, counts.
    let tiers = "tiers: { on: plan, default: free, free: [1/s] }";
    for counts in
        ["match: { plan: { not: paid } }, limits: [1/s]", "match: { path: / }, limits: [1/s]", tiers]
    {
        assert!(build(&format!("key: [ip], {counts}")).is_ok(), "{counts}");
    }
    assert!(build("enabled: false, match: { plan: free }, limits: [1/s]").is_ok());
    let rules = "  - { name: free, match: { plan: free }, limits: [1/s] }";
    let elsewhere = RateLimitLayer::builder(limiter(rules), "api").asked_elsewhere(["plan"]);
    assert!(elsewhere.build().is_ok());
}

#[tokio::test]
async fn identity_and_what_a_layer_before_has_found_are_counted_together() {
    #[derive(Clone)]
    struct User(&'static str);
    let text = "  - { name: per-user, match: { path: /login }, key: [user], limits: [1/minute] }";
    let layer = RateLimitLayer::builder(limiter(text), "api").also(["user"], |parts, attributes| {
        if let Some(User(name)) = parts.extensions.get() {
            attributes.push_everywhere("user", name.as_bytes());
        }
    });
    let layer = layer.build().unwrap().on_missing_key(OnMissingKey::Refuse);
    let of = |user| app().layer(layer.clone()).layer(Extension(User(user)));
    assert_eq!(oneshot(of("ann"), "/login").await.status(), 200);
    assert_eq!(oneshot(of("ann"), "/login").await.status(), 429);
    assert_eq!(oneshot(of("bob"), "/login").await.status(), 200);
    assert_eq!(oneshot(app().layer(layer.clone()), "/login").await.status(), 400);
}

#[tokio::test]
async fn a_domain_that_new_rules_no_longer_have_is_an_error_to_every_request() {
    let limiter = limiter("  - { name: r, limits: [9/s] }");
    let app = app().layer(RateLimitLayer::new(limiter.clone(), "api").unwrap());
    assert_eq!(oneshot(app.clone(), "/login").await.status(), 200);
    let source = tidegate_rules::Source::new("other", "{ domain: other, rules: [] }");
    limiter.use_rules(tidegate_rules::RuleSet::compile(&[source], tidegate_rules::Format::Native).unwrap());
    assert_eq!(oneshot(app.clone(), "/login").await.status(), 500);
    limiter.use_rules(rules("  - { name: r, limits: [9/s] }"));
    assert_eq!(oneshot(app, "/login").await.status(), 200);
}

#[tokio::test]
async fn the_service_finds_its_decision_in_the_request() {
    let handler = |Extension(decision): Extension<Decision>| async move {
        format!("{} {:?}", decision.rule().unwrap(), decision.remaining().unwrap())
    };
    let app =
        Router::new().route("/login", on_get(handler)).layer(layer("  - { name: r, limits: [9/minute] }"));
    let body = oneshot(app, "/login").await.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "r 8");
}

#[tokio::test]
async fn of_stacked_layers_the_service_finds_the_decision_of_the_one_next_to_it() {
    let handler =
        |Extension(decision): Extension<Decision>| async move { decision.rule().unwrap().to_owned() };
    let inner = layer("  - { name: inner, limits: [1000/minute] }");
    let outer = layer("  - { name: outer, limits: [2/minute] }");
    let app = Router::new().route("/login", on_get(handler)).layer(inner).layer(outer);
    let body = oneshot(app, "/login").await.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "inner");
}

#[tokio::test]
async fn of_stacked_layers_the_response_lists_all_policies_and_the_tightest_numbers() {
    let tight = || layer("  - { name: tight, limits: [2/minute] }");
    let wide = || layer("  - { name: wide, limits: [1000/minute] }");
    for app in [app().layer(tight()).layer(wide()), app().layer(wide()).layer(tight())] {
        let policies = |response: &Response<axum::body::Body>| -> Vec<String> {
            let all = response.headers().get_all("ratelimit-policy").iter();
            let mut all: Vec<String> = all.map(|one| one.to_str().unwrap().to_owned()).collect();
            all.sort();
            all
        };
        for left in ["1", "0"] {
            let response = oneshot(app.clone(), "/login").await;
            assert_eq!(response.headers()["x-ratelimit-remaining"], left);
            assert_eq!(policies(&response), [r#""tight";q=2;w=60"#, r#""wide";q=1000;w=60"#]);
        }
        let refused = oneshot(app, "/login").await;
        assert_eq!(
            (refused.status(), policies(&refused)[0].as_str()),
            (StatusCode::TOO_MANY_REQUESTS, r#""tight";q=2;w=60"#)
        );
        assert_eq!(refused.headers()["x-ratelimit-remaining"], "0");
    }
}

#[tokio::test]
async fn what_a_response_says_was_for_nothing_is_given_back() {
    let handler = |request: Request<axum::body::Body>| async move {
        if request.headers().contains_key("right") { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
    };
    let limit = layer("  - { name: guesses, limits: [3/minute] }");
    let app = Router::new()
        .route("/login", on_get(handler))
        .layer(limit.refund_when(|response| response.status.is_success()));
    let login = async |name: &str| {
        let request = Request::get("/login").header(name, "yes").body(axum::body::Body::empty()).unwrap();
        app.clone().oneshot(request).await.unwrap()
    };
    for _ in 0..10 {
        assert_eq!(login("right").await.status(), StatusCode::OK);
    }
    for left in ["2", "1", "0"] {
        let wrong = login("wrong").await;
        assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(wrong.headers()["x-ratelimit-remaining"], left);
    }
    assert_eq!(login("wrong").await.status(), StatusCode::TOO_MANY_REQUESTS);
}

/// An answer of one's own, with the rule that refused.
fn own_answer(refusal: &Refusal, _: &http::request::Parts) -> Response<bytes::Bytes> {
    let rule = refusal.decision.as_ref().and_then(|decision| decision.rule()).unwrap_or("?");
    Response::builder()
        .status(418)
        .header("retry-after", "7")
        .body(format!("no tea by {rule}").into())
        .unwrap()
}

#[tokio::test]
async fn a_refusal_is_answered_as_the_service_wants() {
    let app = app().layer(layer("  - { name: tea, limits: [1/minute] }").on_refused(own_answer));
    oneshot(app.clone(), "/login").await;
    let refused = oneshot(app, "/login").await;
    assert_eq!(refused.status(), 418);
    assert_eq!(refused.headers()["retry-after"], "7", "what the answer sets stays");
    assert_eq!(refused.headers()["x-ratelimit-remaining"], "0", "what it does not set is added");
    assert_eq!(refused.into_body().collect().await.unwrap().to_bytes(), "no tea by tea");
}

/// A real tonic server behind these layers, and a client of it.
async fn grpc(outer: RateLimitLayer, inner: RateLimitLayer) -> HealthClient<Channel> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder()
        .layer(outer)
        .layer(inner)
        .add_service(health)
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(async move { server.await.unwrap() });
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(channel.connect().await.unwrap())
}

#[tokio::test]
async fn on_tonic_layers_merge_and_a_refusal_is_a_status_of_ones_own() {
    let answer = |refusal: &Refusal, _: &http::request::Parts| {
        let rule = refusal.decision.as_ref().and_then(|decision| decision.rule()).unwrap_or("?");
        tonic::Status::unavailable(format!("come back: {rule}")).into_http::<bytes::Bytes>()
    };
    let tight = layer("  - { name: tight, key: [client], limits: [1/minute] }").on_refused(answer);
    let mut client = grpc(layer("  - { name: wide, limits: [1000/minute] }"), tight).await;
    let told = client.check(HealthCheckRequest::default()).await.unwrap();
    assert_eq!(told.metadata().get("ratelimit-policy").unwrap(), r#""tight";q=1;w=60"#);
    let status = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (tonic::Code::Unavailable, "come back: tight"));
    assert!(status.metadata().contains_key("retry-after"));
}
