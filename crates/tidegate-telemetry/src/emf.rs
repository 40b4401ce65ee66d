//! CloudWatch's embedded metric format: log lines from which CloudWatch makes metrics.
//!
//! A line on stdout for every set of dimensions, every minute; whoever runs the server sends stdout to CloudWatch Logs. Each
//! combination of dimensions is a metric that is paid for, so they are few: domain and result, and the rules that refused most.

use std::collections::HashMap;
use std::io::Write;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tidegate_metrics::{Families, Series};

use crate::is_without_the_store;

/// The most rules in a round, those that refused most.
const MOST_RULES: usize = 100;
/// The most domains in a round, the busiest.
const MOST_DOMAINS: usize = 100;
/// The longest value of a dimension that CloudWatch takes, in characters.
const LONGEST_VALUE: usize = 1_024;

/// Gauges of the whole node, as CloudWatch names them.
const GAUGES: [(&str, &str, &str); 4] = [
    ("tidegate_worker_busy_ratio", "WorkerBusyRatio", "None"),
    ("tidegate_cells", "Cells", "Count"),
    ("tidegate_store_memory_bytes", "StoreMemory", "Bytes"),
    ("tidegate_queue_depth", "QueueDepth", "Count"),
];

/// Makes lines of one node's metrics.
#[derive(Debug)]
pub struct Emf {
    namespace: String,
    before: HashMap<String, f64>,
}

/// What one line measures.
struct Line<'l> {
    dimensions: &'l [(&'static str, String)],
    metrics: &'l [(&'static str, &'static str, f64)],
}

impl Emf {
    /// Lines for metrics of this namespace.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        Emf { namespace: namespace.to_owned(), before: HashMap::new() }
    }

    /// Writes what `read` returns to `out` at every interval. Runs until dropped.
    pub async fn run<R: Future<Output = Families>>(
        mut self,
        every: Duration,
        read: impl Fn() -> R,
        now_ms: fn() -> u64,
        mut out: impl Write,
    ) {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let mut lines = self.lines(&read().await, now_ms()).join("\n");
            lines.push('\n');
            // In one go, so that no other line of stdout is in between. A closed stdout is no reason to stop.
            let _ = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
        }
    }

    /// The lines of one round: counts since the last one, and gauges.
    #[must_use]
    pub fn lines(&mut self, families: &Families, now_ms: u64) -> Vec<String> {
        let mut lines = self.requests(families, now_ms);
        lines.extend(self.rules(families, now_ms));
        let mut node: Vec<(&str, &str, f64)> = GAUGES
            .iter()
            .filter_map(|(name, shown, unit)| Some((*shown, *unit, families.get(name)?)))
            .collect();
        let errors = families.sum("tidegate_store_errors", &[]);
        node.push(("StoreErrors", "Count", self.since("errors".to_owned(), errors)));
        let down = families.series("tidegate_store_up").iter().filter(|one| one.number() == 0.0).count();
        node.push(("StoreNodesDown", "Count", down as f64));
        lines.push(self.line(now_ms, &Line { dimensions: &[], metrics: &node }));
        lines
    }

    fn requests(&mut self, families: &Families, now_ms: u64) -> Vec<String> {
        let mut sums: HashMap<(String, &'static str), f64> = HashMap::new();
        for series in families.series("tidegate_requests") {
            let metric = match series.label("result") {
                Some("allowed") => "Allowed",
                Some("refused") => "Refused",
                Some("shed") => "Shed",
                _ => continue,
            };
            *sums.entry((label(series, "domain"), metric)).or_default() += series.number();
        }
        let mut domains: HashMap<String, [f64; 3]> = HashMap::new();
        for ((domain, metric), total) in sums {
            let more = self.since(format!("requests {metric} {domain}"), total);
            let place = ["Allowed", "Refused", "Shed"].iter().position(|one| *one == metric).unwrap_or(0);
            domains.entry(domain).or_default()[place] = more;
        }
        let busiest = greatest(domains, |counts: &[f64; 3]| counts.iter().sum(), MOST_DOMAINS);
        let line = |(domain, [allowed, refused, shed]): &(String, [f64; 3])| {
            let metrics =
                [("Allowed", "Count", *allowed), ("Refused", "Count", *refused), ("Shed", "Count", *shed)];
            self.line(now_ms, &Line { dimensions: &[("Domain", domain.clone())], metrics: &metrics })
        };
        busiest.iter().map(line).collect()
    }

    /// Refusals by rule, of the rules that refused most: what a failure policy refuses is the store's doing.
    fn rules(&mut self, families: &Families, now_ms: u64) -> Vec<String> {
        let mut totals: HashMap<(String, String), f64> = HashMap::new();
        let by_a_limit = |one: &&Series| {
            one.label("result") == Some("refused") && !is_without_the_store(one.label("source").unwrap_or(""))
        };
        for series in families.series("tidegate_decisions").iter().filter(by_a_limit) {
            *totals.entry((label(series, "domain"), label(series, "rule"))).or_default() += series.number();
        }
        let mut refused = HashMap::new();
        for ((domain, rule), total) in totals {
            let more = self.since(format!("rule {}:{domain}{rule}", domain.len()), total);
            if more > 0.0 {
                refused.insert((domain, rule), more);
            }
        }
        let line = |((domain, rule), count): &((String, String), f64)| {
            let dimensions = [("Domain", domain.clone()), ("Rule", rule.clone())];
            self.line(now_ms, &Line { dimensions: &dimensions, metrics: &[("RuleRefused", "Count", *count)] })
        };
        greatest(refused, |count: &f64| *count, MOST_RULES).iter().map(line).collect()
    }

    fn since(&mut self, name: String, total: f64) -> f64 {
        (total - self.before.insert(name, total).unwrap_or_default()).max(0.0)
    }

    fn line(&self, now_ms: u64, line: &Line<'_>) -> String {
        let names: Vec<&str> = line.dimensions.iter().map(|(name, _)| *name).collect();
        let metrics: Vec<Value> =
            line.metrics.iter().map(|(name, unit, _)| json!({ "Name": name, "Unit": unit })).collect();
        let mut event = Map::new();
        event.insert(
            "_aws".to_owned(),
            json!({
                "Timestamp": now_ms,
                "CloudWatchMetrics": [{ "Namespace": self.namespace, "Dimensions": [names], "Metrics": metrics }],
            }),
        );
        for (name, value) in line.dimensions {
            // CloudWatch takes no empty one.
            let value: String = if value.trim().is_empty() {
                "-".into()
            } else {
                value.chars().take(LONGEST_VALUE).collect()
            };
            event.insert((*name).to_owned(), value.into());
        }
        event.extend(line.metrics.iter().map(|(name, _, value)| ((*name).to_owned(), json!(value))));
        Value::from(event).to_string()
    }
}

