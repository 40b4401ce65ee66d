//! What goes out with a node's next heartbeat, and what the last one brought.
//!
//! The limiter sends a heartbeat through the store every second, so what is exchanged with it costs no call of its own.

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::published::PublishedRevision;
use crate::store::{Row, StoredQuestion};

/// The most unsent additions; older ones are dropped.
const MOST_UNSENT: usize = 3;
/// Longer notes are not sent.
const LONGEST_NOTE: usize = 16 * 1024;

/// A store's part of [`FleetStore`](crate::FleetStore) that does not wait: every store with a fleet has one.
#[derive(Debug)]
pub struct WithHeartbeat {
    counted: Mutex<Vec<Vec<Row>>>,
    note: Mutex<Vec<u8>>,
    published: watch::Sender<PublishedRevision>,
    questions: watch::Sender<Vec<StoredQuestion>>,
}

impl Default for WithHeartbeat {
    fn default() -> Self {
        WithHeartbeat {
            counted: Mutex::default(),
            note: Mutex::default(),
            published: watch::Sender::new(PublishedRevision::default()),
            questions: watch::Sender::new(Vec::new()),
        }
    }
}

impl WithHeartbeat {
    /// Sets the note sent with the next heartbeats; a note that is too long is not sent.
    pub fn announce(&self, note: Vec<u8>) {
        *self.note.lock() = if note.len() > LONGEST_NOTE { Vec::new() } else { note };
    }

    /// The note to send.
    #[must_use]
    pub fn note(&self) -> Vec<u8> {
        self.note.lock().clone()
    }

    /// Adds counts to the next heartbeat.
    pub fn count(&self, rows: Vec<Row>) {
        let mut counted = self.counted.lock();
        counted.push(rows);
        let surplus = counted.len().saturating_sub(MOST_UNSENT);
        counted.drain(..surplus);
    }

    /// Takes the counts to send.
    #[must_use]
    pub fn take_counts(&self) -> Vec<Vec<Row>> {
        std::mem::take(&mut *self.counted.lock())
    }

    /// The counts of a heartbeat that was certainly not applied go with the next one.
    pub fn count_again(&self, mut unsent: Vec<Vec<Row>>) {
        let mut counted = self.counted.lock();
        unsent.append(&mut counted);
        *counted = unsent;
    }

    /// Passes on the revision that a heartbeat brought.
    pub fn hear(&self, heard: PublishedRevision) {
        replace_if_other(&self.published, heard);
    }

    /// Passes on the questions that a heartbeat brought.
    pub fn hear_questions(&self, heard: Vec<StoredQuestion>) {
        replace_if_other(&self.questions, heard);
    }

    /// The published revision, updated by heartbeats.
    #[must_use]
    pub fn published(&self) -> watch::Receiver<PublishedRevision> {
        self.published.subscribe()
    }

    /// The open questions, updated by heartbeats.
    #[must_use]
    pub fn questions(&self) -> watch::Receiver<Vec<StoredQuestion>> {
        self.questions.subscribe()
    }
}

fn replace_if_other<T: PartialEq>(known: &watch::Sender<T>, heard: T) {
    known.send_if_modified(|known| {
        let is_news = *known != heard;
        *known = heard;
        is_news
    });
}
