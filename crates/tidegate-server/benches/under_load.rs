//! What many requests at once cost Redis, and who decides them.
//!
//! `cargo xtask bench under-load` starts a Redis and our binary, offers it more and more requests in flight over 100,000 keys,
//! and prints decisions per second, who decided them, and what each cost Redis in CPU time. Client, server and Redis share
//! the machine, as they would not in production: compare lines of one run.

#![expect(clippy::print_stdout, reason = "the report is the purpose")]

use std::collections::BTreeMap;
use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use serde::Deserialize;
use tidegate_testkit::{Redis, TidegateServer, http};

#[derive(Parser)]
struct Options {
    /// The tidegate binary, which also offers the load.
    #[arg(long, env = "TIDEGATE")]
    ours: Option<PathBuf>,
    /// Seconds of each load.
    #[arg(long, default_value_t = 5)]
    secs: u32,
    /// What `cargo bench` passes; without it (`cargo test --benches`) nothing is measured.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A limit that nobody reaches: refusals are cheaper, so a mix would flatter.
const RULES: &str = "domain: bench\nrules:\n  - { name: per-user, key: [user], on_store_failure: closed, limits: [1000000000/hour] }\n";
const KEYS: &str = "100000";

/// What is offered, and how long the server waits for its store.
struct Shape {
    protocol: &'static str,
    connections: &'static str,
    /// On each connection.
    in_flight: &'static str,
    timeout: &'static str,
}

const fn shape(
    protocol: &'static str,
    connections: &'static str,
    in_flight: &'static str,
    timeout: &'static str,
) -> Shape {
    Shape { protocol, connections, in_flight, timeout }
}

const LOADS: [Shape; 7] = [
    shape("grpc", "1", "1", "10ms"),
    shape("grpc", "1", "64", "10ms"),
    shape("grpc", "4", "64", "10ms"),
    shape("grpc", "8", "128", "10ms"),
    shape("grpc", "8", "128", "2s"),
    shape("resp", "8", "64", "10ms"),
    shape("resp", "8", "128", "10ms"),
];

/// What `tidegate bench` prints.
#[derive(Deserialize)]
struct Load {
    achieved_per_s: f64,
    latency_us: Latency,
}

#[derive(Deserialize)]
struct Latency {
    p50: f64,
    p99: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    if !options.bench {
        return Ok(());
    }
    let Some(ours) = &options.ours else {
        return Err(
            "no tidegate binary; hint: `cargo xtask bench under-load` builds it and passes it on".into()
        );
    };
    let rules = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("under-load-rules.yaml");
    std::fs::write(&rules, RULES)?;
    println!(
        "{KEYS} keys, {} s each; a closed rule, so that nothing is decided but by the store",
        options.secs
    );
    println!(
        "{:22} {:>12} {:>9} {:>9} {:>14} {:>16}  by",
        "load", "decisions/s", "p50 us", "p99 us", "Redis CPU us", "requests a call"
    );
    for shape in &LOADS {
        measure(ours, &rules, shape, options.secs)?;
    }
    Ok(())
}

/// One load on a fresh Redis and a fresh server.
fn measure(ours: &Path, rules: &Path, shape: &Shape, secs: u32) -> Result<(), Box<dyn Error>> {
    let redis = Redis::start();
    let mut arguments = vec!["--log-level", "error", "--store"];
    let url = redis.url();
    let rules = rules.display().to_string();
    arguments.extend([&*url, "--rules", &rules, "--http", "off", "--admin", "127.0.0.1:0"]);
    arguments.extend(["--grpc", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
    let environment = [("TIDEGATE_STORE__TIMEOUT", shape.timeout)];
    let mut server = TidegateServer::start_with_env(ours, &arguments, &environment);
    let (address, admin) = (server.addr(shape.protocol), server.addr("admin"));
    // The first second makes the cells, and warms everything else.
    offer(ours, shape, address, 1)?;
    let before = Figures::read(&redis, admin);
    let load = offer(ours, shape, address, secs)?;
    report(shape, &load, &before, &Figures::read(&redis, admin));
    Ok(())
}

/// As many requests as are answered.
fn offer(ours: &Path, shape: &Shape, address: SocketAddr, secs: u32) -> Result<Load, Box<dyn Error>> {
    let mut load = Command::new(ours);
    load.args(["bench", "--output", "json", "--rate", "closed", "--warm-up", "0s", "--domain", "bench"]);
    load.args(["--protocol", shape.protocol, "--keys", KEYS, "--connections", shape.connections]);
    load.args(["--in-flight", shape.in_flight, "--duration"]).arg(format!("{secs}s"));
    load.arg("--address").arg(address.to_string());
    let output = load.output()?;
    serde_json::from_slice(&output.stdout)
        .map_err(|why| format!("{load:?}: {why}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// What was counted so far.
struct Figures {
    by_source: BTreeMap<String, f64>,
    calls: f64,
    redis_cpu_us: f64,
}

impl Figures {
    fn read(redis: &Redis, admin: SocketAddr) -> Self {
        let metrics = http::get(admin, "/metrics").text();
        let mut by_source = BTreeMap::new();
        let mut calls = 0.0;
        for line in metrics.lines() {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let value: f64 = value.parse().unwrap_or(0.0);
            if name == "tidegate_coalesced_batch_size_count" {
                calls = value;
            }
            if name.starts_with("tidegate_decisions_total{")
                && let Some((_, source)) = name.split_once("source=\"")
                && let Some((source, _)) = source.split_once('"')
            {
                *by_source.entry(source.to_owned()).or_insert(0.0) += value;
            }
        }
        let cpu = redis.cmd(&["INFO", "cpu"]).text();
        let seconds = |name: &str| -> f64 {
            let line = cpu.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|seconds| seconds.trim().parse().ok()).unwrap_or(0.0)
        };
        let redis_cpu_us = (seconds("used_cpu_user") + seconds("used_cpu_sys")) * 1e6;
        Figures { by_source, calls, redis_cpu_us }
    }
}

fn report(shape: &Shape, load: &Load, before: &Figures, after: &Figures) {
    let since = |source: &str| {
        let count = |figures: &Figures| figures.by_source.get(source).copied().unwrap_or(0.0);
        count(after) - count(before)
    };
    let all: f64 = after.by_source.keys().map(|source| since(source)).sum();
    let by: Vec<String> = after
        .by_source
        .keys()
        .filter(|source| since(source) > 0.0)
        .map(|source| format!("{source} {:.2} %", 100.0 * since(source) / all))
        .collect();
    let name = format!("{} {} x {}, {}", shape.protocol, shape.connections, shape.in_flight, shape.timeout);
    println!(
        "{name:22} {:>12.0} {:>9.0} {:>9.0} {:>14.2} {:>16.1}  {}",
        load.achieved_per_s,
        load.latency_us.p50,
        load.latency_us.p99,
        (after.redis_cpu_us - before.redis_cpu_us) / since("store").max(1.0),
        since("store") / (after.calls - before.calls).max(1.0),
        by.join(", "),
    );
}
