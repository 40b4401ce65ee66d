//! Lines per second of a replay on one core, for each format: `cargo xtask bench replay`.
//!
//! 2,000,000 lines of 50,000 callers are generated in memory, so that the disk plays no part; the time covers reading,
//! parsing, deciding and counting. `--against` decides everything twice. Arguments select cases by name, a number sets the
//! number of lines, and `once` replays them a single time, for a tool that counts instructions. If the system reports it,
//! CPU time is used, so that other load matters less.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a bench measures time and prints it")]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt::Write as _;
use std::time::Instant;

use tidegate_replay::{Format, MergeByTime, Options, Parser, Reader, Replay};
use tidegate_rules::{Format as RuleFormat, RuleSet, Source};

const LINES: u64 = 2_000_000;
const CALLERS: u64 = 50_000;
const START: u64 = 1_800_057_600;
const RATES: &str = "{ domain: web, rules: [
  { name: per-ip, key: [ip], limits: [{ algorithm: sliding_window, limit: 100, window: 1m }] },
  { name: writes, match: { method: POST }, key: [ip], limits: [{ algorithm: token_bucket, rate: 1/s, burst: 5 }] }] }";
const SLOTS: u64 = 3;
const LEASES: &str = "{ domain: web, rules: [
  { name: slots, key: [ip], limits: [{ algorithm: concurrency, limit: 3, ttl: 10s }] }] }";

/// A log, and the rules to replay it through.
struct Case {
    name: &'static str,
    format: Format,
    rules: &'static str,
    log: fn(u64) -> String,
}

const CASES: [Case; 6] = [
    Case { name: "combined", format: Format::Combined, rules: RATES, log: combined },
    Case { name: "tidegate", format: Format::Tidegate, rules: RATES, log: tidegate },
    Case { name: "envoy", format: Format::Envoy, rules: RATES, log: envoy },
    Case { name: "caddy", format: Format::Caddy, rules: RATES, log: caddy },
    Case { name: "csv", format: Format::Csv, rules: RATES, log: csv },
    Case { name: "leases", format: Format::Tidegate, rules: LEASES, log: leases },
];

fn main() {
    // `cargo test --benches` only checks that it runs.
    let args: Vec<String> = std::env::args().skip(1).collect();
    let given = args.iter().find_map(|arg| arg.parse().ok());
    let lines = given.unwrap_or(if args.iter().any(|arg| arg == "--bench") { LINES } else { 1_000 });
    let named = |case: &Case| args.iter().any(|arg| arg == case.name);
    let all = !CASES.iter().any(named);
    let once = args.iter().any(|arg| arg == "once");
    println!("{:<28} {:>14} {:>12} {:>12}", "log", "lines/s", "refused", "otherwise");
    for case in CASES.iter().filter(|case| all || named(case)) {
        let log = (case.log)(lines);
        if once {
            println!("{:<28} {:>14.0}", case.name, run(&log, case, None).0);
            continue;
        }
        for (against, name) in [(None, case.name.to_owned()), (Some(()), format!("{} --against", case.name))]
        {
            let best = (0..3).map(|_| run(&log, case, against.map(|()| rules(case))));
            let (rate, refused, otherwise) = best.max_by(|a, b| a.0.total_cmp(&b.0)).expect("three runs");
            println!("{name:<28} {rate:>14.0} {refused:>12} {otherwise:>12}");
        }
    }
}

fn rules(case: &Case) -> RuleSet {
    RuleSet::compile(&[Source::new("rules.yaml", case.rules)], RuleFormat::Native).expect("good rules")
}

