//! Alternates between servers and prints what each request cost.

use crate::process::{Server, pinned};
use serde::Deserialize;
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The load generator.
    #[arg(long, env = "LOADGEN")]
    loadgen: Option<PathBuf>,
    /// The tidegate binary; without it only the references are measured.
    #[arg(long, env = "TIDEGATE")]
    ours: Option<PathBuf>,
    /// Measurements of each server.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds of load per measurement.
    #[arg(long, default_value_t = 3)]
    secs: u32,
    /// Only this transport.
    #[arg(long)]
    only: Option<Transport>,
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
const CHECK: &str = r#"{"domain":"bench","attributes":{"user":"{k}"},"cost":1}"#;

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

    fn load(self) -> Vec<&'static str> {
        match self {
            Self::Grpc => {
                vec!["rls", "--conns", "4", "--inflight", "16", "--domain", "bench", "--entry", "user"]
            }
            Self::Http => {
                vec!["http", "--conns", "32", "--inflight", "1", "--path", "/v1/check", "--body", CHECK]
            }
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let Some(loadgen) = &options.loadgen else {
        return Err("no load generator; hint: pass --loadgen PATH or set LOADGEN".into());
    };
    let rules = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bench-rules.yaml");
    std::fs::write(&rules, RULES)?;

    for transport in [Transport::Grpc, Transport::Http] {
        if options.only.is_some_and(|only| only != transport) {
            continue;
        }
        let mut reference = pinned(options.server_core, &std::env::current_exe()?);
        reference.arg(transport.reference());
        let mut contestants = vec![Contestant::start(transport.reference(), reference, transport)?];
        if let Some(ours) = &options.ours {
            let mut command = pinned(options.server_core, ours);
            command.args([
                "serve",
                "--http",
                "127.0.0.1:0",
                "--grpc",
                "127.0.0.1:0",
                "--admin",
                "127.0.0.1:0",
            ]);
            command.arg("--rules").arg(&rules);
            contestants.push(Contestant::start("tidegate", command, transport)?);
        }
        for round in 0..=options.rounds {
            for contestant in &mut contestants {
                let mut load = pinned(options.client_core, loadgen);
                load.args(transport.load()).args(["--keys", KEYS, "--warmup", "0"]);
                let run = contestant.measure(load.arg("--secs").arg(options.secs.to_string()))?;
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

/// What the load generator prints.
#[derive(Clone, Copy, Deserialize)]
struct Load {
    n: u64,
    err: u64,
    rps: f64,
    p50_us: f64,
    p99_us: f64,
}

impl Contestant {
    fn start(name: &'static str, command: Command, transport: Transport) -> Result<Self, Box<dyn Error>> {
        Ok(Self { name, server: Server::start(command, transport.listener())?, runs: Vec::new() })
    }

    fn measure(&self, load: &mut Command) -> Result<Run, Box<dyn Error>> {
        let before = self.server.cpu()?;
        let output = load.arg("--addr").arg(self.server.address.to_string()).output()?;
        let spent = self.server.cpu()? - before;
        let text = String::from_utf8(output.stdout)?;
        let line = text.lines().last().ok_or_else(|| format!("{load:?} printed nothing"))?;
        let load: Load = serde_json::from_str(line)?;
        if load.n == 0 || load.err * 1_000 > load.n {
            return Err(format!("{}: {} of {} requests failed", self.name, load.err, load.n).into());
        }
        Ok(Run { cpu_us: spent.as_secs_f64() * 1e6 / load.n as f64, load })
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
            contestant.median(|run| run.load.rps),
            contestant.median(|run| run.load.p50_us),
            contestant.median(|run| run.load.p99_us),
            ratio,
        );
    }
    println!();
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
