//! The plan, for a person or for a program. It never shows a store's URL: that may contain a password.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;

use super::Home;
use super::estimate::{Counter, Estimate, Inputs};
use super::model::Model;
use crate::args::Output;

pub(super) struct PlanReport<'r> {
    pub(super) inputs: &'r Inputs,
    pub(super) estimate: &'r Estimate,
    pub(super) home: Option<&'r Home>,
}

impl PlanReport<'_> {
    pub(super) fn write(&self, out: &mut impl Write, output: Output) -> io::Result<()> {
        match output {
            Output::Text => self.write_text(out),
            Output::Json => self.write_json(out),
        }
    }

    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let PlanReport { inputs, estimate, home } = self;
        let title = inputs.model.title();
        writeln!(out, "{}\n", counters_table(&estimate.counters, title))?;
        if home.is_none_or(|home| home.model.is_none()) {
            writeln!(
                out,
                "Memory store  {} on every node that sees all users",
                bytes(estimate.memory_bytes)
            )?;
        }
        if home.is_none_or(|home| home.model.is_some()) {
            self.write_shared(title, out)?;
        }
        writeln!(
            out,
            "\nAssumed: {} users active at once who have used all they may, {} requests/s, every request matches every rule",
            grouped(inputs.users),
            grouped(whole(inputs.rate_per_s)),
        )?;
        write!(out, "(--users, --rate, --keys RULE=N)")?;
        if inputs.model.has_nodes() {
            writeln!(
                out,
                "; {title} nodes of {} used to {} %, a core used to {} %",
                bytes(inputs.node_memory),
                inputs.memory_use,
                inputs.cpu_use
            )?;
            write!(out, "(--node-memory, --memory-use, --cpu-use)")?;
        }
        writeln!(out, ". Calls that are coalesced or answered by the deny cache")?;
        let measured = match inputs.model {
            Model::Redis { .. } => "`cargo xtask bench memory-table` and `redis-costs`",
            Model::Other(_) => "`cargo xtask bench stores`",
        };
        writeln!(out, "make it less. Costs as measured by {measured}.")
    }

    fn write_shared(&self, title: &str, out: &mut impl Write) -> io::Result<()> {
        let PlanReport { inputs, estimate, .. } = self;
        writeln!(out, "{title} memory  {}", bytes(estimate.store_bytes))?;
        write!(
            out,
            "{title} calls   {} per second at most, {} per request",
            grouped(whole(estimate.calls_per_s)),
            estimate.calls_per_request,
        )?;
        match estimate.cores > 0.0 {
            true => writeln!(out, "; {:.2} cores busy", estimate.cores)?,
            false => writeln!(out)?,
        }
        if inputs.model.has_nodes() {
            writeln!(
                out,
                "{title} nodes   {} (for memory {}, for calls {}){}",
                estimate.nodes(),
                estimate.nodes_for_memory,
                estimate.nodes_for_cpu,
                match inputs.model {
                    Model::Redis { .. } => ", and a replica for each that must survive",
                    Model::Other(_) => "",
                }
            )?;
        }
        match self.verdict() {
            Some(verdict) => writeln!(out, "\n{verdict}"),
            None => Ok(()),
        }
    }

    /// What the estimate means for the store in `--store`.
    fn verdict(&self) -> Option<String> {
        let needed = self.estimate.nodes();
        let Home { servers: Some(servers), instead, .. } = self.home? else { return None };
        if needed <= *servers {
            return Some(format!("The store named by --store is enough: {servers} of {needed} servers."));
        }
        Some(format!("The store named by --store is not enough: {servers} of {needed} servers; {instead}."))
    }

    fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        let PlanReport { inputs, estimate, home } = self;
        let name = inputs.model.name();
        let counters: Vec<_> = estimate.counters.iter().map(|counter| counter_json(counter, name)).collect();
        let servers = home.and_then(|home| home.servers);
        let nodes = |nodes: u64| inputs.model.has_nodes().then_some(nodes);
        let json = json!({
            "counters": counters,
            "memory": { "bytes": estimate.memory_bytes },
            (name): {
                "bytes": estimate.store_bytes,
                "calls_per_request": estimate.calls_per_request,
                "calls_per_s": estimate.calls_per_s,
                "cores": (estimate.cores > 0.0 || inputs.model.has_nodes()).then_some(estimate.cores),
                "nodes": nodes(estimate.nodes()),
                "nodes_for_memory": nodes(estimate.nodes_for_memory),
                "nodes_for_calls": nodes(estimate.nodes_for_cpu),
            },
            "store": home.map(|home| home.name.as_str()),
            "store_servers": servers,
            "enough": servers.map(|servers| estimate.nodes() <= servers),
            "assumed": {
                "users": inputs.users,
                "rate_per_s": inputs.rate_per_s,
                "node_memory_bytes": inputs.node_memory,
                "memory_use_percent": inputs.memory_use,
                "cpu_use_percent": inputs.cpu_use,
            },
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&json).expect("a plan is plain data"))
    }
}

fn counters_table(counters: &[Counter], store: &str) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let store = format!("BYTES ({})", store.to_uppercase());
    table.set_header(["RULE", "LIMIT", "ALGORITHM", "KEYS", "BYTES (MEMORY)", &store]);
    for counter in counters {
        table.add_row([
            counter.rule.clone(),
            counter.name.clone(),
            counter.algorithm.to_owned(),
            grouped(counter.keys),
            grouped(counter.memory_bytes),
            counter.store_bytes.map_or_else(|| "-".to_owned(), grouped),
        ]);
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn counter_json(counter: &Counter, store: &str) -> serde_json::Value {
    json!({
        "rule": counter.rule,
        "limit": counter.name,
        "algorithm": counter.algorithm,
        "keys": counter.keys,
        "memory_bytes_each": counter.memory_bytes,
        (format!("{store}_bytes_each")): counter.store_bytes,
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is not negative")]
fn whole(value: f64) -> u64 {
    value.ceil() as u64
}

/// Formats a number with digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits")).collect();
    groups.join(",")
}

fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = UNITS.iter().find(|(_, unit)| bytes >= *unit);
    unit.map_or_else(
        || format!("{bytes} bytes"),
        |(name, unit)| format!("{:.1} {name}", bytes as f64 / *unit as f64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three_digits() {
        assert_eq!(["0", "999", "1,000", "12,345,678"], [0, 999, 1_000, 12_345_678].map(grouped).as_slice());
    }

    #[test]
    fn bytes_have_a_fitting_unit() {
        assert_eq!(["12 bytes", "1.5 KiB", "2.0 GiB"], [12, 1_536, 2 << 30].map(bytes).as_slice());
    }
}
