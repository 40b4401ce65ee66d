//! Logs changes between the limiter and its store: one line per change, never one per request. Passes every event on to the
//! metrics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::Micros;
use tidegate_limiter::{
    BreakerState, Decided, LateCall, Observer, Overload, RequestResult, RuleResult, RuleWatcher, Settled,
    Source, StoreCall, Traced, Transport,
};
use tidegate_metrics::Metrics;
use tidegate_rules::{Priority, Rule, RuleSet};
use tidegate_runtime::Occasional;
use tidegate_store::StoreError;
use tidegate_telemetry::SpanQueue;

/// Observes the limiter, counts events, and logs changes.
pub(super) struct LogObserver {
    metrics: Arc<Metrics>,
    /// The last number of limiters logged; 0 while heartbeats fail.
    fleet: AtomicU64,
    /// Requests that could not wait for the store since the last heartbeat, and whether that was logged.
    overloaded: AtomicU64,
    overload_is_known: AtomicBool,
    /// Hits charged since the last line about it, and whether any were since the last heartbeat.
    charged: AtomicU64,
    charges_came: AtomicBool,
    /// Counts requests with an attribute whose name may be mistyped.
    mistyped: Mutex<Occasional>,
    /// The queue for spans of sampled traces, if they are exported.
    spans: Option<Arc<SpanQueue>>,
}

/// The least time between two lines about attributes that may be mistyped.
const MISTYPED_PAUSE: Duration = Duration::from_secs(60);

impl LogObserver {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        LogObserver {
            metrics,
            fleet: AtomicU64::new(0),
            overloaded: AtomicU64::new(0),
            overload_is_known: AtomicBool::new(false),
            charged: AtomicU64::new(0),
            charges_came: AtomicBool::new(false),
            mistyped: Mutex::new(Occasional::every(MISTYPED_PAUSE)),
            spans: None,
        }
    }

    /// Queues sampled traces in `spans`.
    pub(super) fn with_spans(self, spans: Option<Arc<SpanQueue>>) -> Self {
        LogObserver { spans, ..self }
    }

    /// Logs once, when no more follow, how much was charged after an outage: otherwise each of many calls would be a line.
    fn tell_of_charges(&self) {
        if !self.charges_came.swap(false, Ordering::Relaxed) {
            let hits = self.charged.swap(0, Ordering::Relaxed);
            if hits > 0 {
                tracing::info!(
                    hits,
                    "the hits that were spent locally while the store was unavailable are now charged to it"
                );
            }
        }
    }

    /// Logs now and then that the name of a request's attribute may be mistyped, over whatever transport it came: the rule
    /// then limits nobody.
    fn tell_of_mistyped(&self, decided: &Decided<'_>) {
        let Some(found) = decided.mistyped() else { return };
        let mut log = self.mistyped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(requests) = log.happened() {
            drop(log);
            tracing::warn!(
                rule = found.rule,
                domain = found.domain,
                attribute = found.attribute,
                missing = ?found.missing,
                requests,
                "a rule did not count requests that lack an attribute of its key, and have one that no rule uses: \
                 is its name mistyped?"
            );
        }
    }

    /// Logs once that the store is too busy, and once that it no longer is. Runs at each heartbeat.
    fn tell_of_overload(&self) {
        let requests = self.overloaded.swap(0, Ordering::Relaxed);
        match (requests > 0, self.overload_is_known.swap(requests > 0, Ordering::Relaxed)) {
            (true, false) => tracing::warn!(
                requests,
                "the store is overloaded: requests do not get their answers in time, and rules decide by their failure policy, from what this node remembers"
            ),
            (false, true) => tracing::info!("the store answers in time again"),
            _ => {}
        }
    }
}

impl Observer for LogObserver {
    fn breaker_changed(&self, node: &str, state: BreakerState) {
        self.metrics.breaker_changed(node, state);
        match state {
            BreakerState::Open => {
                tracing::warn!(node, "the store does not answer: rules decide by their failure policy");
            }
            BreakerState::HalfOpen => tracing::debug!(node, "sending one trial request to the store"),
            BreakerState::Closed => tracing::info!(node, "the store answers again"),
        }
    }

    fn heartbeat_lost(&self, why: &str) {
        self.metrics.heartbeat_lost(why);
        let text = "the store does not accept heartbeats: the number of limiters that share it is unknown";
        // If the store was never available, that is already logged, and the number of limiters was never known.
        match self.fleet.swap(0, Ordering::Relaxed) {
            0 => tracing::debug!(why, "{text}"),
            _ => tracing::warn!(why, "{text}"),
        }
    }

