//! Alternates between servers and prints what each made of the same load.

use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tidegate_testkit::resp::Client;
use tidegate_testkit::{Port, Process, find_tool};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The tidegate binary, to be measured instead of this program.
    #[arg(long, env = "TIDEGATE")]
    ours: Option<PathBuf>,
    /// Measurements of each load.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Commands per batch.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64])]
    pipeline: Vec<usize>,
    /// Keys, each of which is asked for about as often.
    #[arg(long, value_delimiter = ',', default_values_t = [100_000])]
    keys: Vec<usize>,
    /// Connections.
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Commands in one measurement at an endless pipeline; fewer at shorter ones, so that all take about as long.
    #[arg(long, default_value_t = 6_000_000)]
    commands: usize,
    /// The servers' core.
    #[arg(long, default_value_t = 0)]
    server_core: usize,
    /// The load generator's core.
    #[arg(long, default_value_t = 1)]
    client_core: usize,
}

/// What is asked of whom. The first is what the others are compared with.
const LOADS: [Load; 5] = [
    Load { name: "redis PING", server: Who::Redis, command: &["PING"] },
    // Touches a key, as a decision does.
    Load { name: "redis INCR", server: Who::Redis, command: &["INCR", "key:__rand_int__"] },
    Load {
        name: "tidegate CL.THROTTLE",
        server: Who::Ours,
        // Never refused: refusals are cheaper.
        command: &["CL.THROTTLE", "key:__rand_int__", "1000000", "1000000", "60"],
    },
    Load {
        name: "tidegate TG.CHECK",
        server: Who::Ours,
        command: &["TG.CHECK", "bench", "user", "key:__rand_int__"],
    },
    Load { name: "tidegate PING", server: Who::Ours, command: &["PING"] },
];

struct Load {
    name: &'static str,
    server: Who,
    command: &'static [&'static str],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Redis,
    Ours,
}

/// One measurement.
#[derive(Clone, Copy)]
struct Run {
    rps: f64,
    p50_ms: f64,
    p99_ms: f64,
    cpu_us: f64,
    /// The part of the time in which the server was busy.
    busy: f64,
}

pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let redis = Server::redis(options.server_core)?;
    let ours = Server::ours(options)?;
    let cases =
        options.keys.iter().flat_map(|keys| options.pipeline.iter().map(|pipeline| (*keys, *pipeline)));
    for (keys, pipeline) in cases {
        let mut runs: [Vec<Run>; LOADS.len()] = Default::default();
        for round in 0..=options.rounds {
            for (load, runs) in LOADS.iter().zip(&mut runs) {
                let server = if load.server == Who::Redis { &redis } else { &ours };
                let run = measure(options, (keys, pipeline), load, server)?;
                // The first round warms caches, branch predictors and the store.
                if round > 0 {
                    runs.push(run);
                }
            }
        }
        report(options, (keys, pipeline), &runs);
    }
    Ok(())
}

fn measure(
    options: &Options,
    (keys, pipeline): (usize, usize),
    load: &Load,
    server: &Server,
) -> Result<Run, Box<dyn Error>> {
    // Reading and writing a batch takes about as long as answering forty commands.
    let commands = options.commands * pipeline / (pipeline + 40);
    let mut command = pinned(options.client_core, &find_tool("redis-benchmark"));
    command.args(["-h", "127.0.0.1", "-p", &server.address.port().to_string(), "--csv"]);
    command.args(["-r", &keys.to_string()]);
    command.args(["-n", &commands.to_string(), "-P", &pipeline.to_string()]);
    command.args(["-c", &options.connections.to_string()]).args(load.command);
    let before = server.cpu()?;
    let output = command.output()?;
    let spent = server.cpu()? - before;
    let text = String::from_utf8(output.stdout)?;
    let row = text.lines().last().unwrap_or_default();
    let figures: Vec<f64> = row.split(',').filter_map(|field| field.trim_matches('"').parse().ok()).collect();
    let [rps, _average, _min, p50_ms, _p95, p99_ms, _max] = figures[..] else {
        return Err(format!("{command:?} printed {text:?}").into());
    };
    let cpu_us = spent.as_secs_f64() * 1e6 / commands as f64;
    Ok(Run { rps, p50_ms, p99_ms, cpu_us, busy: cpu_us * rps / 1e6 })
}

