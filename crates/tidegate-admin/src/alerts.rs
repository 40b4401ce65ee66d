//! The alerts of this node, shared by the watcher that updates them and the API that shows them.

use parking_lot::Mutex;
use tidegate_telemetry::alerts::{
    Alert, Book, Courier, Found, Notice, Silence, Silences, Telling, TrafficStats,
};

/// One node's book of alerts, readable while it is being updated.
#[derive(Debug)]
pub struct AlertDesk(Mutex<Desk>);

#[derive(Debug)]
struct Desk {
    book: Book,
    silences: Silences,
    /// The node that sends notices, as far as known.
    teller: String,
}

/// The most ended alerts shown.
const MOST_SHOWN: usize = 100;
/// The most bytes of a summary that other nodes receive.
const LONGEST_SUMMARY: usize = 200;

/// Counts of alerts and of webhook deliveries. Each is bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlertStats {
    /// Active alerts.
    pub active: u64,
    /// Findings dropped because the book was full.
    pub left_out: u64,
    /// Rules with and without a baseline.
    pub traffic: TrafficStats,
    /// Webhook bodies in the queue.
    pub waiting: u64,
    /// Webhook bodies delivered.
    pub delivered: u64,
    /// Failed delivery attempts.
    pub failed_tries: u64,
    /// Webhook bodies given up.
    pub dropped: u64,
}

impl AlertStats {
    /// These counts with those of `courier`.
    #[must_use]
    pub fn with_courier(self, courier: &Courier) -> Self {
        let stats = courier.stats();
        let read = |count: &std::sync::atomic::AtomicU64| count.load(std::sync::atomic::Ordering::Relaxed);
        AlertStats {
            waiting: courier.waiting() as u64,
            delivered: read(&stats.delivered),
            failed_tries: read(&stats.failed_tries),
            dropped: read(&stats.dropped),
            ..self
        }
    }
}

impl AlertDesk {
    /// Shares `book`.
    #[must_use]
    pub fn new(book: Book) -> Self {
        AlertDesk(Mutex::new(Desk { book, silences: Silences::default(), teller: String::new() }))
    }

    /// Records the findings at `now_s`, and returns the notices that this node must send.
    pub fn step(&self, now_s: u64, found: Found, telling: Telling) -> Vec<Notice> {
        let Desk { book, silences, .. } = &mut *self.0.lock();
        book.step(now_s, found, silences.at(now_s), telling)
    }

    /// Changes the book, for example when another node takes over sending notices.
    pub fn with_book<T>(&self, change: impl FnOnce(&mut Book) -> T) -> T {
        change(&mut self.0.lock().book)
    }

    /// Reads or changes the silences.
    pub fn with_silences<T>(&self, change: impl FnOnce(&mut Silences) -> T) -> T {
        change(&mut self.0.lock().silences)
    }

    /// Records that `node` sends the notices.
    pub fn told_by(&self, node: &str) {
        node.clone_into(&mut self.0.lock().teller);
    }

    /// The number of active alerts, and of those dropped for lack of room.
    #[must_use]
    pub fn stats(&self) -> AlertStats {
        let book = &self.0.lock().book;
        AlertStats { active: book.active().len() as u64, left_out: book.left_out(), ..AlertStats::default() }
    }

    /// Active alerts, ended alerts, and the node that sends notices.
    pub(crate) fn show(&self) -> (Vec<Alert>, Vec<Alert>, String) {
        let desk = self.0.lock();
        (desk.book.active(), desk.book.over().take(MOST_SHOWN).cloned().collect(), desk.teller.clone())
    }

    /// The most severe active alert, silenced or not, in a sentence of bounded length.
    #[must_use]
    pub fn worst(&self) -> Option<String> {
        let mut summary = self.0.lock().book.active().into_iter().next()?.summary;
        summary.truncate(summary.floor_char_boundary(LONGEST_SUMMARY));
        Some(summary)
    }

    pub(crate) fn silences(&self, now_s: u64) -> Vec<Silence> {
        self.0.lock().silences.at(now_s).to_vec()
    }
}
