//! The alerts of this node, shared by the watcher that updates them and the API that shows them.

use parking_lot::Mutex;
use tidegate_metrics::{Describe, Families};

use super::active::{ActiveAlerts, Alert, Notice, Sender};
use super::deliver::WebhookQueue;
use super::found::Found;
use super::silences::{Silence, Silences};
use super::traffic::TrafficStats;

/// One node's book of alerts, readable while it is being updated.
#[derive(Debug)]
pub struct SharedAlerts(Mutex<Contents>);

#[derive(Debug)]
struct Contents {
    book: ActiveAlerts,
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

impl Describe for AlertStats {
    fn describe(&self, families: &mut Families) {
        families.gauge("alerts_active", "Alerts that are active, as this node sees it.", self.active);
        let help = "Findings that became no alert because too many were active.";
        families.counter("alerts_left_out", help, self.left_out);
        families.gauge(
            "alert_baselines",
            "Rules with a baseline of their usual traffic.",
            self.traffic.baselines,
        );
        let help = "Rules with traffic in the last minute and no baseline, because too many have one.";
        families.gauge("alert_rules_without_baseline", help, self.traffic.without);
        families.gauge("alert_deliveries_waiting", "Webhook deliveries in the queue.", self.waiting);
        let help = "Webhook deliveries: accepted, failed attempts, and given up or dropped because the queue was full.";
        let results =
            [("delivered", self.delivered), ("failed_try", self.failed_tries), ("dropped", self.dropped)];
        families.counters_by("result", ("alert_deliveries", help), results);
    }
}

impl AlertStats {
    /// These counts with those of `courier`.
    #[must_use]
    pub fn with_courier(self, courier: &WebhookQueue) -> Self {
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

impl SharedAlerts {
    /// Shares `book`.
    #[must_use]
    pub fn new(book: ActiveAlerts) -> Self {
        SharedAlerts(Mutex::new(Contents { book, silences: Silences::default(), teller: String::new() }))
    }

    /// Records the findings at `now_s`, and returns the notices that this node must send.
    pub fn step(&self, now_s: u64, found: Found, telling: Sender) -> Vec<Notice> {
        let Contents { book, silences, .. } = &mut *self.0.lock();
        book.step(now_s, found, silences.at(now_s), telling)
    }

    /// Changes the book, for example when another node takes over sending notices.
    pub fn with_book<T>(&self, change: impl FnOnce(&mut ActiveAlerts) -> T) -> T {
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
    #[must_use]
    pub fn show(&self) -> (Vec<Alert>, Vec<Alert>, String) {
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

    /// The silences at `now_s`.
    #[must_use]
    pub fn silences(&self, now_s: u64) -> Vec<Silence> {
        self.0.lock().silences.at(now_s).to_vec()
    }
}
