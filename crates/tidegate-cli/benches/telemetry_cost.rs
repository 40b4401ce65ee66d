//! What all telemetry together costs: decision log, top callers, StatsD, OTLP with one request in a hundred traced, alerts.
//!
//! `cargo xtask bench telemetry` counts instructions of the whole server with valgrind, so the same on a busy machine: what a
//! request costs, and what is done every second whatever the load, which is spread over the requests of a busy node. Once
//! without telemetry, once with the decision log alone at its default, once with everything; then where everything is refused,
//! without the log, with one that keeps no refusal, and with one that keeps all of them, in memory and in a file. A busy node
//! keeps a thousand refusals a second, and counts the others.
//! `cargo xtask bench many-keys` lets ten million callers ask once each, of a limit per hour, so that every one of them is
//! remembered, and prints memory and the size of `/metrics`. It fails where a caller takes more than [`MOST_PER_KEY`] bytes, or
//! telemetry more than [`MOST_ADDED_KIB`].

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a bench measures time and prints it")]

use std::error::Error;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use tempfile::TempDir;
use tidegate_testkit::resp::Client;
use tidegate_testkit::{Process, Upstream, http, poll};

/// Requests per second of a busy node, over which background work is spread.
const BUSY: f64 = 20_000.0;
/// One request in so many belongs to a sampled trace.
const TRACED_ONE_IN: usize = 100;
const START: Duration = Duration::from_secs(180);
const TOKEN: &str = "a-token-of-the-benchmark";
/// A limit that nobody reaches, and one that remembers everybody who asked.
const UNREACHED: &str = "{ algorithm: token_bucket, rate: 1000000/s, burst: 1000000 }";
const REMEMBERS: &str = "100/h";
/// One that refuses everybody who has asked once.
const REFUSES: &str = "{ algorithm: fixed_window, limit: 1, window: 1d }";
/// How many callers `load` has.
const CALLERS: usize = 1_000;
/// Refusals that are kept in a second, unless somebody says otherwise.
const KEPT: f64 = 1_000.0;
/// The most resident memory that a remembered caller takes, in bytes: its counter, and what the table and the allocator leave
/// free.
const MOST_PER_KEY: f64 = 130.0;
/// The most that telemetry adds to that: 16 MiB of the decision log's records, and rankings, histories and buffers.
const MOST_ADDED_KIB: u64 = 48 << 10;

#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    what: Option<What>,
    /// The tidegate binary.
    #[arg(long, env = "TIDEGATE", global = true)]
    ours: Option<PathBuf>,
    /// What `cargo bench` passes; without it (`cargo test --benches`) nothing is measured.
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Clone, Copy, Subcommand)]
enum What {
    /// Counts instructions.
    Cost {
        /// Requests.
        #[arg(long, default_value_t = 20_000)]
        requests: usize,
        /// Rules in use.
        #[arg(long, default_value_t = 100)]
        rules: usize,
        /// Seconds for which background work is counted: twice the longest interval.
        #[arg(long, default_value_t = 30)]
        secs: u64,
    },
    /// Lets many callers ask.
    Keys {
        /// How many.
        #[arg(long, default_value_t = 10_000_000)]
        keys: usize,
    },
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let (true, Some(what)) = (options.bench, options.what) else { return Ok(()) };
    let Some(ours) = &options.ours else {
        return Err(
            "no tidegate binary; hint: `cargo xtask bench telemetry` builds it and passes it on".into()
        );
    };
    match what {
        What::Cost { requests, rules, secs } => cost(ours, requests, rules, Duration::from_secs(secs)),
        What::Keys { keys } => many_keys(ours, keys),
    }
}

/// Instructions with the decision log alone and with everything on, beside nothing on.
fn cost(ours: &Path, requests: usize, rules: usize, window: Duration) -> Result<(), Box<dyn Error>> {
    let mut lines = Vec::new();
    for telemetry in [Telemetry::Off, Telemetry::DecisionLog, Telemetry::On] {
        let idle = {
            let mut server = Server::counted(ours, (UNREACHED, rules), telemetry)?;
            load(server.address("http")?, 500, &[200])?;
            server.zero()?;
            let began = Instant::now();
            wait(window);
            server.end()? as f64 / began.elapsed().as_secs_f64()
        };
        let each = each(ours, (UNREACHED, rules), telemetry, (requests, idle))?;
        println!(
            "telemetry {telemetry:?}: {each:.0} instructions a request over HTTP, {idle:.0} a second beside them"
        );
        lines.push((each, idle));
    }
    let [off, log, on] = lines[..] else { return Err("three runs".into()) };
    let whole = |(each, idle): (f64, f64)| each + idle / BUSY;
    for (what, with, most) in [("decision log", log, 1.03), ("everything", on, 1.05)] {
        let ratio = whole(with) / whole(off);
        println!(
            "{what}: requests alone {:.4} times; with what is done every second, at {BUSY:.0} requests/s, {ratio:.4} times",
            with.0 / off.0
        );
        if ratio > most {
            return Err(format!("{what}: more than {most} times").into());
        }
    }
    let refused =
        |telemetry, (_, idle): (f64, f64)| each(ours, (REFUSES, rules), telemetry, (requests, idle));
    let (off, beyond) = (refused(Telemetry::Off, off)?, refused(Telemetry::NoRefusal, log)?);
    for telemetry in [Telemetry::EveryRefusal, Telemetry::EveryRefusalToFile] {
        let kept = refused(telemetry, log)?;
        let ratio = (beyond + (kept - beyond) * KEPT / BUSY) / off;
        println!(
            "everything refused: {off:.0} instructions a request without the log, {beyond:.0} with one that keeps none of them, \
             {kept:.0} with {telemetry:?}; of {BUSY:.0} a second {KEPT:.0} are kept: {ratio:.4} times"
        );
        if ratio > 1.03 {
            return Err(format!("{telemetry:?}: more than 1.03 times").into());
        }
    }
    Ok(())
}

