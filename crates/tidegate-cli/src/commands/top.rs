//! `tidegate top`: live activity of a fleet, in a terminal.
//!
//! It polls the admin API and redraws the whole picture. If stdout is not a terminal, it prints one picture and ends.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

use crate::args::{Output, TopArgs};
use crate::commands::admin_client::{AdminClient, runtime};
use crate::commands::rules::{caller, shown};
use crate::failure::Failure;

/// Rates are averaged over this long: single seconds are too noisy.
const WINDOW: &str = "10s";
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(crate) fn run(args: &TopArgs) -> Result<ExitCode, Failure> {
    let client = AdminClient::new(&args.admin)?;
    let watched = io::stdout().is_terminal() && !args.once && args.admin.output == Output::Text;
    loop {
        let picture = Picture::take(&client, args.callers)?;
        let mut out = io::stdout().lock();
        match args.admin.output {
            Output::Json => writeln!(out, "{}", picture.json())?,
            Output::Text if watched => write!(out, "{CLEAR}{}", picture.text(args.rules))?,
            Output::Text => write!(out, "{}", picture.text(args.rules))?,
        }
        out.flush()?;
        drop(out);
        if !watched {
            return Ok(ExitCode::SUCCESS);
        }
        // Timers must be created within a runtime: outside, they panic.
        runtime()?.block_on(async { tokio::time::sleep(args.every).await });
    }
}

/// The data of one picture, as the server sent it.
struct Picture {
    nodes: Value,
    stores: Value,
    latest: Value,
    /// Requests per second, each counted once.
    requests: RequestRates,
    rules: Vec<RuleRates>,
    callers: Vec<Busy>,
}

/// Rates of requests per second, each counted once.
struct RequestRates {
    allowed: f64,
    refused: f64,
    shed: f64,
}

impl RequestRates {
    fn of(total: &Value) -> Self {
        let rate = |column: &str| mean(&total[column]).unwrap_or_default();
        RequestRates { allowed: rate("allowed"), refused: rate("refused"), shed: rate("shed") }
    }

    fn json(&self) -> Value {
        json!({ "allowed_per_s": self.allowed, "refused_per_s": self.refused, "shed_per_s": self.shed })
    }

    fn text(&self) -> String {
        let RequestRates { allowed, refused, shed } = self;
        let all = allowed + refused + shed;
        let part = if all > 0.0 { 100.0 * refused / all } else { 0.0 };
        let shed = if *shed > 0.0 { format!(", {shed:.0} shed") } else { String::new() };
        format!("{all:.0} requests/s: {allowed:.0} allowed, {refused:.0} refused ({part:.1} %){shed}")
    }
}

/// A top caller of a rule.
struct Busy {
    by: &'static str,
    rule: String,
    told: Value,
}

/// A rule's rates per second.
struct RuleRates {
    domain: String,
    rule: String,
    allowed: f64,
    refused: f64,
    shadow_refused: f64,
    fallback: f64,
}

impl RuleRates {
    fn of(series: &Value) -> Self {
        let rate = |column: &str| mean(&series[column]).unwrap_or_default();
        RuleRates {
            domain: shown(&series["domain"]),
            rule: shown(&series["rule"]),
            allowed: rate("allowed"),
            refused: rate("refused"),
            shadow_refused: rate("shadow_refused"),
            fallback: rate("fallback"),
        }
    }

    fn decided(&self) -> f64 {
        self.allowed + self.refused
    }

    fn json(&self) -> Value {
        json!({
            "domain": self.domain,
            "rule": self.rule,
            "allowed_per_s": self.allowed,
            "refused_per_s": self.refused,
            "shadow_refused_per_s": self.shadow_refused,
            "fallback_per_s": self.fallback,
        })
    }
}

