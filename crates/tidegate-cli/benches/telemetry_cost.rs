//! What all telemetry together costs: decision log, top callers, StatsD, OTLP with one request in a hundred traced, alerts.
//!
//! `cargo xtask bench telemetry` counts instructions of the whole server with valgrind, so the same on a busy machine: what a
//! request costs, and what is done every second whatever the load, which is spread over the requests of a busy node. Once
//! without telemetry, once with the decision log alone at its default, once with everything.
//! `cargo xtask bench many-keys` lets ten million callers ask once each, of a limit per hour, so that every one of them is
//! remembered, and prints memory and the size of `/metrics`.

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
            let mut server = Server::counted(ours, rules, telemetry)?;
            load(server.address("http")?, 500)?;
            server.zero()?;
            let began = Instant::now();
            wait(window);
            server.end()? as f64 / began.elapsed().as_secs_f64()
        };
        let mut server = Server::counted(ours, rules, telemetry)?;
        let http = server.address("http")?;
        load(http, 500)?;
        server.zero()?;
        let began = Instant::now();
        load(http, requests)?;
        let took = began.elapsed().as_secs_f64();
        let each = (server.end()? as f64 - idle * took) / requests as f64;
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
    Ok(())
}

/// Memory and the size of `/metrics` after many callers.
fn many_keys(ours: &Path, keys: usize) -> Result<(), Box<dyn Error>> {
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
}

/// A server, and the receivers of what it tells.
struct Server {
    process: Process,
    _receivers: (UdpSocket, Upstream),
    _dir: TempDir,
}

impl Server {
    fn counted(ours: &Path, rules: usize, telemetry: Telemetry) -> Result<Self, Box<dyn Error>> {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(ours);
        Server::start(valgrind, (UNREACHED, rules), telemetry)
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
        let sections = match telemetry {
            Telemetry::Off => "alerts: { enabled: false }".to_owned(),
            Telemetry::DecisionLog => "decision_log: {}\nalerts: { enabled: false }".to_owned(),
            Telemetry::On => format!(
                "decision_log: {{ admissions_one_in: 100 }}\ntelemetry:\n  statsd: {{ address: '{}' }}\n  otlp: {{ endpoint: 'http://{}' }}\n\
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

/// So many requests over HTTP on one connection, of a thousand callers.
fn load(to: SocketAddr, requests: usize) -> Result<(), Box<dyn Error>> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(START))?;
    let mut answer = [0; 4_096];
    for number in 0..requests {
        let body = format!("{{\"domain\":\"api\",\"attributes\":{{\"user\":\"{}\"}}}}", number % 1_000);
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
        if !answer[..length].starts_with(b"HTTP/1.1 200") {
            return Err(String::from_utf8_lossy(&answer[..length]).into());
        }
    }
    Ok(())
}

fn wait(span: Duration) {
    let _ = poll(span, || None::<()>);
}
