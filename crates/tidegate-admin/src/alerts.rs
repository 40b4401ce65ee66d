//! What is the matter, between the one who watches and those who ask.

use parking_lot::Mutex;
use tidegate_telemetry::alerts::{Alert, Book, Finding, Notice, Silence};

/// The book of alerts of one node, to be looked at while it is kept.
#[derive(Debug)]
pub struct AlertDesk(Mutex<Book>);

/// Alerts that are over and shown.
const MOST_SHOWN: usize = 100;

impl AlertDesk {
    /// Opens `book`.
    #[must_use]
    pub fn new(book: Book) -> Self {
        AlertDesk(Mutex::new(book))
    }

    /// Takes note of what is the matter at `now_s`: what must be told.
    pub fn step(&self, now_s: u64, found: Vec<Finding>) -> Vec<Notice> {
        self.0.lock().step(now_s, found)
    }

    /// How many alerts are active.
    #[must_use]
    pub fn active(&self) -> u64 {
        self.0.lock().active().len() as u64
    }

    /// What is the matter now.
    #[must_use]
    pub fn all_active(&self) -> Vec<Alert> {
        self.0.lock().active()
    }

    /// What is the matter now, and what was.
    pub(crate) fn show(&self) -> (Vec<Alert>, Vec<Alert>) {
        let book = self.0.lock();
        (book.active(), book.over().take(MOST_SHOWN).cloned().collect())
    }

    pub(crate) fn silences(&self) -> Vec<Silence> {
        self.0.lock().silences().to_vec()
    }

    pub(crate) fn silence(&self, silence: Silence) -> Option<u64> {
        self.0.lock().silence(silence)
    }

    pub(crate) fn end_silence(&self, id: u64) -> bool {
        self.0.lock().end_silence(id)
    }
}
