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
mod totals;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::Micros;
use tidegate_limiter::{
    Decided, LateCall, Observer, Overload, RequestResult, RuleResult, RuleWatcher, Settled, Snapshot, Source,
    StoreCall, Traced, Transport,
};
use tidegate_rules::{Priority, Rule, RuleSet};
use tidegate_store::StoreError;

use crate::family::Families;
use crate::registry::Describe;
use durations::Durations;
use exemplars::Exemplars;
use lanes::Lanes;
use limits::LimitTable;
use requests::RequestTable;
use rules::{RuleSeries, RuleTable};
use store::StoreSide;

pub use durations::Reading;
pub use rules::{ExperimentSide, MOST_RULE_SERIES};
pub use totals::Totals;

/// Counts what the limiter and the transports do.
///
/// One per process: pass it to the limiter as its observer, and to a [`Registry`](crate::Registry) for reading. A count
/// never goes down.
#[derive(Default)]
pub struct Metrics {
    requests: RequestTable,
    rules: Mutex<RuleTable>,
    /// Decisions on limits that came with the request instead of from a rule.
    direct: RuleSeries,
    lanes: Lanes<Lane>,
    config: Config,
    limits: LimitTable,
    exemplars: Exemplars,
    /// Why the last call to each server of the store that failed did so.
    last_failures: Mutex<BTreeMap<String, &'static str>>,
    /// How long the control plane's thread worked without a rest.
    control_thread: Durations,
    /// Is told of decisions too.
    decisions: OnceLock<Arc<dyn Observer>>,
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

/// P0 is never shed; it is listed so that a graph can show it.
const PRIORITIES: [(Priority, &str); 4] =
    [(Priority::P0, "P0"), (Priority::P1, "P1"), (Priority::P2, "P2"), (Priority::P3, "P3")];

/// The most servers of the store of which the last failure is known: those of a cluster come and go.
const MOST_SERVERS: usize = 64;

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
    #[must_use]
    pub fn rules_digest(&self) -> u64 {
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

    /// Records why a call to this server of the store failed.
    pub fn server_failed(&self, server: &str, reason: &'static str) {
        let mut last = self.last_failures.lock();
        if let Some(known) = last.get_mut(server) {
            *known = reason;
        } else if last.len() < MOST_SERVERS {
            last.insert(server.to_owned(), reason);
        }
    }

    /// Records that the control plane's thread worked for so long before it rested. Long work is in pieces, between which it looks
    /// at its timers: this is the most that one of them can have taken.
    pub fn control_thread_worked(&self, took: Duration) {
        self.control_thread.record(took, 1);
    }

    /// Also counts hits from now on: StatsD exports them.
    pub fn count_hits(&self) {
        self.counts_hits.store(true, Ordering::Relaxed);
    }

    /// Tells `observer` of decisions and settlements too. Only the first call has an effect.
    pub fn pass_decisions_to(&self, observer: Arc<dyn Observer>) {
        let _ = self.decisions.set(observer);
    }

    /// The requests of each domain since the process started.
    #[must_use]
    pub fn request_totals(&self) -> Vec<(String, Totals)> {
        self.requests.totals()
    }

    /// The decisions of each rule since the process started.
    #[must_use]
    pub fn rule_totals(&self) -> Vec<((String, String), Totals)> {
        self.rules.lock().totals()
    }

    /// The decisions of each side of every experiment on this node: admitted, refused, and refused in shadow.
    #[must_use]
    pub fn experiments(&self) -> BTreeMap<ExperimentSide, [u64; 3]> {
        self.rules.lock().experiments()
    }

    /// The durations of decisions, over all transports.
    #[must_use]
    pub fn decision_times(&self) -> Reading {
        Reading::of(self.lanes.iter().flat_map(|lane| &lane.durations))
    }

    /// The durations of the store's decisions.
    #[must_use]
    pub fn store_times(&self) -> Reading {
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
            log.decided(decided);
        }
        if self.counts_hits.load(Ordering::Relaxed) {
            decided.count_hits();
        }
    }

    fn settled(&self, settled: &Settled<'_>) {
        if let Some(log) = self.decisions.get() {
            log.settled(settled);
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
            StoreError::NotApplied { .. } | StoreError::TooLate { .. } | StoreError::TooLarge { .. } => 0,
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

impl Describe for Metrics {
    fn describe(&self, families: &mut Families) {
        self.requests.describe(families);
        {
            let rules = self.rules.lock();
            rules.describe(&self.direct, families);
            if self.counts_hits.load(Ordering::Relaxed) {
                rules.describe_hits(families);
            }
        }
        self.describe_durations(families);
        let help = "Requests shed because workers were busy, by priority.";
        let shed =
            PRIORITIES.map(|(priority, name)| (name, self.total(|lane| &lane.shed[priority as usize])));
        families.counters_by("priority", ("shed", help), shed);
        let help = "Failed calls to the store. Only not_applied certainly spent nothing.";
        let errors = STORE_ERRORS.into_iter().enumerate();
        let errors = errors.map(|(index, reason)| (reason, self.total(|lane| &lane.store_errors[index])));
        families.counters_by("reason", ("store_errors", help), errors);
        store::describe(&self.lanes, families);
        let help = "Why the last failed call to the store server failed. It stays when the server is well again; see store_up.";
        let family = families.gauges("store_last_failure", help);
        for (server, reason) in &*self.last_failures.lock() {
            family.add([("node", server.clone().into()), ("reason", (*reason).into())], 1);
        }
        if let Some(busy) = durations::histogram([&self.control_thread].into_iter()) {
            let help = "CPU time that the control plane's thread worked before it rested.";
            families.histograms("control_thread_busy_seconds", help).add([], busy);
        }
        let mut counter = |name, help, count: fn(&Lane) -> &AtomicU64| {
            families.counter(name, help, self.total(count));
        };
        counter("unknown_domain", "Requests for a domain that has no rules.", |lane| &lane.unknown_domain);
        counter("no_rule_matched", "Requests that no rule matched.", |lane| &lane.no_rule_matched);
        let help = "Reads of what is left: checks with cost 0, /v1/usage and the admin API. They are not decisions and are not logged.";
        counter("looks", help, |lane| &lane.looks);
        self.config.describe(families);
        self.limits.describe(families);
    }
}

impl Metrics {
    fn describe_durations(&self, families: &mut Families) {
        let help = "Time from a complete request to its answer, by transport.";
        let family = families.histograms("decision_duration_seconds", help);
        for transport in Transport::ALL {
            let of_lanes = self.lanes.iter().map(|lane| &lane.durations[transport as usize]);
            if let Some(mut histogram) = durations::histogram(of_lanes) {
                histogram.exemplars = self.exemplars.of(transport);
                family.add([("transport", transport.name().into())], histogram);
            }
        }
    }
}

impl Config {
    fn describe(&self, families: &mut Families) {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let help = "Version of the rules in use; without a database, the number of rule sets used so far.";
        families.gauge("config_version", help, read(&self.version));
        families.gauge("config_rules", "Rules in use.", read(&self.rules));
        let help = "Digest of the rules in use. Nodes of one release with equal digests run equal rules.";
        families.info("config", help, "digest", format!("{:016x}", read(&self.digest)));
        let help = "1, or 0 while the newest rules are refused and older ones are in use.";
        families.gauge("config_last_reload_success", help, 1 - read(&self.last_reload_failed));
        let help = "Changes of the rules after start, by result.";
        let reloads = [("success", read(&self.reloads)), ("failure", read(&self.failed_reloads))];
        families.counters_by("result", ("config_reloads", help), reloads);
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
