//! Alternates between servers and prints what each request cost.

use crate::process::{Server, pinned};
use serde::Deserialize;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate_testkit::Redis;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The tidegate binary, which also offers the load.
    #[arg(long, env = "TIDEGATE")]
    ours: Option<PathBuf>,
    /// The binary of another profile, measured beside it.
    #[arg(long)]
    beside: Option<PathBuf>,
    /// Measurements of each server.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds of load per measurement.
    #[arg(long, default_value_t = 3)]
    secs: u32,
    /// Only this transport.
    #[arg(long)]
    only: Option<Transport>,
    /// Also measure our server with a Redis behind it, which runs on the load generator's core.
    #[arg(long)]
    redis: bool,
    /// The servers' core.
    #[arg(long, default_value_t = 0)]
    server_core: usize,
    /// The load generator's core.
    #[arg(long, default_value_t = 1)]
    client_core: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Transport {
    /// 4 connections of 16 streams.
    Grpc,
    /// 32 connections.
    Http,
}

const KEYS: &str = "100000";

/// A limit that nobody reaches: refusals are cheaper, so a mix would flatter.
const RULES: &str = "\
domain: bench
rules:
  - name: per-user
    key: [user]
    limits: [1000000000/hour]
";

impl Transport {
    fn listener(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Http => "http",
        }
    }

    fn reference(self) -> &'static str {
        match self {
            Self::Grpc => "bare-tonic",
            Self::Http => "bare-axum",
        }
    }

    /// Connections, and requests in flight on each.
    fn load(self) -> [&'static str; 2] {
        match self {
            Self::Grpc => ["4", "16"],
            Self::Http => ["32", "1"],
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let Some(ours) = &options.ours else {
        return Err("no tidegate binary; hint: `cargo xtask bench server` builds it and passes it on".into());
    };
    let rules = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bench-rules.yaml");
    std::fs::write(&rules, RULES)?;

    for transport in [Transport::Grpc, Transport::Http] {
        if options.only.is_some_and(|only| only != transport) {
            continue;
        }
        let mut reference = pinned(options.server_core, &std::env::current_exe()?);
        reference.arg(transport.reference());
        let tidegate = |binary: &Path, store: &str| {
            let mut tidegate = pinned(options.server_core, binary);
            // A busy machine must not make it decide without its store: that would be cheaper.
            tidegate.env("TIDEGATE_STORE__TIMEOUT", "5s");
            tidegate.args(["serve", "--log-level", "warn", "--store", store, "--rules"]).arg(&rules);
            tidegate.args([
                "--http",
                "127.0.0.1:0",
                "--grpc",
                "127.0.0.1:0",
                "--resp",
                "off",
                "--admin",
                "off",
            ]);
            tidegate
        };
        let mut contestants = vec![
            Contestant::start(transport.reference(), reference, transport)?,
            Contestant::start("tidegate", tidegate(ours, "memory:"), transport)?,
        ];
        if let Some(other) = &options.beside {
            contestants.push(Contestant::start("other build", tidegate(other, "memory:"), transport)?);
        }
        let redis = options.redis.then(|| redis_on(options.client_core)).transpose()?;
        if let Some(redis) = &redis {
            contestants.push(Contestant::start("on Redis", tidegate(ours, &redis.url()), transport)?);
        }
        for round in 0..=options.rounds {
            for contestant in &mut contestants {
                let run = contestant.measure(&mut offer(transport, options, ours))?;
                // The first round warms caches, branch predictors and the store.
                if round > 0 {
                    contestant.runs.push(run);
                }
            }
        }
        report(transport, &contestants);
    }
    Ok(())
}

/// A Redis on this core: not on the servers', whose time is measured.
fn redis_on(core: usize) -> Result<Redis, Box<dyn Error>> {
    let redis = Redis::start();
    let pid = redis.process().pid().to_string();
    let moved = Command::new("taskset").args(["-a", "-c", "-p", &core.to_string(), &pid]).output()?;
    if !moved.status.success() {
        return Err(format!("cannot pin Redis: {}", String::from_utf8_lossy(&moved.stderr)).into());
    }
    Ok(redis)
}

/// As many requests as the server answers, from a core of its own.
fn offer(transport: Transport, options: &Options, tidegate: &Path) -> Command {
    let [connections, in_flight] = transport.load();
    let mut load = pinned(options.client_core, tidegate);
    load.args(["bench", "--output", "json", "--rate", "closed", "--warm-up", "0s", "--domain", "bench"]);
    load.args(["--protocol", transport.listener(), "--connections", connections, "--in-flight", in_flight]);
    load.args(["--keys", KEYS, "--duration"]).arg(format!("{}s", options.secs));
    load
}

struct Contestant {
    name: &'static str,
    server: Server,
    runs: Vec<Run>,
}

/// One measurement of one server.
#[derive(Clone, Copy)]
struct Run {
    cpu_us: f64,
    load: Load,
}

/// What `tidegate bench` prints.
#[derive(Clone, Copy, Deserialize)]
struct Load {
    allowed: u64,
    refused: u64,
    errors: u64,
    achieved_per_s: f64,
    latency_us: Latency,
}

#[derive(Clone, Copy, Deserialize)]
struct Latency {
    p50: f64,
    p99: f64,
}

impl Contestant {
    fn start(name: &'static str, command: Command, transport: Transport) -> Result<Self, Box<dyn Error>> {
        Ok(Self { name, server: Server::start(command, transport.listener())?, runs: Vec::new() })
    }

    fn measure(&self, load: &mut Command) -> Result<Run, Box<dyn Error>> {
        let before = self.server.cpu()?;
        let output = load.arg("--address").arg(self.server.address.to_string()).output()?;
        let spent = self.server.cpu()? - before;
        let load: Load = serde_json::from_slice(&output.stdout)
            .map_err(|why| format!("{load:?}: {why}: {}", String::from_utf8_lossy(&output.stderr)))?;
        let answered = load.allowed + load.refused;
        if answered == 0 || load.refused > 0 || load.errors * 1_000 > answered {
            let Load { allowed, refused, errors, .. } = load;
            return Err(
                format!("{}: {allowed} allowed, {refused} refused, {errors} failed", self.name).into()
            );
        }
        Ok(Run { cpu_us: spent.as_secs_f64() * 1e6 / answered as f64, load })
    }

    fn median(&self, figure: impl Fn(&Run) -> f64) -> f64 {
        median(self.runs.iter().map(figure).collect())
    }
}

fn report(transport: Transport, contestants: &[Contestant]) {
    println!("{} ({KEYS} keys, medians of {} runs)", transport.listener(), contestants[0].runs.len());
    println!(
        "{:12} {:>14} {:>10} {:>9} {:>9} {:>7}",
        "server", "CPU us/request", "rps", "p50 us", "p99 us", "ratio"
    );
    for contestant in contestants {
        // Each run against the reference's run just before it: what disturbs one disturbs both.
        let pairs = contestant.runs.iter().zip(&contestants[0].runs);
        let ratio = median(pairs.map(|(run, reference)| run.cpu_us / reference.cpu_us).collect());
        println!(
            "{:12} {:>14.2} {:>10.0} {:>9.0} {:>9.0} {:>7.2}",
            contestant.name,
            contestant.median(|run| run.cpu_us),
            contestant.median(|run| run.load.achieved_per_s),
            contestant.median(|run| run.load.latency_us.p50),
            contestant.median(|run| run.load.latency_us.p99),
            ratio,
        );
    }
    println!();
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