/// Lines per second, refused requests, and requests decided differently than logged.
fn run(log: &str, case: &Case, against: Option<RuleSet>) -> (f64, u64, u64) {
    let mut replay = Replay::new(rules(case), against, Options::new("web"));
    let start = Stopwatch::start();
    let mut reader = Reader::new(log.as_bytes());
    let played = match Parser::new(case.format) {
        // As the command does: in the order of their times.
        Some(_) if case.format == Format::Tidegate => {
            replay.play_merged(&mut MergeByTime::new([(reader, None)]), |_| ())
        }
        Some(mut parser) => replay.play_log(&mut reader, &mut parser, |_| ()),
        None => {
            let columns = ["time", "ip", "method"].map(|name| (name.to_owned(), name.to_owned()));
            let mut parser = Parser::csv(b"time,ip,method,path,status", &columns).expect("good columns");
            replay.play_log(&mut reader, &mut parser, |_| ())
        }
    };
    played.expect("memory can be read");
    let report = replay.finish();
    assert_eq!(report.lines.bad, 0, "{:?}", report.lines);
    let lines = report.lines.played + report.lines.events;
    let otherwise = report.decided_otherwise.map_or(0, |other| other.admitted_now + other.refused_now);
    (lines as f64 / start.seconds(), report.refused.now, otherwise)
}

/// The CPU time of this thread if the system reports it; otherwise the elapsed time.
struct Stopwatch {
    on_processor: Option<u64>,
    started: Instant,
}

impl Stopwatch {
    fn start() -> Self {
        Stopwatch { on_processor: Self::on_processor(), started: Instant::now() }
    }

    fn seconds(&self) -> f64 {
        match self.on_processor.zip(Self::on_processor()) {
            Some((start, end)) => (end - start) as f64 / 1e9,
            None => self.started.elapsed().as_secs_f64(),
        }
    }

    fn on_processor() -> Option<u64> {
        std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse().ok()
    }
}

/// A request of a generated day.
struct Request {
    ip: String,
    /// The address as hashed in our own log.
    hashed: u64,
    method: &'static str,
    item: u64,
    second: u64,
    random: u64,
}

impl Request {
    fn clock(&self) -> String {
        format!("{:02}:{:02}:{:02}", self.second / 3_600, self.second / 60 % 60, self.second % 60)
    }
}

/// Requests of one day, with callers drawn so that few make most of them.
fn requests(lines: u64) -> impl Iterator<Item = Request> {
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    (0..lines).map(move |line| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // The square of a uniform number leans to small ones.
        let uniform = (random >> 11) % CALLERS;
        let caller = uniform * uniform / CALLERS;
        Request {
            ip: format!("10.{}.{}.{}", caller >> 16, caller >> 8 & 255, caller & 255),
            hashed: (caller + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            method: if random & 15 == 0 { "POST" } else { "GET" },
            item: random >> 40 & 1023,
            second: line * 86_400 / lines,
            random,
        }
    })
}

fn lines_of(lines: u64, mut write: impl FnMut(&mut String, &Request) -> std::fmt::Result) -> String {
    let mut out = String::new();
    for request in requests(lines) {
        write(&mut out, &request).expect("memory can be written");
    }
    out
}

fn combined(lines: u64) -> String {
    lines_of(lines, |out, request| {
        let Request { ip, method, item, .. } = request;
        let clock = request.clock();
        writeln!(
            out,
            "{ip} - - [16/Jan/2027:{clock} +0000] \"{method} /v1/items/{item}?page=2 HTTP/1.1\" 200 612 \"https://example.com/shop\" \"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36\""
        )
    })
}

/// As the server writes it today, with `clear: [method]`.
fn tidegate(lines: u64) -> String {
    lines_of(lines, |out, request| {
        let Request { hashed, method, random, .. } = request;
        let (at, us, answered) = (START + request.second, random >> 20 & 0x7_ffff, 150 + (random & 511));
        writeln!(
            out,
            "{{\"time_us\":{at}{us:06},\"domain\":\"web\",\"rule\":\"per-ip\",\"verdict\":\"admitted\",\"limit\":100,\"remaining\":42,\"source\":\"store\",\"node\":\"gate-1\",\"version\":3,\"n\":1,\"cost\":1,\"answered_in_us\":{answered},\"key\":[\"ip\"],\"attributes\":{{\"ip\":\"#{hashed:016x}\",\"method\":\"{method}\"}}}}"
        )
    })
}

