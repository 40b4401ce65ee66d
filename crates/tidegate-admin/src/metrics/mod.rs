//! Counters since the process started, incremented by the threads that do the work.
//!
//! Counting costs one relaxed addition to memory that few other threads write to. Reading sums up the lanes, which may be
//! slow: only scrapes do it.

mod durations;
mod exemplars;
mod lanes;
mod limits;
mod requests;
mod rules;
mod store;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use tidegate_core::Micros;
use tidegate_decisions::{DecisionLog, LogStats};
use tidegate_limiter::{
    Decided, LateCall, Observer, Overload, RequestResult, RuleResult, RuleWatcher, Settled, Snapshot, Source,
    StoreCall, Traced, Transport,
};
use tidegate_rules::{Priority, Rule, RuleSet};
use tidegate_store::StoreError;

use crate::control::Totals;
use crate::exposition::{counter, gauge};
use durations::Durations;
pub(crate) use durations::Reading;
use exemplars::Exemplars;
use lanes::Lanes;
use limits::LimitTable;
use requests::RequestTable;
pub(crate) use rules::ExperimentSide;
use rules::{RuleSeries, RuleTable};
use store::StoreSide;

pub use rules::MOST_RULE_SERIES;

/// Counts what the limiter and the transports do.
///
/// One per process: pass it to the limiter as its observer, and to an [`Exposition`](crate::Exposition) for reading. A count
/// never goes down.
#[derive(Default)]
pub struct Metrics {
    requests: RequestTable,
    rules: Mutex<RuleTable>,
    /// Decisions on limits that came with the request instead of from a rule.
    direct: RuleSeries,
    lanes: Lanes<Lane>,
    config: Config,
    pub(crate) events: EventCounts,
    limits: LimitTable,
    exemplars: Exemplars,
    decisions: OnceLock<Arc<DecisionLog>>,
    counts_hits: AtomicBool,
}

/// One lane's counters, other than those of rules.
#[derive(Default)]
struct Lane {
    unknown_domain: AtomicU64,
    no_rule_matched: AtomicU64,
    looks: AtomicU64,
    /// In the order of [`PRIORITIES`].
    shed: [AtomicU64; PRIORITIES.len()],
    /// In the order of [`STORE_ERRORS`].
    store_errors: [AtomicU64; STORE_ERRORS.len()],
    /// In the order of [`Transport::ALL`].
    durations: [Durations; Transport::ALL.len()],
    store: StoreSide,
}

/// Facts about the rules in use.
#[derive(Default)]
struct Config {
    version: AtomicU64,
    rules: AtomicU64,
    digest: AtomicU64,
    reloads: AtomicU64,
    failed_reloads: AtomicU64,
    last_reload_failed: AtomicU64,
}

/// Counts of listeners to the admin API's events.
#[derive(Default)]
pub(crate) struct EventCounts {
    pub(crate) listeners: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) missed: AtomicU64,
}

/// P0 is never shed; it is listed so that a graph can show it.
const PRIORITIES: [(Priority, &str); 4] =
    [(Priority::P0, "P0"), (Priority::P1, "P1"), (Priority::P2, "P2"), (Priority::P3, "P3")];

const STORE_ERRORS: [&str; 3] = ["not_applied", "fate_unknown", "timed_out"];

impl Metrics {
    /// All counters at zero.
    #[must_use]
    pub fn new() -> Self {
        Metrics::default()
    }

    /// Records the rules that the process starts with, or that were set by hand.
    pub fn began_with(&self, snapshot: &Snapshot) {
        self.config.version.store(snapshot.version(), Ordering::Relaxed);
        self.config.rules.store(snapshot.rules().rules().len() as u64, Ordering::Relaxed);
        self.config.digest.store(snapshot.rules().digest(), Ordering::Relaxed);
        self.limits.take(snapshot);
    }

    /// Records that changed rules were taken into use.
    pub fn reloaded(&self, snapshot: &Snapshot) {
        self.began_with(snapshot);
        self.config.last_reload_failed.store(0, Ordering::Relaxed);
        self.config.reloads.fetch_add(1, Ordering::Relaxed);
    }

    /// The digest of the rules in use.
    pub(crate) fn rules_digest(&self) -> u64 {
        self.config.digest.load(Ordering::Relaxed)
    }

    /// Records the database version of the rules in use.
    pub fn runs_version(&self, version: u64) {
        self.config.version.store(version, Ordering::Relaxed);
    }

    /// Records that changed rules were refused; the old ones keep running.
    pub fn reload_failed(&self) {
        self.config.last_reload_failed.store(1, Ordering::Relaxed);
        self.config.failed_reloads.fetch_add(1, Ordering::Relaxed);
    }

    /// Records one round trip to a server of the store, with the store's name for the failure if it failed.
    pub fn server_called(&self, failure: Option<&str>) {
        self.lanes.mine().store.server_called(failure);
    }