/// Instructions of one request, without what is done every second.
fn each(
    ours: &Path,
    (limit, rules): (&str, usize),
    telemetry: Telemetry,
    (requests, idle): (usize, f64),
) -> Result<f64, Box<dyn Error>> {
    let mut server = Server::counted(ours, (limit, rules), telemetry)?;
    let http = server.address("http")?;
    load(http, CALLERS, &[200, 429])?;
    server.zero()?;
    let began = Instant::now();
    load(http, requests, if limit == REFUSES { &[429] } else { &[200] })?;
    let took = began.elapsed().as_secs_f64();
    Ok((server.end()? as f64 - idle * took) / requests as f64)
}

/// Memory and the size of `/metrics` after many callers.
fn many_keys(ours: &Path, keys: usize) -> Result<(), Box<dyn Error>> {
    let mut held = Vec::new();
    for telemetry in [Telemetry::Off, Telemetry::On] {
        let mut server = Server::plain(ours, 100, telemetry)?;
        let (resp, admin) = (server.address("resp")?, server.address("admin")?);
        let began = Instant::now();
        ask_all(resp, 0..1_000);
        let (kib, bytes) = (server.resident_kib(), http::get(admin, "/metrics").body.len());
        ask_all(resp, 0..keys);
        let rate = keys as f64 / began.elapsed().as_secs_f64();
        let (then_kib, then_bytes) = (server.resident_kib(), http::get(admin, "/metrics").body.len());
        println!(
            "telemetry {telemetry:?}: {keys} callers, {rate:.0} a second; resident {kib} KiB, then {then_kib} KiB; \
             /metrics {bytes} bytes, then {then_bytes}"
        );
        if then_bytes > bytes + 1_000 {
            return Err("/metrics grows with callers".into());
        }
        held.push((kib, then_kib));
    }
    let [(before, off), (_, on)] = held[..] else { return Err("two runs".into()) };
    let per_key = off.saturating_sub(before) as f64 * 1024.0 / keys as f64;
    let added = on.saturating_sub(off);
    println!(
        "a caller takes {per_key:.0} bytes, and at most {MOST_PER_KEY}; telemetry adds {added} KiB, and at most {MOST_ADDED_KIB}"
    );
    if per_key > MOST_PER_KEY {
        return Err(format!("{per_key:.0} bytes a caller are more than {MOST_PER_KEY}").into());
    }
    if added > MOST_ADDED_KIB {
        return Err(format!("{added} KiB of telemetry are more than {MOST_ADDED_KIB}").into());
    }
    Ok(())
}

fn ask_all(resp: SocketAddr, keys: std::ops::Range<usize>) {
    let mut client = Client::connect(resp);
    client.set_patience(START).expect("patience is not zero");
    let mut keys = keys.peekable();
    while keys.peek().is_some() {
        let words =
            |key: usize| vec!["TG.CHECK".to_owned(), "api".to_owned(), "user".to_owned(), key.to_string()];
        let commands: Vec<_> = keys.by_ref().take(1_000).map(words).collect();
        client.pipeline(&commands);
    }
}

#[derive(Clone, Copy, Debug)]
enum Telemetry {
    Off,
    /// Nothing but the decision log, as it is by default.
    DecisionLog,
    On,
    /// The decision log alone, without refusals, with all of them, and with all of them written to a file.
    NoRefusal,
    EveryRefusal,
    EveryRefusalToFile,
}

/// A server, and the receivers of what it tells.
struct Server {
    process: Process,
    _receivers: (UdpSocket, Upstream),
    _dir: TempDir,
}

impl Server {
    fn counted(ours: &Path, rules: (&str, usize), telemetry: Telemetry) -> Result<Self, Box<dyn Error>> {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(ours);
        Server::start(valgrind, rules, telemetry)
    }

    fn plain(ours: &Path, rules: usize, telemetry: Telemetry) -> Result<Self, Box<dyn Error>> {
        Server::start(Command::new(ours), (REMEMBERS, rules), telemetry)
    }