fn envoy(lines: u64) -> String {
    lines_of(lines, |out, request| {
        let Request { ip, method, item, .. } = request;
        let clock = request.clock();
        writeln!(
            out,
            "{{\"start_time\":\"2027-01-16T{clock}.250Z\",\"method\":\"{method}\",\"path\":\"/v1/items/{item}\",\"protocol\":\"HTTP/2\",\"response_code\":200,\"response_flags\":\"-\",\"bytes_received\":0,\"bytes_sent\":612,\"duration\":12,\"x_forwarded_for\":null,\"user_agent\":\"Mozilla/5.0\",\"request_id\":\"b1c2\",\"authority\":\"api.example.com\",\"downstream_remote_address\":\"{ip}:5566\"}}"
        )
    })
}

fn caddy(lines: u64) -> String {
    lines_of(lines, |out, request| {
        let Request { ip, method, item, .. } = request;
        let at = START + request.second;
        writeln!(
            out,
            "{{\"level\":\"info\",\"ts\":{at}.25,\"logger\":\"http.log.access\",\"msg\":\"handled request\",\"request\":{{\"remote_ip\":\"{ip}\",\"remote_port\":\"41342\",\"client_ip\":\"{ip}\",\"proto\":\"HTTP/2.0\",\"method\":\"{method}\",\"host\":\"example.com\",\"uri\":\"/v1/items/{item}\",\"headers\":{{\"User-Agent\":[\"Mozilla/5.0\"],\"Accept\":[\"*/*\"]}}}},\"bytes_read\":0,\"user_id\":\"\",\"duration\":0.000929675,\"size\":612,\"status\":200}}"
        )
    })
}

fn csv(lines: u64) -> String {
    lines_of(lines, |out, request| {
        let Request { ip, method, item, .. } = request;
        let clock = request.clock();
        writeln!(out, "2027-01-16T{clock}.250Z,{ip},{method},/v1/items/{item},200")
    })
}

/// 5,000 requests per second, each of which takes a lease for 20 to 150 ms or is refused. An answer takes 0.15 to 0.6 ms,
/// and one in a thousand 80 ms. Lines are in the order in which they were written.
fn leases(lines: u64) -> String {
    const APART_US: u64 = 200;
    let (mut ends, mut held) = (BinaryHeap::new(), HashMap::new());
    let mut written: Vec<(u64, String)> = Vec::new();
    let mut put = |at: u64, answered: u64, fields: String| {
        let line = format!("{{\"time_us\":{at},{fields}}}\n");
        written.push((at + answered / 2, line));
    };
    for (number, request) in (0..).zip(requests(lines * 7 / 13)) {
        let Request { hashed, random, .. } = request;
        let at = START * 1_000_000 + number * APART_US;
        while let Some(&Reverse((end, mark, whose))) = ends.peek()
            && end <= at
        {
            ends.pop();
            *held.entry(whose).or_insert(0) -= 1;
            let answered = 150 + mark % 450;
            put(
                end,
                answered,
                format!(
                    "\"event\":\"released\",\"answered_in_us\":{answered},\"lease\":\"{mark:016x}\",\"node\":\"gate-1\",\"n\":1"
                ),
            );
        }
        // A hundred callers, so that some are refused.
        let whose = hashed % 100;
        let slots = held.entry(whose).or_insert(0u64);
        let answered = if number % 1_000 == 999 { 80_000 } else { 150 + (random & 511) };
        let admitted = *slots < SLOTS;
        let (verdict, lease) = match admitted {
            true => ("admitted", format!("\"lease\":\"{random:016x}\",")),
            false => ("refused", String::new()),
        };
        if admitted {
            *slots += 1;
            ends.push(Reverse((at + 20_000 + random % 130_000, random, whose)));
        }
        put(
            at,
            answered,
            format!(
                "\"domain\":\"web\",\"rule\":\"slots\",\"verdict\":\"{verdict}\",\"limit\":3,\"remaining\":0,\"source\":\"store\",\"node\":\"gate-1\",\"version\":3,\"n\":1,\"cost\":1,\"answered_in_us\":{answered},{lease}\"key\":[\"ip\"],\"attributes\":{{\"ip\":\"#{whose:016x}\"}}"
            ),
        );
    }
    written.sort_by_key(|(at, _)| *at);
    written.into_iter().map(|(_, line)| line).collect()
}
