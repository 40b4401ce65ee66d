//! Events for listeners of the admin API: bounded in number, and each sees only what it reads in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_metrics::{Describe, Families};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};

/// The most events queued for a listener; a slower listener misses some.
const MOST_WAITING_EVENTS: usize = 64;

/// The most concurrent event listeners: half of the admin listener's connections.
const MOST_LISTENERS: usize = 64;

/// An event: the name of a route, and the answer of that route now or a part of it.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) name: &'static str,
    pub(crate) data: Arc<str>,
}

/// Counts of event listeners.
#[derive(Debug, Default)]
pub struct EventCounts {
    listeners: AtomicU64,
    refused: AtomicU64,
    missed: AtomicU64,
}

impl Describe for EventCounts {
    fn describe(&self, families: &mut Families) {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        families.gauge("event_listeners", "Listeners to the admin API's events.", read(&self.listeners));
        let help = "Event listeners refused because there were too many.";
        families.counter("event_listeners_refused", help, read(&self.refused));
        let help = "Events that a listener missed because it read too slowly.";
        families.counter("events_missed", help, read(&self.missed));
    }
}

/// Sends events to all listeners.
pub(crate) struct Events {
    sender: broadcast::Sender<Event>,
    places: Arc<Semaphore>,
    counts: Arc<EventCounts>,
}

/// One listener, until it is dropped.
pub(crate) struct Listener {
    events: broadcast::Receiver<Event>,
    counts: Arc<EventCounts>,
    _one_of_few: OwnedSemaphorePermit,
}

impl Events {
    pub(super) fn new(counts: Arc<EventCounts>) -> Self {
        let places = Arc::new(Semaphore::new(MOST_LISTENERS));
        Events { sender: broadcast::Sender::new(MOST_WAITING_EVENTS), places, counts }
    }

    /// Sends an event to the listeners, if there are any.
    pub(super) fn emit(&self, name: &'static str, data: &serde_json::Value) {
        if self.sender.receiver_count() > 0 {
            let _ = self.sender.send(Event { name, data: data.to_string().into() });
        }
    }

    /// A new listener; none if there are too many.
    pub(crate) fn listen(&self) -> Option<Listener> {
        let Ok(one_of_few) = self.places.clone().try_acquire_owned() else {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        self.counts.listeners.fetch_add(1, Ordering::Relaxed);
        Some(Listener {
            events: self.sender.subscribe(),
            counts: self.counts.clone(),
            _one_of_few: one_of_few,
        })
    }
}

impl Listener {
    /// The next event; none once there will be no more.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            match self.events.recv().await {
                Ok(event) => return Some(event),
                Err(RecvError::Lagged(missed)) => {
                    self.counts.missed.fetch_add(missed, Ordering::Relaxed);
                }
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.counts.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}