impl Picture {
    fn take(client: &AdminClient, most_callers: usize) -> Result<Self, Failure> {
        let stats = client.get(&format!("/stats?from={WINDOW}&step=1s"))?.body;
        let mut rules: Vec<RuleRates> =
            stats["series"].as_array().into_iter().flatten().map(RuleRates::of).collect();
        rules.sort_by(|one, other| other.decided().total_cmp(&one.decided()));
        let last = |column: &str| {
            let mut values = stats[column].as_array().into_iter().flatten();
            values.rfind(|value| !value.is_null()).cloned().unwrap_or_default()
        };
        let latest = json!({
            "decision_p50_us": last("decision_p50_us"),
            "decision_p99_us": last("decision_p99_us"),
            "store_p50_us": last("store_p50_us"),
            "store_p99_us": last("store_p99_us"),
        });
        let requests = RequestRates::of(&stats["total"]);
        let (nodes, stores) = (client.get("/nodes")?.body, client.get("/stores")?.body);
        let mut callers = Vec::new();
        if most_callers > 0 {
            callers.extend(
                ["refused", "used", "near"].into_iter().flat_map(|by| busiest(client, by, most_callers)),
            );
        }
        Ok(Picture { nodes, stores, latest, requests, rules, callers })
    }

    fn json(&self) -> Value {
        let rules: Vec<Value> = self.rules.iter().map(RuleRates::json).collect();
        let callers: Vec<Value> = self.callers.iter().map(Busy::json).collect();
        json!({
            "nodes": self.nodes,
            "stores": self.stores,
            "latency": self.latest,
            "requests": self.requests.json(),
            "rules": rules,
            "callers": callers,
        })
    }

    fn text(&self, most_rules: usize) -> String {
        let mut text = self.summary();
        let warnings = self.nodes["warnings"].as_array().into_iter().flatten();
        warnings.for_each(|warning| {
            let _ = writeln!(text, "warning: {}", shown(warning));
        });
        let mut rules =
            table(&["DOMAIN", "RULE", "ALLOWED/S", "REFUSED/S", "REFUSED", "SHADOW/S", "FALLBACK/S"], 2);
        for one in self.rules.iter().take(most_rules) {
            let share = if one.decided() > 0.0 { 100.0 * one.refused / one.decided() } else { 0.0 };
            let numbers = [one.allowed, one.refused].map(|rate| format!("{rate:.1}"));
            let [allowed, refused] = numbers;
            let (shadow, fallback) = (format!("{:.1}", one.shadow_refused), format!("{:.1}", one.fallback));
            rules.add_row([
                &one.domain,
                &one.rule,
                &allowed,
                &refused,
                &format!("{share:.1}%"),
                &shadow,
                &fallback,
            ]);
        }
        let mut nodes = table(&["NODE", "RELEASE", "HEALTH", "VERSION", "BUSY", "ALLOWED/S", "REFUSED/S"], 3);
        for node in self.nodes["nodes"].as_array().into_iter().flatten() {
            let unless_lost = |text: String| if is_lost(node) { "-".to_owned() } else { text };
            let busy = unless_lost(format!("{:.0}%", 100.0 * node["busy"].as_f64().unwrap_or_default()));
            let health = match &node["error"] {
                Value::Null => shown(&node["health"]),
                error => shown(error),
            };
            let rates = ["allowed_per_s", "refused_per_s"].map(|rate| unless_lost(shown(&node[rate])));
            let [allowed, refused] = rates;
            let (name, release) = (shown(&node["name"]), shown(&node["release"]));
            nodes.add_row([name, release, health, shown(&node["version"]), busy, allowed, refused]);
        }
        let _ =
            write!(text, "\nRule checks, one for each rule that a request matches:\n{rules}\n\n{nodes}\n");
        if !self.callers.is_empty() {
            let mut callers = table(&["MOST", "RULE", "CALLER", "REQUESTS", "AT LEAST", "LEFT"], 3);
            for one in &self.callers {
                let (count, error) = (one.told["count"].as_u64(), one.told["error"].as_u64());
                let (count, error) = (count.unwrap_or(0), error.unwrap_or(0));
                let left = one.told["left_permille"].as_u64();
                callers.add_row([
                    one.by.to_owned(),
                    one.rule.clone(),
                    caller(&one.told["key"]),
                    count.to_string(),
                    count.saturating_sub(error).to_string(),
                    left.map_or_else(|| "-".to_owned(), |left| format!("{:.1}%", left as f64 / 10.0)),
                ]);
            }
            let _ = write!(text, "\n{callers}\n");
        }
        text
    }

