//! Alternates between the ways to the server and prints what each adds.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use tidegate_testkit::{Nginx, Process};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Measurements of each way.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Requests in one measurement.
    #[arg(long, default_value_t = 4_000)]
    requests: usize,
    /// The proxies' core.
    #[arg(long, default_value_t = 0)]
    proxy_core: usize,
    /// The client's and the server's core.
    #[arg(long, default_value_t = 1)]
    client_core: usize,
}

const BODY: &str = "a body of an answer that is neither empty nor large: one hundred and twenty-eight bytes \
                    of text, give or take a few of them.....";
const REQUEST: &[u8] =
    b"GET /v1/items?id=7 HTTP/1.1\r\nhost: bench.example\r\nuser-agent: bench\r\naccept: */*\r\n\r\n";

pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    pin(std::process::id(), options.client_core)?;
    let upstream = serve_bodies()?;
    let mut nginx = Nginx::start(|listen| nginx_config(listen, upstream));
    let master = nginx.process().pid();
    for pid in [vec![master], children(master)?].concat() {
        pin(pid, options.proxy_core)?;
    }
    let dir = std::env::temp_dir().join(format!("tidegate-bench-proxy-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("serve").arg(upstream.to_string());
    let mut ours = Process::spawn("proxy", &command, &dir);
    let line = |process: &Process| {
        let said = process.stdout();
        said.lines().find_map(|line| line.strip_prefix("listening proxy ")?.parse::<SocketAddr>().ok())
    };
    let address = ours.ready(Duration::from_secs(10), line).map_err(|failure| failure.to_string())?;
    pin(ours.pid(), options.proxy_core)?;

    let mut ways =
        [Way::open("direct", upstream)?, Way::open("nginx", nginx.addr())?, Way::open("tidegate", address)?];
    for round in 0..=options.rounds {
        for way in &mut ways {
            let measured = way.measure(options.requests)?;
            // The first round warms caches, connections and branch predictors.
            if round > 0 {
                way.rounds.push(measured);
            }
        }
    }
    report(&ways);
    drop(ours);
    fs::remove_dir_all(dir)?;
    Ok(())
}

/// One way to the server, on one connection.
struct Way {
    name: &'static str,
    stream: BufReader<TcpStream>,
    rounds: Vec<Latencies>,
}

#[derive(Clone, Copy)]
struct Latencies {
    p50_us: f64,
    p99_us: f64,
}

impl Way {
    fn open(name: &'static str, address: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Way { name, stream: BufReader::new(stream), rounds: Vec::new() })
    }

    fn measure(&mut self, requests: usize) -> Result<Latencies, Box<dyn Error>> {
        let mut took = Vec::with_capacity(requests);
        for _ in 0..requests {
            let began = now();
            self.ask()?;
            took.push(now() - began);
        }
        took.sort_unstable();
        let at = |share: f64| took[((requests - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
        Ok(Latencies { p50_us: at(0.5), p99_us: at(0.99) })
    }

    fn ask(&mut self) -> Result<(), Box<dyn Error>> {
        self.stream.get_mut().write_all(REQUEST)?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        if !line.starts_with("HTTP/1.1 200") {
            return Err(format!("{}: {line}", self.name).into());
        }
        while line != "\r\n" {
            line.clear();
            self.stream.read_line(&mut line)?;
        }
        let mut body = [0; BODY.len()];
        self.stream.read_exact(&mut body)?;
        if body == *BODY.as_bytes() { Ok(()) } else { Err("another body came back".into()) }
    }
}

fn report(ways: &[Way; 3]) {
    let [direct, nginx, ours] = ways;
    let added = |way: &Way| -> Vec<f64> {
        way.rounds.iter().zip(&direct.rounds).map(|(way, direct)| way.p50_us - direct.p50_us).collect()
    };
    println!("one request at a time (medians of {} rounds)", direct.rounds.len());
    println!("{:10} {:>8} {:>8} {:>14}", "way", "p50 us", "p99 us", "added p50 us");
    for way in ways {
        let [p50, p99] = [|l: &Latencies| l.p50_us, |l: &Latencies| l.p99_us]
            .map(|figure| median(way.rounds.iter().map(figure).collect()));
        println!("{:10} {p50:>8.1} {p99:>8.1} {:>14.1}", way.name, median(added(way)));
    }
    // Round by round: what disturbs one disturbs its neighbour.
    let ratios = added(ours).into_iter().zip(added(nginx)).map(|(ours, nginx)| ours / nginx);
    println!("\ntidegate adds {:.2} times what nginx adds", median(ratios.collect()));
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

#[expect(clippy::disallowed_methods, reason = "to measure time is the purpose")]
fn now() -> Instant {
    Instant::now()
}

/// A server that answers every request with the same body, in threads of this process.
fn serve_bodies() -> Result<SocketAddr, Box<dyn Error>> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || drop(answer_all(stream, answer.as_bytes())));
        }
    });
    Ok(address)
}

fn answer_all(stream: TcpStream, answer: &[u8]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            return Ok(());
        }
        if line == "\r\n" {
            stream.get_mut().write_all(answer)?;
        }
    }
}

/// nginx as it would be deployed: connections to the upstream are kept, and never renewed during a measurement.
fn nginx_config(listen: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        "upstream backend {{ server {upstream}; keepalive 32; keepalive_requests 1000000000; }}
         server {{
            listen {listen};
            keepalive_requests 1000000000;
            tcp_nodelay on;
            location / {{
                proxy_pass http://backend;
                proxy_http_version 1.1;
                proxy_set_header Connection '';
                proxy_set_header Host $http_host;
                proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
                proxy_set_header X-Forwarded-Proto $scheme;
                proxy_set_header X-Forwarded-Host $http_host;
            }}
         }}"
    )
}

fn children(pid: u32) -> Result<Vec<u32>, Box<dyn Error>> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    Ok(text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

/// Lets every thread of a process run on one core alone.
fn pin(pid: u32, core: usize) -> Result<(), Box<dyn Error>> {
    let output = Command::new("taskset")
        .args(["--all-tasks", "--cpu-list", "--pid", &core.to_string(), &pid.to_string()])
        .output()?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into()) }
}
