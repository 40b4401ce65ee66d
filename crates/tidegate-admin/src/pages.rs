//! The routes of the admin listener. Owns no socket.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::api;
use crate::control::ControlPlane;
use crate::dashboard;
use crate::low_priority::at_low_priority;
use tidegate_metrics::{Format, Registry};

const INDEX: &str = "\
tidegate admin

GET /metrics   for Prometheus
GET /healthz   200 while this process runs
";

pub(crate) fn router(registry: Arc<Registry>, control: Option<Arc<ControlPlane>>) -> Router {
    let pages = Router::new()
        .route("/healthz", get("ok\n"))
        .route("/metrics", get(metrics))
        .fallback(not_found)
        .with_state(registry);
    match control {
        Some(control) => {
            let rlconfig = get(rlconfig).with_state(Arc::clone(&control));
            api::router(control).merge(dashboard::router()).route("/rlconfig", rlconfig).merge(pages)
        }
        None => pages.route("/", get(INDEX)),
    }
}

async fn metrics(State(registry): State<Arc<Registry>>, headers: HeaderMap) -> impl IntoResponse {
    // Prometheus sends one `Accept` header; if a client splits it, only the first counts.
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    // With ten thousand rules this takes milliseconds, and requests are decided on the same cores.
    let text = at_low_priority(move || registry.read().text(format)).await;
    ([(CONTENT_TYPE, format.content_type())], text)
}

/// As envoyproxy/ratelimit lists its limits on its debug port.
async fn rlconfig(State(control): State<Arc<ControlPlane>>) -> String {
    let rules = control.limiter.snapshot();
    at_low_priority(move || rules.rules().envoy_listing()).await
}

async fn not_found(uri: Uri) -> impl IntoResponse {
    let hint = if is_of_the_data_plane(uri.path()) {
        "this is the admin listener; `serve` prints the address of the HTTP one as `listening http`, by default 127.0.0.1:8080"
    } else {
        "GET / lists the routes"
    };
    (StatusCode::NOT_FOUND, format!("there is nothing at {}\nhint: {hint}\n", uri.path()))
}

/// Whether the HTTP listener answers this path.
fn is_of_the_data_plane(path: &str) -> bool {
    path.starts_with("/v1/") || matches!(path, "/json" | "/healthcheck")
}
