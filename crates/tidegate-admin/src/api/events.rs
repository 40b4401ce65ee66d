//! Server-sent events.
//!
//! A slow listener misses events, and one that reads nothing is closed by the admin listener's timeout for unread data.
//! Neither holds more than one event here. The number of listeners is bounded. A stream ends when its caller would no longer
//! be let in: signed out, revoked or expired.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, stream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::error::RecvError;

use super::caller::Caller;
use super::problem::Problem;
use crate::control::Control;
use crate::metrics::Metrics;

/// How often a listener's right to listen is checked.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A listener's permit, until its connection ends.
struct Place {
    _one_of_few: OwnedSemaphorePermit,
    metrics: Arc<Metrics>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.metrics.events.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) async fn stream(
    State(control): State<Arc<Control>>,
    Extension(caller): Extension<Caller>,
) -> Response {
    let counts = &control.metrics.events;
    let Ok(place) = control.listeners.clone().try_acquire_owned() else {
        counts.refused.fetch_add(1, Ordering::Relaxed);
        return Problem::unavailable("there are too many event listeners").into_response();
    };
    counts.listeners.fetch_add(1, Ordering::Relaxed);
    let place = Place { _one_of_few: place, metrics: control.metrics.clone() };
    let events = control.events.subscribe();
    let first = Event::default().event("hello").data(control.revision().to_string());
    let stream = stream::unfold((Some(first), events, place), async |(first, mut events, place)| {
        if let Some(first) = first {
            return Some((Ok::<_, Infallible>(first), (None, events, place)));
        }
        loop {
            match events.recv().await {
                Ok(event) => {
                    let event = Event::default().event(event.name).data(&*event.data);
                    return Some((Ok(event), (None, events, place)));
                }
                Err(RecvError::Lagged(missed)) => {
                    place.metrics.events.missed.fetch_add(missed, Ordering::Relaxed);
                }
                Err(RecvError::Closed) => return None,
            }
        }
    });
    let stream = stream.take_until(has_ended(control.clone(), caller));
    Sse::new(stream).keep_alive(KeepAlive::default()).into_response()
}

/// Waits until the caller would no longer be let in. While the database does not answer, nobody knows, and the stream goes
/// on: it is what shows an outage.
async fn has_ended(control: Arc<Control>, caller: Caller) {
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        if let Ok(false) = caller.is_valid(&control).await {
            return;
        }
    }
}