fn label(series: &Series, name: &str) -> String {
    series.label(name).unwrap_or_default().to_owned()
}

/// The greatest of them, by count and then by name.
fn greatest<K: Ord, V>(all: HashMap<K, V>, count: impl Fn(&V) -> f64, most: usize) -> Vec<(K, V)> {
    let mut all: Vec<(K, V)> = all.into_iter().collect();
    all.sort_by(|(a, x), (b, y)| count(y).total_cmp(&count(x)).then_with(|| a.cmp(b)));
    all.truncate(most);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families(rules: usize) -> Families {
        let mut families = Families::default();
        families
            .counters("requests", "")
            .add([("domain", "api".into()), ("result", "refused".into()), ("source", "store".into())], 7);
        let decisions = families.counters("decisions", "");
        for number in 0..rules {
            let rule = format!("rule-{number:04}");
            decisions.add(
                [("domain", "".into()), ("rule", rule.into()), ("result", "refused".into())],
                number as u64,
            );
        }
        families.gauge("cells", "", 3_u64);
        families
    }

    /// What CloudWatch's specification of the format asks of a line.
    fn check(line: &str) -> Value {
        let event: Value = serde_json::from_str(line).unwrap();
        assert!(line.len() <= 256 * 1024 && !line.contains('\n'));
        assert!(event["_aws"]["Timestamp"].is_u64());
        for directive in event["_aws"]["CloudWatchMetrics"].as_array().unwrap() {
            assert!((1..=1_024).contains(&directive["Namespace"].as_str().unwrap().len()));
            let metrics = directive["Metrics"].as_array().unwrap();
            assert!((1..=100).contains(&metrics.len()));
            for metric in metrics {
                assert!(["None", "Count", "Bytes"].contains(&metric["Unit"].as_str().unwrap()));
                assert!(event[metric["Name"].as_str().unwrap()].is_number(), "{metric}");
            }
            for set in directive["Dimensions"].as_array().unwrap() {
                let set = set.as_array().unwrap();
                assert!(set.len() <= 30);
                for name in set {
                    let value = event[name.as_str().unwrap()].as_str().unwrap();
                    assert!(!value.trim().is_empty() && value.chars().count() <= 1_024);
                }
            }
        }
        event
    }

    #[test]
    fn lines_are_what_the_format_asks_for() {
        let mut emf = Emf::new("tidegate");
        let events: Vec<Value> =
            emf.lines(&families(3), 1_700_000_000_000).iter().map(|line| check(line)).collect();
        assert_eq!((&events[0]["Domain"], &events[0]["Refused"]), (&json!("api"), &json!(7.0)));
        assert_eq!((&events[1]["Rule"], &events[1]["RuleRefused"]), (&json!("rule-0002"), &json!(2.0)));
        assert_eq!(events[1]["Domain"], "-");
        assert_eq!(events.last().unwrap()["Cells"], json!(3.0));
        // The second round counts what is new.
        let again = emf.lines(&families(3), 1_700_000_060_000);
        assert_eq!(check(&again[0])["Refused"], json!(0.0));
        assert!(!again.iter().any(|line| line.contains("RuleRefused")));
    }

    #[test]
    fn rules_have_at_most_a_hundred_lines() {
        let lines = Emf::new("tidegate").lines(&families(500), 1);
        let rules: Vec<Value> =
            lines.iter().filter(|line| line.contains("RuleRefused")).map(|line| check(line)).collect();
        assert_eq!((rules.len(), &rules[0]["Rule"]), (100, &json!("rule-0499")));
    }
}
