//! What a node does every second: reads the counters, records its history, and announces itself.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use tidegate_metrics::{ExperimentSide, Reading};
use tokio::time::{MissedTickBehavior, interval};

use super::fleet::{NEWEST_FORMAT, NodeStatus};
use super::{ControlPlane, Latencies, merged};

impl ControlPlane {
    /// This node's announcement to the fleet.
    pub(crate) fn note(&self) -> NodeStatus {
        let leads = self.published.leads();
        let running = self.rules.now();
        let health = self.limiter.health().to_string();
        let (allowed_per_s, refused_per_s) = self.history.lock().last_rates();
        let store: Vec<String> = self.limiter.nodes().into_iter().map(|node| node.endpoint).collect();
        NodeStatus {
            lost: false,
            id: String::new(),
            name: self.identity.node.clone(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            version: running.version(),
            overrides: running.revision.overrides,
            rules: format!("{:016x}", running.digest),
            lineage: running.revision.lineage.clone(),
            leads,
            error: running.refused.as_ref().map(|(_, why)| why).or(running.unreadable.as_ref()).cloned(),
            started_us: self.identity.started_us,
            allowed_per_s,
            refused_per_s,
            busy: (self.probes.busy)(),
            store: if store.is_empty() { "memory".to_owned() } else { store.join(",") },
            health,
            layout: self.identity.layout.clone(),
            region: self.identity.region.clone(),
            homes: self.limiter.homes().into_iter().map(Into::into).collect(),
            signals: self.alerts.signals.lock().clone(),
            clock_us: self.clock.now().as_micros(),
            serial: 0,
            cannot_read: running.unreadable.is_some() && !leads,
            format: NEWEST_FORMAT,
            last_seen_ms: 0,
        }
    }

    /// Reads the counters once a second, updates this node's announcement, and sends events to the listeners.
    pub(super) async fn keep_history(&self) {
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut last = self.seconds();
        loop {
            ticks.tick().await;
            self.count_second(&mut last);
        }
    }

    /// The current counters.
    #[must_use]
    pub fn seconds(&self) -> LastSecond {
        let (decisions, calls) = (self.metrics.decision_times(), self.metrics.store_times());
        LastSecond { decisions, calls, experiments: self.metrics.experiments(), health: None }
    }

    /// Records the counts since `last`, and sends them with the next heartbeat.
    pub fn count_second(&self, last: &mut LastSecond) {
        let (decisions, calls) = (self.metrics.decision_times(), self.metrics.store_times());
        let added = (decisions.since(&last.decisions), calls.since(&last.calls));
        (last.decisions, last.calls) = (decisions, calls);
        let now_s = self.clock.now().as_micros() / 1_000_000;
        let latencies = Latencies::of(&added.0, &added.1);
        let requests = self.metrics.request_totals().into_iter();
        let totals = requests.map(|(domain, totals)| ((domain, String::new()), totals));
        let totals = totals.chain(self.metrics.rule_totals()).collect();
        let rules = self.history.lock().record(now_s, totals, latencies);
        let experiments = self.metrics.experiments();
        let mut rows = merged::rows_of(&rules, (&added.0, &added.1), *self.alerts.missed.lock());
        rows.extend(merged::experiment_rows(&experiments, &last.experiments));
        last.experiments = experiments;
        self.fleet.count(rows);
        let note = self.note();
        self.fleet.announce(&note);
        if last.health.replace(note.health.clone()).is_some_and(|before| before != note.health) {
            self.events.emit("store", &json!({ "health": note.health }));
        }
        self.events.emit(
            "stats",
            &json!({
                "at_s": now_s,
                "allowed_per_s": note.allowed_per_s,
                "refused_per_s": note.refused_per_s,
                "busy": note.busy,
                "health": note.health,
                "version": note.version,
            }),
        );
    }
}

/// The counters of a node at its last reading.
#[derive(Debug)]
pub struct LastSecond {
    decisions: Reading,
    calls: Reading,
    experiments: BTreeMap<ExperimentSide, [u64; 3]>,
    health: Option<String>,
}
