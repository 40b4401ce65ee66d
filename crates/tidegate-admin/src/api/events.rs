//! Server-sent events.
//!
//! A slow listener misses events, and one that reads nothing is closed by the admin listener's timeout for unread data.
//! Neither holds more than one event here. The number of listeners is bounded. A stream ends when its caller would no longer
//! be let in: signed out, revoked or expired.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, stream};

use super::caller::Caller;
use super::problem::Problem;
use crate::control::ControlPlane;

/// How often a listener's right to listen is checked.
const CHECK_EVERY: Duration = Duration::from_secs(1);

pub(crate) async fn stream(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
) -> Response {
    let Some(listener) = control.events.listen() else {
        return Problem::unavailable("there are too many event listeners").into_response();
    };
    let first = Event::default().event("hello").data(control.rules.published_number().to_string());
    let stream = stream::unfold((Some(first), listener), async |(first, mut listener)| {
        if let Some(first) = first {
            return Some((Ok::<_, Infallible>(first), (None, listener)));
        }
        let event = listener.next().await?;
        Some((Ok(Event::default().event(event.name).data(&*event.data)), (None, listener)))
    });
    let stream = stream.take_until(has_ended(control.clone(), caller));
    Sse::new(stream).keep_alive(KeepAlive::default()).into_response()
}

/// Waits until the caller would no longer be let in. While the database does not answer, nobody knows, and the stream goes
/// on: it is what shows an outage.
async fn has_ended(control: Arc<ControlPlane>, caller: Caller) {
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        if let Ok(false) = caller.is_valid(&control).await {
            return;
        }
    }
}