    /// One with so many rules, of which the one that is asked has this limit.
    fn start(
        mut command: Command,
        (limit, rules): (&str, usize),
        telemetry: Telemetry,
    ) -> Result<Self, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        let (statsd, otlp) = (UdpSocket::bind("127.0.0.1:0")?, Upstream::start());
        let others: String = (1..rules)
            .map(|n| {
                format!(
                    "- {{ name: rule-{n}, match: {{ path: '/v1/{n}/*' }}, key: [user], limits: [5/s] }}\n"
                )
            })
            .collect();
        let own = format!("- {{ name: per-user, key: [user], limits: [{limit}] }}");
        fs::write(dir.path().join("rules.yaml"), format!("domain: api\nrules:\n{own}\n{others}"))?;
        let refusals = |how: &str| format!("decision_log: {{ {how} }}\nalerts: {{ enabled: false }}");
        let sections = match telemetry {
            Telemetry::Off => "alerts: { enabled: false }".to_owned(),
            // At its default a busy node keeps a thousand admissions of 20,000 in a second; valgrind's seconds are longer.
            Telemetry::DecisionLog => {
                "decision_log: { admissions_one_in: 20 }\nalerts: { enabled: false }".to_owned()
            }
            Telemetry::NoRefusal => refusals("refusals_per_second: 0"),
            Telemetry::EveryRefusal => refusals("refusals_per_second: 1000000"),
            Telemetry::EveryRefusalToFile => {
                let path = dir.path().join("decisions.log");
                refusals(&format!("refusals_per_second: 1000000, file: {{ path: '{}' }}", path.display()))
            }
            Telemetry::On => format!(
                "decision_log: {{ admissions_one_in: 20 }}\ntelemetry:\n  statsd: {{ address: '{}' }}\n  otlp: {{ endpoint: 'http://{}' }}\n\
                 alerts: {{ webhook: {{ url: 'http://{}/hook' }} }}",
                statsd.local_addr()?,
                otlp.addr(),
                otlp.addr()
            ),
        };
        let any = "127.0.0.1:0";
        let listen = format!("listen: {{ http: '{any}', grpc: off, resp: '{any}', admin: '{any}' }}");
        let config = dir.path().join("tidegate.yaml");
        fs::write(&config, format!("{listen}\nrules: {{ paths: [rules.yaml] }}\n{sections}\n"))?;
        command.args(["serve", "--log-level", "error", "--config"]).arg(config);
        command.arg("--data").arg(dir.path().join("data"));
        command.env("TIDEGATE_DRAIN__DELAY", "0s").env("TIDEGATE_ADMIN__TOKENS", TOKEN);
        let process = Process::spawn("measured", &command, dir.path());
        Ok(Server { process, _receivers: (statsd, otlp), _dir: dir })
    }

    fn address(&mut self, what: &str) -> Result<SocketAddr, Box<dyn Error>> {
        let found = poll(START, || {
            let out = self.process.stdout();
            let line = out.lines().find_map(|line| line.strip_prefix("listening ")?.strip_prefix(what));
            line.and_then(|line| line.trim().parse().ok())
        });
        found.ok_or_else(|| format!("it does not listen: {}", self.process.stderr()).into())
    }

    /// Forgets what was counted so far.
    fn zero(&mut self) -> Result<(), Box<dyn Error>> {
        let pid = self.process.pid().to_string();
        let zeroed = Command::new("callgrind_control").arg("-z").arg(pid).output()?;
        let told = String::from_utf8_lossy(&zeroed.stdout).into_owned();
        if zeroed.status.success() && !told.contains("Error") { Ok(()) } else { Err(told.into()) }
    }

    /// Ends it, and returns what was counted since.
    fn end(&mut self) -> Result<u64, Box<dyn Error>> {
        self.process.terminate(START);
        let told = self.process.stderr();
        let line = told.lines().find(|line| line.contains("Collected"));
        let count = line.and_then(|line| line.rsplit(' ').next()?.trim().parse().ok());
        count.ok_or_else(|| format!("valgrind says: {told}").into())
    }

    fn resident_kib(&mut self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
    }
}

/// So many requests over HTTP on one connection, of a thousand callers, each answered by one of these.
fn load(to: SocketAddr, requests: usize, statuses: &[u16]) -> Result<(), Box<dyn Error>> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(START))?;
    let mut answer = [0; 4_096];
    for number in 0..requests {
        let body = format!("{{\"domain\":\"api\",\"attributes\":{{\"user\":\"{}\"}}}}", number % CALLERS);
        let trace = match number % TRACED_ONE_IN {
            0 => format!("traceparent: 00-{:032x}-b7ad6b7169203331-01\r\n", number + 1),
            _ => String::new(),
        };
        let head = format!(
            "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{trace}content-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes())?;
        // An answer is small and comes as one.
        let length = stream.read(&mut answer)?;
        let is = |status: &u16| answer[..length].starts_with(format!("HTTP/1.1 {status}").as_bytes());
        if !statuses.iter().any(is) {
            return Err(String::from_utf8_lossy(&answer[..length]).into());
        }
    }
    Ok(())
}

fn wait(span: Duration) {
    let _ = poll(span, || None::<()>);
}
