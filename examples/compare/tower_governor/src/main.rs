//! Six common tasks with tower_governor: those that it does.
#![allow(dead_code)]

use std::net::SocketAddr;

use axum::Router;
use http::Request;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::KeyExtractor;
use tower_governor::{GovernorError, GovernorLayer};

// task: 100 a minute for each user
#[derive(Clone)]
struct ByUser;
impl KeyExtractor for ByUser {
    type Key = String;
    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        let user = request.headers().get("x-user").and_then(|user| user.to_str().ok());
        user.map(str::to_owned).ok_or(GovernorError::UnableToExtractKey)
    }
}
fn per_user(app: Router) -> Option<Router> {
    let config = GovernorConfigBuilder::default().key_extractor(ByUser).per_millisecond(600).burst_size(100).finish()?;
    Some(app.layer(GovernorLayer::new(config)))
}
// end

// task: 10 a second, 50 at once
fn burst(app: Router) -> Option<Router> {
    let config = GovernorConfigBuilder::default().per_millisecond(100).burst_size(50).finish()?;
    Some(app.layer(GovernorLayer::new(config)))
}
// end

// task: an axum service, by client address, with headers
async fn service(listener: tokio::net::TcpListener, app: Router) -> Result<(), Box<dyn std::error::Error>> {
    let config = GovernorConfigBuilder::default().per_millisecond(600).burst_size(100).use_headers().finish();
    let app = app.layer(GovernorLayer::new(config.ok_or("a limit of zero")?));
    Ok(axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?)
}
// end

fn main() {
    // It checks with governor, and has no check without HTTP.
    println!("—\n—");
}
