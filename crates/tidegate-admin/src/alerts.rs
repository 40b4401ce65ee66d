//! What is the matter, between the one who watches and those who ask.

use parking_lot::Mutex;
use tidegate_telemetry::alerts::{
    Alert, Book, Courier, Found, Notice, Silence, Silences, Telling, TrafficStats,
};

/// The book of alerts of one node, to be looked at while it is kept.
#[derive(Debug)]
pub struct AlertDesk(Mutex<Desk>);

#[derive(Debug)]
struct Desk {
    book: Book,
    silences: Silences,
    /// Which node tells, as far as is known.
    teller: String,
}

/// Alerts that are over and shown.
const MOST_SHOWN: usize = 100;
/// What of a summary travels to the other nodes.
const LONGEST_SUMMARY: usize = 200;

/// What alerts take, and what became of those that were told. Each has a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlertStats {
    /// Alerts that are active.
    pub active: u64,
    /// Things that were the matter and found no room.
    pub left_out: u64,
    /// Rules with and without a baseline.
    pub traffic: TrafficStats,
    /// Bodies for the webhook that wait.
    pub waiting: u64,
    /// Bodies that it took.
    pub delivered: u64,
    /// Tries that failed.
    pub failed_tries: u64,
    /// Bodies that were given up.
    pub dropped: u64,
}

impl AlertStats {
    /// The same, with what `courier` did.
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
    /// Opens `book`.
    #[must_use]
    pub fn new(book: Book) -> Self {
        AlertDesk(Mutex::new(Desk { book, silences: Silences::default(), teller: String::new() }))
    }

    /// Takes note of what is the matter at `now_s`: what must be told by this node.
    pub fn step(&self, now_s: u64, found: Found, telling: Telling) -> Vec<Notice> {
        let Desk { book, silences, .. } = &mut *self.0.lock();
        book.step(now_s, found, silences.at(now_s), telling)
    }

    /// Changes the book: the duty to tell goes from one node to another.
    pub fn with_book<T>(&self, change: impl FnOnce(&mut Book) -> T) -> T {
        change(&mut self.0.lock().book)
    }

    /// Reads or changes what is silenced.
    pub fn with_silences<T>(&self, change: impl FnOnce(&mut Silences) -> T) -> T {
        change(&mut self.0.lock().silences)
    }

    /// It is `node` who tells.
    pub fn told_by(&self, node: &str) {
        node.clone_into(&mut self.0.lock().teller);
    }

    /// How many alerts are active, and how many found no room.
    #[must_use]
    pub fn stats(&self) -> AlertStats {
        let book = &self.0.lock().book;
        AlertStats { active: book.active().len() as u64, left_out: book.left_out(), ..AlertStats::default() }
    }

    /// What is the matter now, what was, and who tells.
    pub(crate) fn show(&self) -> (Vec<Alert>, Vec<Alert>, String) {
        let desk = self.0.lock();
        (desk.book.active(), desk.book.over().take(MOST_SHOWN).cloned().collect(), desk.teller.clone())
    }

    /// The worst of what is the matter, silenced or not, in a sentence of bounded length.
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
