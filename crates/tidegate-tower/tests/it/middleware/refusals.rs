//! A refusal is the same on every surface: the list that proxy and forward-auth are held to holds here too.

use axum::Router;
use axum::routing::get as on_get;
use serde_json::{Value, json};
use tidegate_store::conformance::Broken;
use tidegate_tower::RateLimitLayer;

use super::world::{get, limiter, limiter_on, serve};

const REFUSALS: &str = include_str!("../../../../tidegate-http/tests/refusals.json");
const RULES: &str = "  - { name: per-hour, limits: [1/hour], on_store_failure: closed }";

#[tokio::test]
async fn the_middleware_refuses_in_the_words_of_proxy_and_forward_auth() {
    let refusals: Vec<Value> = serde_json::from_str(REFUSALS).unwrap();
    assert!(refusals.len() >= 3);
    for refusal in &refusals {
        let without_store = refusal["without_store"] == true;
        let limiter = if without_store { limiter_on(RULES, Broken::AWAY) } else { limiter(RULES) };
        let app = Router::new().fallback(on_get(|| async { "here" }));
        let server = serve(app.layer(RateLimitLayer::new(limiter, "api").unwrap())).await;
        get(server, "/").await;
        let answer = get(server, refusal["path"].as_str().unwrap()).await;
        let what = &refusal["what"];
        assert_eq!(json!(answer.status.as_u16()), refusal["status"], "{what}");
        assert_eq!(answer.header("content-type"), "application/problem+json", "{what}");
        assert_eq!(json!(answer.headers.contains_key("retry-after")), refusal["retry_after"], "{what}");
        assert_eq!(answer.json(), refusal["body"], "{what}");
    }
}
