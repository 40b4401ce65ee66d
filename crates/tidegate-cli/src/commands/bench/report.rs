//! The result of a run, for a person or for a program.

use std::io::{self, Write};
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;

use super::plan::Plan;
use super::tally::Tally;
use crate::args::{Output, Pace, Protocol};

const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];

/// The plan, its results, and how long they took.
pub(super) struct BenchReport<'r> {
    pub(super) plan: &'r Plan,
    pub(super) tally: &'r Tally,
    /// The plan's duration, or longer if the last answers were late.
    pub(super) measured: Duration,
}

impl BenchReport<'_> {
    pub(super) fn write(&self, out: &mut impl Write, output: Output) -> io::Result<()> {
        match output {
            Output::Json => write_json(out, self),
            Output::Text => write_text(out, self),
        }
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.measured.as_secs_f64()
    }
}

fn write_json(out: &mut impl Write, report: &BenchReport<'_>) -> io::Result<()> {
    let BenchReport { plan, tally, measured } = report;
    let micros = |latency: Duration| latency.as_nanos() as f64 / 1000.0;
    let at = |quantile| micros(tally.latency_at(quantile));
    let troubles: serde_json::Map<_, _> =
        tally.troubles.iter().map(|(trouble, count)| (trouble.to_string(), json!(count))).collect();
    let (mode, offered) = match plan.pace {
        Pace::Open { per_second } => ("open", Some(per_second)),
        Pace::Closed => ("closed", None),
    };
    let json = json!({
        "protocol": protocol_name(plan.protocol),
        "address": plan.endpoint.to_string(),
        "loop": mode,
        "connections": plan.connections,
        "in_flight": plan.in_flight,
        "threads": plan.threads,
        "keys": plan.keys,
        "cost": plan.cost,
        "warm_up_s": plan.warm_up.as_secs_f64(),
        "duration_s": plan.duration.as_secs_f64(),
        "measured_s": measured.as_secs_f64(),
        "offered_per_s": offered,
        "achieved_per_s": report.per_second(tally.decided()),
        "allowed": tally.allowed,
        "refused": tally.refused,
        "errors": tally.errors(),
        "errors_by_kind": troubles,
        "first_error": tally.first_complaint,
        "latency_us": {
            "mean": micros(tally.mean_latency()),
            "p50": at(0.5),
            "p90": at(0.9),
            "p99": at(0.99),
            "p99_9": at(0.999),
            "max": micros(tally.longest_latency()),
        },
    });
    writeln!(out, "{json:#}")
}

fn write_text(out: &mut impl Write, report: &BenchReport<'_>) -> io::Result<()> {
    let BenchReport { plan, tally, .. } = report;
    let Plan { endpoint, connections, in_flight, keys, duration, warm_up, .. } = plan;
    let protocol = protocol_name(plan.protocol);
    let pace = match plan.pace {
        Pace::Open { .. } => "open loop",
        Pace::Closed => "closed loop",
    };
    writeln!(
        out,
        "{protocol} {endpoint}: {pace}, {connections} connections x {in_flight} in flight, {keys} keys, \
         {duration:?} after {warm_up:?} of warm-up\n"
    )?;
    writeln!(out, "{}\n", rates(report).trim_fmt())?;
    writeln!(out, "{}", latencies(tally).trim_fmt())?;
    if let Pace::Closed = plan.pace {
        writeln!(
            out,
            "\nlatency from sending; a closed loop waits with the server, so stalls are under-reported"
        )?;
    } else {
        writeln!(out, "\nlatency from the moment each request was due")?;
    }
    for (trouble, count) in &tally.troubles {
        writeln!(out, "{count} errors: {trouble}")?;
    }
    if let Some(complaint) = &tally.first_complaint {
        writeln!(out, "first error: {complaint}")?;
    }
    Ok(())
}

fn rates(report: &BenchReport<'_>) -> Table {
    let BenchReport { plan, tally, .. } = report;
    let mut table = table();
    table.set_header(["", "requests", "per second"]);
    let mut row = |name: &str, count: u64, per_second: f64| {
        table.add_row([name.to_owned(), count.to_string(), format!("{per_second:.1}")]);
    };
    if let Pace::Open { per_second } = plan.pace {
        row("offered", (per_second * plan.duration.as_secs_f64()).round() as u64, per_second);
    }
    let (allowed, refused) = (tally.allowed, tally.refused);
    let rows = [
        ("achieved", tally.decided()),
        ("allowed", allowed),
        ("refused", refused),
        ("errors", tally.errors()),
    ];
    for (name, count) in rows {
        row(name, count, report.per_second(count));
    }
    align_right(&mut table);
    table
}

fn latencies(tally: &Tally) -> Table {
    let mut table = table();
    let names = QUANTILES.iter().map(|(name, _)| *name);
    table.set_header([""].into_iter().chain(names).chain(["max", "mean"]));
    let quantiles = QUANTILES.iter().map(|(_, quantile)| tally.latency_at(*quantile));
    let values = quantiles.chain([tally.longest_latency(), tally.mean_latency()]);
    table.add_row(["latency".to_owned()].into_iter().chain(values.map(readable)));
    align_right(&mut table);
    table
}

/// Three digits and a unit: 85.1us, 1.24ms, 2.50s.
fn readable(latency: Duration) -> String {
    let nanos = latency.as_nanos() as f64;
    let (value, unit) = match latency {
        _ if nanos < 1e6 => (nanos / 1e3, "us"),
        _ if nanos < 1e9 => (nanos / 1e6, "ms"),
        _ => (nanos / 1e9, "s"),
    };
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$}{unit}")
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http => "http",
        Protocol::Grpc => "grpc",
        Protocol::Resp => "resp",
    }
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

fn align_right(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_have_three_digits_and_a_unit() {
        let readable = |nanos| readable(Duration::from_nanos(nanos));
        assert_eq!(readable(85_123), "85.1us");
        assert_eq!(readable(1_240_000), "1.24ms");
        assert_eq!(readable(123_456_789), "123ms");
        assert_eq!(readable(2_500_000_000), "2.50s");
    }
}