    fn fleet_counted(&self, limiters: u64) {
        self.metrics.fleet_counted(limiters);
        self.tell_of_overload();
        self.tell_of_charges();
        if self.fleet.swap(limiters, Ordering::Relaxed) != limiters {
            tracing::info!(limiters, "limiters that share the store");
        }
    }

    fn debts_paid(&self, cells: usize, hits: u64, error: Option<&StoreError>) {
        self.metrics.debts_paid(cells, hits, error);
        match error {
            None => {
                self.charged.fetch_add(hits, Ordering::Relaxed);
                self.charges_came.store(true, Ordering::Relaxed);
            }
            Some(error) => {
                tracing::warn!(cells, hits, %error, "hits that were spent locally while the store was unavailable may not be charged to it");
            }
        }
    }

    fn rules_in_use(&self, rules: &RuleSet) {
        self.metrics.rules_in_use(rules);
    }

    fn watch_rule(&self, rule: &Rule) -> Arc<dyn RuleWatcher> {
        self.metrics.watch_rule(rule)
    }

    fn unknown_domain(&self) {
        self.metrics.unknown_domain();
    }

    fn decided(&self, decided: &Decided<'_>) {
        self.metrics.decided(decided);
        self.tell_of_mistyped(decided);
    }

    fn settled(&self, settled: &Settled<'_>) {
        self.metrics.settled(settled);
    }

    fn looked(&self) {
        self.metrics.looked();
    }

    fn request(&self, domain: &str, result: RequestResult, source: Source) {
        self.metrics.request(domain, result, source);
    }

    fn no_rule_matched(&self) {
        self.metrics.no_rule_matched();
    }

    fn shed(&self, priority: Priority) {
        self.metrics.shed(priority);
    }

    fn decided_directly(&self, result: RuleResult, source: Source) {
        self.metrics.decided_directly(result, source);
    }

    fn store_failed(&self, error: &StoreError) {
        self.metrics.store_failed(error);
    }

    fn store_called(&self, call: StoreCall, took: Micros) {
        self.metrics.store_called(call, took);
    }

    fn batch_sent(&self, requests: usize) {
        self.metrics.batch_sent(requests);
    }

    fn overloaded(&self, why: Overload, requests: usize) {
        self.metrics.overloaded(why, requests);
        self.overloaded.fetch_add(requests as u64, Ordering::Relaxed);
    }

    fn late_call(&self, end: LateCall) {
        self.metrics.late_call(end);
    }

    fn deny_cache_hit(&self) {
        self.metrics.deny_cache_hit();
    }

    fn fell_back(&self, source: Source) {
        self.metrics.fell_back(source);
    }

    fn answered(&self, transport: Transport, took: Duration) {
        self.metrics.answered(transport, took);
    }

    fn traced(&self, request: &Traced<'_>) {
        self.metrics.traced(request);
        self.spans.iter().for_each(|spans| spans.put(request));
    }

    fn answered_together(&self, transport: Transport, took: Duration, requests: u64) {
        self.metrics.answered_together(transport, took, requests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repeats::Repeats;
    use crate::repeats::tests::written;

    #[test]
    fn what_many_calls_charge_after_an_outage_is_one_line() {
        let observer = LogObserver::new(Arc::new(Metrics::new()));
        let lines = written(&Repeats::default(), || {
            for _ in 0..2 {
                // Heartbeats continue while hits are charged, and after.
                (0..5).for_each(|_| {
                    (0..100).for_each(|_| observer.debts_paid(1, 3, None));
                    observer.fleet_counted(2);
                });
                (0..5).for_each(|_| observer.fleet_counted(2));
            }
        });
        let charged: Vec<&String> =
            lines.iter().filter(|line| line.contains("are now charged to it")).collect();
        assert_eq!(charged.len(), 2, "one for each outage: {lines:#?}");
        assert!(charged.iter().all(|line| line.contains("hits=1500")), "{charged:#?}");
    }

    #[test]
    fn overload_is_one_line_when_it_begins_and_one_when_it_ends() {
        let observer = LogObserver::new(Arc::new(Metrics::new()));
        let lines = written(&Repeats::default(), || {
            for overloaded in [0, 3, 5, 0, 0] {
                (0..overloaded).for_each(|_| observer.overloaded(Overload::Deadline, 1));
                observer.fleet_counted(1);
            }
        });
        let lines: Vec<&String> = lines.iter().filter(|line| !line.contains("limiters that share")).collect();
        let [begins, ends] = lines[..] else { panic!("{lines:#?}") };
        assert!(begins.contains("WARN") && begins.contains("the store is overloaded"), "{begins}");
        assert!(begins.contains("requests=3"), "{begins}");
        assert!(ends.contains("INFO") && ends.contains("in time again"), "{ends}");
    }
}
