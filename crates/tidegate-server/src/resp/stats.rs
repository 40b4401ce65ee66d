//! The content of `INFO`.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use std::sync::Arc;
use tidegate_core::Timestamp;
use tidegate_store::Clock;

/// Counts of one process, shared by its workers.
pub(crate) struct Stats {
    clock: Arc<dyn Clock>,
    began: Timestamp,
    accepted: AtomicU64,
    connected: AtomicU64,
    commands: AtomicU64,
}

impl Stats {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let began = clock.now();
        let zero = || AtomicU64::new(0);
        Stats { clock, began, accepted: zero(), connected: zero(), commands: zero() }
    }

    /// Counts a connection until the result is dropped; its id is unique.
    pub(crate) fn connected(self: &Arc<Self>) -> Connected {
        self.connected.fetch_add(1, Ordering::Relaxed);
        Connected { number: self.accepted.fetch_add(1, Ordering::Relaxed) + 1, stats: Arc::clone(self) }
    }

    pub(crate) fn count_commands(&self, more: u64) {
        self.commands.fetch_add(more, Ordering::Relaxed);
    }

    /// The requested sections; all if none is requested.
    pub(crate) fn report(&self, wanted: &[&[u8]]) -> String {
        let uptime_s = self.clock.now().since(self.began).get() / 1_000_000;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed).to_string();
        let sections: [(&str, &[(&str, String)]); 5] = [
            (
                "Server",
                &[
                    // Clients derive the available commands from this.
                    ("redis_version", SPOKEN_VERSION.to_owned()),
                    ("redis_mode", "standalone".to_owned()),
                    ("tidegate_version", env!("CARGO_PKG_VERSION").to_owned()),
                    ("process_id", std::process::id().to_string()),
                    ("uptime_in_seconds", uptime_s.to_string()),
                ],
            ),
            ("Clients", &[("connected_clients", read(&self.connected))]),
            // Some clients wait until a server has loaded its data.
            ("Persistence", &[("loading", "0".to_owned())]),
            (
                "Stats",
                &[
                    ("total_connections_received", read(&self.accepted)),
                    ("total_commands_processed", read(&self.commands)),
                ],
            ),
            ("Replication", &[("role", "master".to_owned()), ("connected_slaves", "0".to_owned())]),
        ];
        let everything = ["all", "everything", "default"];
        let is_wanted = |section: &str| {
            wanted.is_empty()
                || wanted.iter().any(|word| {
                    let asks_for = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
                    asks_for(section) || everything.into_iter().any(asks_for)
                })
        };
        let mut report = String::new();
        for (section, facts) in sections.into_iter().filter(|(section, _)| is_wanted(section)) {
            let gap = if report.is_empty() { "" } else { "\r\n" };
            let _ = write!(report, "{gap}# {section}\r\n");
            for (name, value) in facts {
                let _ = write!(report, "{name}:{value}\r\n");
            }
        }
        report
    }
}

/// The version of Redis whose connection commands are supported.
const SPOKEN_VERSION: &str = "7.0.0";

impl std::fmt::Debug for Stats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stats").field("accepted", &self.accepted).finish_non_exhaustive()
    }
}

/// A connection that counts as open.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) number: u64,
    stats: Arc<Stats>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.stats.connected.fetch_sub(1, Ordering::Relaxed);
    }
}
