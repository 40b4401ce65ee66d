//! The metrics of the decision log.

use tidegate_decisions::LogStats;
use tidegate_metrics::{Describe, Families};

/// The counts of a decision log, as metrics.
#[derive(Clone, Copy, Debug)]
pub struct DecisionLogMetrics(pub LogStats);

impl Describe for DecisionLogMetrics {
    fn describe(&self, families: &mut Families) {
        let LogStats { kept, dropped, renewals_left_out, bytes, callers, .. } = self.0;
        families.counter("decision_log_lines", "Decisions that were logged.", kept);
        let help = "Logged decisions that could not be written to the file or to stdout in time.";
        families.counter("decision_log_dropped", help, dropped);
        let help =
            "Lease renewals that were not logged: there were more in a second than refusals_per_second.";
        families.counter("decision_log_renewals_left_out", help, renewals_left_out);
        families.gauge("decision_log_bytes", "Memory used by logged decisions.", bytes as u64);
        families.gauge("ranked_callers", "Callers that are ranked, of all rules.", callers as u64);
    }
}
