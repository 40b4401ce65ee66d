//! The plan, for a person or for a program. It never shows a store's URL: that may contain a password.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;
use tidegate_store_redis::Topology;

use super::Home;
use super::estimate::{Counter, Estimate, Inputs};
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
        writeln!(out, "{}\n", counters_table(&estimate.counters))?;
        if !matches!(home, Some(Home::Redis(..))) {
            writeln!(
                out,
                "Memory store  {} on every node that sees all users",
                bytes(estimate.memory_bytes)
            )?;
        }
        if *home != Some(&Home::Memory) {
            self.write_redis(out)?;
        }
        writeln!(
            out,
            "\nAssumed: {} users active at once who have used all they may, {} requests/s, every request matches every rule",
            grouped(inputs.users),
            grouped(whole(inputs.rate_per_s)),
        )?;
        writeln!(
            out,
            "(--users, --rate, --keys RULE=N); Redis nodes of {} used to {} %, a core used to {} %",
            bytes(inputs.node_memory),
            inputs.memory_use,
            inputs.cpu_use
        )?;
        writeln!(
            out,
            "(--node-memory, --memory-use, --cpu-use). Calls that are coalesced or answered by the deny cache"
        )?;
        writeln!(
            out,
            "make it less. Costs as measured by `cargo xtask bench memory-table` and `redis-costs`."
        )
    }

    fn write_redis(&self, out: &mut impl Write) -> io::Result<()> {
        let estimate = self.estimate;
        writeln!(out, "Redis memory  {}", bytes(estimate.redis_bytes))?;
        writeln!(
            out,
            "Redis calls   {} per second at most, {} per request; {:.2} cores busy",
            grouped(whole(estimate.calls_per_s)),
            estimate.calls_per_request,
            estimate.cores
        )?;
        writeln!(
            out,
            "Redis nodes   {} (for memory {}, for calls {}), and a replica for each that must survive",
            estimate.nodes(),
            estimate.nodes_for_memory,
            estimate.nodes_for_cpu
        )?;
        match self.verdict() {
            Some(verdict) => writeln!(out, "\n{verdict}"),
            None => Ok(()),
        }
    }

    /// What the estimate means for the store in `--store`.
    fn verdict(&self) -> Option<String> {
        let needed = self.estimate.nodes();
        let Some(Home::Redis(topology, Some(servers))) = self.home else { return None };
        if needed <= *servers {
            return Some(format!("The store named by --store is enough: {servers} of {needed} servers."));
        }
        let instead = match topology {
            Topology::Sharded => "name more of them",
            _ => "use redis+cluster:// or redis+sharded://",
        };
        Some(format!("The store named by --store is not enough: {servers} of {needed} servers; {instead}."))
    }

    fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        let PlanReport { inputs, estimate, home } = self;
        let counters: Vec<_> = estimate.counters.iter().map(counter_json).collect();
        let (store, servers) = match home {
            None => (None, None),
            Some(Home::Memory) => (Some("memory"), None),
            Some(Home::Redis(topology, servers)) => (Some(topology.scheme()), *servers),
        };
        let json = json!({
            "counters": counters,
            "memory": { "bytes": estimate.memory_bytes },
            "redis": {
                "bytes": estimate.redis_bytes,
                "calls_per_request": estimate.calls_per_request,
                "calls_per_s": estimate.calls_per_s,
                "cores": estimate.cores,
                "nodes": estimate.nodes(),
                "nodes_for_memory": estimate.nodes_for_memory,
                "nodes_for_calls": estimate.nodes_for_cpu,
            },
            "store": store,
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

fn counters_table(counters: &[Counter]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["RULE", "LIMIT", "ALGORITHM", "KEYS", "BYTES (MEMORY)", "BYTES (REDIS)"]);
    for counter in counters {
        table.add_row([
            counter.rule.clone(),
            counter.name.clone(),
            counter.algorithm.to_owned(),
            grouped(counter.keys),
            grouped(counter.memory_bytes),
            counter.redis_bytes.map_or_else(|| "-".to_owned(), grouped),
        ]);
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn counter_json(counter: &Counter) -> serde_json::Value {
    json!({
        "rule": counter.rule,
        "limit": counter.name,
        "algorithm": counter.algorithm,
        "keys": counter.keys,
        "memory_bytes_each": counter.memory_bytes,
        "redis_bytes_each": counter.redis_bytes,
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