    fn summary(&self) -> String {
        let nodes = self.nodes["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
        // The last announcement of a lost node says nothing about now.
        let (lost, alive): (Vec<&Value>, Vec<&Value>) = nodes.iter().partition(|node| is_lost(node));
        let runs = if self.nodes["converged"] == true { "all run it" } else { "not all run it" };
        let lost = if lost.is_empty() { String::new() } else { format!(", {} lost", lost.len()) };
        let nodes = match alive.len() {
            1 => "1 node".to_owned(),
            many => format!("{many} nodes"),
        };
        let time = |name: &str| match self.latest[name].as_f64() {
            Some(us) if us < 1_000.0 => format!("{us:.0} us"),
            Some(us) => format!("{:.1} ms", us / 1_000.0),
            None => "-".to_owned(),
        };
        format!(
            "version {}, {nodes} ({runs}{lost})   store {} {}   {}   p50 {}, p99 {}\n",
            self.nodes["version"],
            shown(&self.stores["kind"]),
            shown(&self.stores["health"]),
            self.requests.text(),
            time("decision_p50_us"),
            time("decision_p99_us"),
        )
    }
}

impl Busy {
    fn json(&self) -> Value {
        let mut value = self.told.clone();
        (value["by"], value["rule"]) = (self.by.into(), self.rule.clone().into());
        value
    }
}

/// The top callers of all rules; empty if the server keeps no decision log.
fn busiest(client: &AdminClient, by: &'static str, most: usize) -> Vec<Busy> {
    let Ok(told) = client.get(&format!("/keys/top?by={by}&limit={most}")) else { return Vec::new() };
    let mut found = Vec::new();
    for rule in told.body["rules"].as_array().into_iter().flatten() {
        let name = format!("{}/{}", shown(&rule["domain"]), shown(&rule["rule"]));
        let callers = rule["callers"].as_array().into_iter().flatten();
        found.extend(callers.map(|told| Busy { by, rule: name.clone(), told: told.clone() }));
    }
    let count = |one: &Busy| u64::MAX - one.told["count"].as_u64().unwrap_or(0);
    let left =
        |one: &Busy| if by == "near" { one.told["left_permille"].as_u64().unwrap_or(u64::MAX) } else { 0 };
    found.sort_by_key(|one| (left(one), count(one)));
    found.truncate(most);
    found
}

/// Whether a node was not heard recently, and did not shut down cleanly.
fn is_lost(node: &Value) -> bool {
    node["lost"] == true
}

/// A table whose first columns are text, and the others numbers.
fn table(columns: &[&str], words: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns);
    for column in table.column_iter_mut().skip(words) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn mean(column: &Value) -> Option<f64> {
    let known: Vec<f64> = column.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_lead_and_a_lost_node_shows_no_rates() {
        let node = |name: &str, lost: bool| json!({ "name": name, "lost": lost, "busy": 0.5, "allowed_per_s": 70, "refused_per_s": 7, "health": "healthy" });
        let picture = Picture {
            nodes: json!({ "version": 3, "converged": true, "nodes": [node("a", false), node("b", true)] }),
            stores: json!({ "kind": "redis", "health": "healthy" }),
            latest: json!({}),
            requests: RequestRates { allowed: 90.0, refused: 10.0, shed: 0.0 },
            rules: Vec::new(),
            callers: Vec::new(),
        };
        let text = picture.text(10);
        assert!(text.contains("1 node (all run it, 1 lost)"), "{text}");
        assert!(text.contains("100 requests/s: 90 allowed, 10 refused (10.0 %)"), "{text}");
        let row = |name: &str| text.lines().find(|line| line.starts_with(&format!(" {name} "))).unwrap();
        assert_eq!((row("a").matches("70").count(), row("b").matches("70").count()), (1, 0), "{text}");
    }
}
