//! Server-sent events.
//!
//! A slow listener misses events, and one that reads nothing is closed by the admin listener's timeout for unread data.
//! Neither holds more than one event here. The number of listeners is bounded.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::error::RecvError;

use super::problem::Problem;
use crate::control::Control;
use crate::metrics::Metrics;

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

pub(crate) async fn stream(State(control): State<Arc<Control>>) -> Response {
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
    Sse::new(stream).keep_alive(KeepAlive::default()).into_response()
}
