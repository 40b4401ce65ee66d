//! Asks upstream servers now and then whether they are well, so that a request need not find out.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{HeaderValue, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method};
use http_body_util::{BodyExt, Limited};

use super::balance::Group;
use super::body::RequestBody;
use super::dial::{Dialed, Dialer, Wants};
use super::exchange::Outgoing;
use super::settings::HealthCheck;

/// A healthy server need not say much.
const MOST_BYTES: usize = 64 * 1024;

/// Checks one target for ever.
pub(super) async fn watch(group: Arc<Group>, place: usize, dialer: Dialer, check: HealthCheck) {
    let mut ticks = tokio::time::interval(check.every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let well = tokio::time::timeout(check.within, ask(&dialer, &check)).await;
        group.checked(place, well.is_ok_and(|well| well));
    }
}

/// On a connection of its own: what a pooled one answers says nothing about new ones.
async fn ask(dialer: &Dialer, check: &HealthCheck) -> bool {
    let Ok(path) = PathAndQuery::from_maybe_shared(Bytes::from(check.path.clone())) else { return false };
    let Ok(host) = HeaderValue::from_str(&dialer.target.authority()) else { return false };
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, HeaderValue::from_static("tidegate-health"));
    let question = Outgoing {
        method: Method::GET,
        path,
        host,
        headers,
        body: RequestBody::empty(),
        upload: None,
        wants: Wants::Any,
    };
    let answer = match dialer.dial(Wants::Any).await {
        Ok(Dialed::Http1(mut sender)) => sender.send_request(question.into_http1()).await,
        Ok(Dialed::Http2(mut sender)) => sender.send_request(question.into_http2(dialer.scheme())).await,
        Err(_) => return false,
    };
    let Ok(answer) = answer else { return false };
    let well = answer.status().is_success();
    well && Limited::new(answer.into_body(), MOST_BYTES).collect().await.is_ok()
}