struct Server {
    address: SocketAddr,
    process: Process,
}

const START_PATIENCE: Duration = Duration::from_secs(20);

impl Server {
    fn redis(core: usize) -> Result<Self, Box<dyn Error>> {
        let port = Port::reserve();
        let mut command = pinned(core, &find_tool("redis-server"));
        command.args(["--bind", "127.0.0.1", "--port", &port.number().to_string()]);
        command.args(["--save", "", "--appendonly", "no"]).current_dir(scratch());
        let mut process = Process::spawn("bench-redis", &command, scratch());
        let address = port.addr();
        process.ready(START_PATIENCE, |_| Client::try_connect(address).ok())?;
        Ok(Server { address, process })
    }

    fn ours(options: &Options) -> Result<Self, Box<dyn Error>> {
        let this = std::env::current_exe()?;
        let mut command = pinned(options.server_core, options.ours.as_deref().unwrap_or(&this));
        command.args(["serve", "--resp", "127.0.0.1:0"]);
        if options.ours.is_some() {
            let rules = scratch().join("bench-resp.yaml");
            fs::write(&rules, crate::serve::RULES)?;
            command.arg("--rules").arg(rules);
            command.args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        }
        let log = scratch().join("bench-tidegate.stdout");
        let _ = fs::remove_file(log);
        let mut process = Process::spawn("bench-tidegate", &command, scratch());
        let listening = |process: &Process| {
            let said = process.stdout();
            let address = said.lines().find_map(|line| line.strip_prefix("listening resp "))?;
            address.trim().parse().ok()
        };
        let address = process.ready(START_PATIENCE, listening)?;
        Ok(Server { address, process })
    }

    /// CPU time so far, user and system.
    fn cpu(&self) -> Result<Duration, Box<dyn Error>> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.pid()))?;
        // The second field is the program's name in parentheses, which may hold anything.
        let fields: Vec<_> = stat.rsplit_once(") ").ok_or("no process name in stat")?.1.split(' ').collect();
        let [user, system] = [fields[11].parse::<u64>()?, fields[12].parse::<u64>()?];
        // The unit of CPU time in `/proc`: 100 per second on every Linux that Rust runs on.
        Ok(Duration::from_millis(10) * u32::try_from(user + system)?)
    }
}

fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// `program`, to run on `core` alone.
fn pinned(core: usize, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.arg("-c").arg(core.to_string()).arg(program);
    command
}

fn report(options: &Options, (keys, pipeline): (usize, usize), runs: &[Vec<Run>; LOADS.len()]) {
    let Options { connections, rounds, .. } = options;
    println!("pipeline {pipeline} ({connections} connections, {keys} keys, medians of {rounds} runs)");
    println!(
        "{:22} {:>10} {:>11} {:>6} {:>8} {:>8} {:>11} {:>11}",
        "", "rps", "CPU us/cmd", "busy", "p50 ms", "p99 ms", "rps ratio", "CPU ratio"
    );
    for (load, own) in LOADS.iter().zip(runs) {
        let of = |figure: fn(&Run) -> f64| median(own.iter().map(figure).collect());
        // Each run against Redis's just before it: what disturbs one disturbs both.
        let beside = |ratio: fn(&Run, &Run) -> f64| {
            median(own.iter().zip(&runs[0]).map(|(run, redis)| ratio(run, redis)).collect())
        };
        println!(
            "{:22} {:>10.0} {:>11.3} {:>5.0}% {:>8.3} {:>8.3} {:>11.2} {:>11.2}",
            load.name,
            of(|run| run.rps),
            of(|run| run.cpu_us),
            of(|run| run.busy * 100.0),
            of(|run| run.p50_ms),
            of(|run| run.p99_ms),
            beside(|run, redis| run.rps / redis.rps),
            beside(|run, redis| redis.cpu_us / run.cpu_us),
        );
    }
    println!();
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