    /// OpenMetrics text of these metrics, with exemplars added.
    pub(crate) fn with_exemplars(&self, text: &str) -> String {
        self.exemplars.add_to(text)
    }

    /// Also counts hits from now on: StatsD exports them.
    pub fn count_hits(&self) {
        self.counts_hits.store(true, Ordering::Relaxed);
    }

    /// Passes decisions to `log` too. Only the first call has an effect.
    pub fn keep_decisions(&self, log: Arc<DecisionLog>) {
        let _ = self.decisions.set(log);
    }

    /// Waits until logged decisions are written, for at most `within`. False if some are not.
    pub fn flush_decisions(&self, within: Duration) -> bool {
        self.decisions.get().is_none_or(|log| log.flush(within))
    }

    /// The decision log, if there is one.
    pub(crate) fn decisions(&self) -> Option<&Arc<DecisionLog>> {
        self.decisions.get()
    }

    /// The requests of each domain since the process started.
    pub(crate) fn request_totals(&self) -> Vec<(String, Totals)> {
        self.requests.totals()
    }

    /// The decisions of each rule since the process started.
    pub(crate) fn rule_totals(&self) -> Vec<((String, String), Totals)> {
        self.rules.lock().totals()
    }

    /// The decisions of each side of every experiment on this node: admitted, refused, and refused in shadow.
    pub(crate) fn experiments(&self) -> BTreeMap<ExperimentSide, [u64; 3]> {
        self.rules.lock().experiments()
    }

    /// The durations of decisions, over all transports.
    pub(crate) fn decision_times(&self) -> Reading {
        Reading::of(self.lanes.iter().flat_map(|lane| &lane.durations))
    }

    /// The durations of the store's decisions.
    pub(crate) fn store_times(&self) -> Reading {
        Reading::of(self.lanes.iter().map(|lane| &lane.store.durations[StoreCall::Decide as usize]))
    }

    fn total(&self, count: impl Fn(&Lane) -> &AtomicU64) -> u64 {
        self.lanes.iter().map(|lane| count(lane).load(Ordering::Relaxed)).sum()
    }
}

impl Observer for Metrics {
    fn rules_in_use(&self, rules: &RuleSet) {
        self.requests.watch(rules);
    }

    fn request(&self, domain: &str, result: RequestResult, source: Source) {
        self.requests.count(domain, result, source);
    }

    fn watch_rule(&self, rule: &Rule) -> Arc<dyn RuleWatcher> {
        self.rules.lock().watch(rule)
    }

    fn unknown_domain(&self) {
        self.lanes.mine().unknown_domain.fetch_add(1, Ordering::Relaxed);
    }

    fn decided(&self, decided: &Decided<'_>) {
        if let Some(log) = self.decisions.get() {
            log.hear(decided);
        }
        if self.counts_hits.load(Ordering::Relaxed) {
            decided.count_hits();
        }
    }

    fn settled(&self, settled: &Settled<'_>) {
        if let Some(log) = self.decisions.get() {
            log.hear_settled(settled);
        }
    }

    fn looked(&self) {
        self.lanes.mine().looks.fetch_add(1, Ordering::Relaxed);
    }

    fn no_rule_matched(&self) {
        self.lanes.mine().no_rule_matched.fetch_add(1, Ordering::Relaxed);
    }

