//! What the admin listener answers. It owns no socket.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::exposition::{Exposition, Format};

const INDEX: &str = "\
tidegate admin

GET /metrics   for Prometheus
GET /healthz   200 while this process runs
";

pub(crate) fn router(exposition: Exposition) -> Router {
    Router::new()
        .route("/", get(INDEX))
        .route("/healthz", get("ok\n"))
        .route("/metrics", get(metrics))
        .fallback(not_found)
        .with_state(Arc::new(exposition))
}

async fn metrics(State(exposition): State<Arc<Exposition>>, headers: HeaderMap) -> impl IntoResponse {
    // Prometheus asks in one header; another that is split in two finds its first.
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    ([(CONTENT_TYPE, format.content_type())], exposition.text(format))
}

async fn not_found(uri: Uri) -> impl IntoResponse {
    (StatusCode::NOT_FOUND, format!("there is nothing at {}\nhint: GET / lists what there is\n", uri.path()))
}