    fn shed(&self, priority: Priority) {
        self.lanes.mine().shed[priority as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn store_failed(&self, error: &StoreError) {
        let reason = match error {
            StoreError::NotApplied { .. } | StoreError::TooLate { .. } => 0,
            StoreError::FateUnknown { .. } => 1,
            _ => 2,
        };
        self.lanes.mine().store_errors[reason].fetch_add(1, Ordering::Relaxed);
    }

    fn store_called(&self, call: StoreCall, took: Micros) {
        self.lanes.mine().store.durations[call as usize].record(took.into(), 1);
    }

    fn batch_sent(&self, requests: usize) {
        self.lanes.mine().store.batches.record(requests);
    }

    fn overloaded(&self, why: Overload, requests: usize) {
        self.lanes.mine().store.overloads[why as usize].fetch_add(requests as u64, Ordering::Relaxed);
    }

    fn late_call(&self, end: LateCall) {
        self.lanes.mine().store.late_call(end);
    }

    fn deny_cache_hit(&self) {
        self.lanes.mine().store.deny_cache_hits.fetch_add(1, Ordering::Relaxed);
    }

    fn fell_back(&self, source: Source) {
        self.lanes.mine().store.fell_back(source);
    }

    fn debts_paid(&self, _cells: usize, hits: u64, error: Option<&StoreError>) {
        if error.is_none() {
            self.lanes.mine().store.hits_repaid.fetch_add(hits, Ordering::Relaxed);
        }
    }

    fn decided_directly(&self, result: RuleResult, source: Source) {
        self.direct.decided(result, source);
    }

    fn answered(&self, transport: Transport, took: Duration) {
        self.answered_together(transport, took, 1);
    }

    fn traced(&self, request: &Traced<'_>) {
        self.exemplars.note(request);
    }

    fn answered_together(&self, transport: Transport, took: Duration, requests: u64) {
        self.lanes.mine().durations[transport as usize].record(took, requests);
    }
}

/// Lets a registry read the counters while they change.
#[derive(Debug)]
pub(crate) struct Reader(pub(crate) Arc<Metrics>);

impl Collector for Reader {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let metrics = &*self.0;
        metrics.requests.encode(&mut encoder)?;
        metrics.rules.lock().encode(&metrics.direct, &mut encoder)?;
        if metrics.counts_hits.load(Ordering::Relaxed) {
            metrics.rules.lock().encode_hits(&mut encoder)?;
        }
        durations::encode(&mut encoder, &metrics.lanes)?;
        metrics.encode_shed(&mut encoder)?;
        metrics.encode_store_errors(&mut encoder)?;
        store::encode(&mut encoder, &metrics.lanes)?;
        let unknown = metrics.total(|lane| &lane.unknown_domain);
        counter(&mut encoder, "unknown_domain", "Requests for a domain that has no rules.", unknown)?;
        let unmatched = metrics.total(|lane| &lane.no_rule_matched);
        counter(&mut encoder, "no_rule_matched", "Requests that no rule matched.", unmatched)?;
        let looks = metrics.total(|lane| &lane.looks);
        let about = "Looks at what is left: checks with cost 0, /v1/usage and the admin API. They are no decisions, and are not logged.";
        counter(&mut encoder, "looks", about, looks)?;
        if let Some(log) = metrics.decisions() {
            encode_decisions(&log.stats(), &mut encoder)?;
        }
        metrics.config.encode(&mut encoder)?;
        metrics.events.encode(&mut encoder)?;
        metrics.limits.encode(&mut encoder)
    }
}

impl Metrics {
    fn encode_shed(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests shed because workers were busy, by how critical they were.";
        let mut family = encoder.encode_descriptor("shed", help, None, MetricType::Counter)?;
        for (priority, name) in PRIORITIES {
            let shed = self.total(|lane| &lane.shed[priority as usize]);
            ConstCounter::new(shed).encode(family.encode_family(&[("priority", name)])?)?;
        }
        Ok(())
    }

    fn encode_store_errors(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Calls that the store did not answer; only not_applied certainly spent nothing.";
        let mut family = encoder.encode_descriptor("store_errors", help, None, MetricType::Counter)?;
        for (place, reason) in STORE_ERRORS.into_iter().enumerate() {
            let errors = self.total(|lane| &lane.store_errors[place]);
            ConstCounter::new(errors).encode(family.encode_family(&[("reason", reason)])?)?;
        }
        Ok(())
    }
}

fn encode_decisions(stats: &LogStats, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    counter(encoder, "decision_log_lines", "Decisions that were kept.", stats.kept)?;
    let help = "Kept decisions that could not be written to the file or to stdout in time.";
    counter(encoder, "decision_log_dropped", help, stats.dropped)?;
    let help = "Renewals of leases that were not kept: more came in a second than refusals_per_second.";
    counter(encoder, "decision_log_renewals_left_out", help, stats.renewals_left_out)?;
    gauge(encoder, "decision_log_bytes", "Memory that kept decisions take.", stats.bytes as u64)?;
    gauge(encoder, "ranked_callers", "Callers that are ranked, of all rules.", stats.callers as u64)
}

impl EventCounts {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        gauge(encoder, "event_listeners", "Listeners to the admin API's events.", read(&self.listeners))?;
        let help = "Listeners to events that were turned away: as many as may listen did.";
        counter(encoder, "event_listeners_refused", help, read(&self.refused))?;
        let help = "Events that a listener missed because it read too slowly.";
        counter(encoder, "events_missed", help, read(&self.missed))
    }
}

impl Config {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let help = "The rule set in use: one more with each that was taken into use.";
        gauge(encoder, "config_version", help, read(&self.version))?;
        gauge(encoder, "config_rules", "Rules in use.", read(&self.rules))?;
        let help = "What the rules in use decide, as a digest: nodes of one release with the same one run the same rules.";
        let mut info = encoder.encode_descriptor("config", help, None, MetricType::Info)?;
        let digest = format!("{:016x}", read(&self.digest));
        info.encode_info(&[("digest", digest.as_str())])?;
        let help = "1, or 0 while the rules on offer are refused and older ones are in use.";
        gauge(encoder, "config_last_reload_success", help, 1 - read(&self.last_reload_failed))?;
        let help = "Rule sets that were offered after the first.";
        let mut family = encoder.encode_descriptor("config_reloads", help, None, MetricType::Counter)?;
        for (result, count) in [("success", &self.reloads), ("failure", &self.failed_reloads)] {
            ConstCounter::new(read(count)).encode(family.encode_family(&[("result", result)])?)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_number_themselves_as_their_list_does() {
        assert!(PRIORITIES.into_iter().enumerate().all(|(place, (priority, _))| priority as usize == place));
    }
}
