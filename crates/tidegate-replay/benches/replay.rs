//! Lines per second of a replay on one core, for each format: `cargo xtask bench replay`.
//!
//! A day of 2,000,000 requests of 50,000 callers is generated in memory, so that the disk has no part in it; what is timed
//! is reading, parsing, deciding and counting. `--against` decides everything twice. Names of formats after the command run
//! those alone.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a bench measures time and prints it")]

use std::fmt::Write as _;
use std::time::Instant;

use tidegate_replay::{Format, Options, Ordered, Parser, Reader, Replay};
use tidegate_rules::{Format as RuleFormat, RuleSet, Source};

const LINES: u64 = 2_000_000;
const CALLERS: u64 = 50_000;
const START: u64 = 1_800_057_600;
const RULES: &str = "{ domain: web, rules: [
  { name: per-ip, key: [ip], limits: [{ algorithm: sliding_window, limit: 100, window: 1m }] },
  { name: writes, match: { method: POST }, key: [ip], limits: [{ algorithm: token_bucket, rate: 1/s, burst: 5 }] }] }";

fn main() {
    // `cargo test --benches` wants to see that it runs, not how fast.
    let args: Vec<String> = std::env::args().skip(1).collect();
    let lines = if args.iter().any(|arg| arg == "--bench") { LINES } else { 1_000 };
    let formats = [Format::Combined, Format::Tidegate, Format::Envoy, Format::Caddy];
    let named = |format: &Format| args.iter().any(|arg| arg == format.name());
    let all = !formats.iter().any(named);
    println!("{:<28} {:>14} {:>12}", "log", "lines/s", "refused");
    for format in formats.into_iter().filter(|format| all || named(format)) {
        let log = log(format, lines);
        for (against, name) in
            [(false, format.name().to_owned()), (true, format!("{} --against", format.name()))]
        {
            let best = (0..3).map(|_| run(&log, format, against)).max_by(|a, b| a.0.total_cmp(&b.0));
            let (rate, refused) = best.expect("three runs");
            println!("{name:<28} {rate:>14.0} {refused:>12}");
        }
    }
}

fn rules() -> RuleSet {
    RuleSet::compile(&[Source::new("rules.yaml", RULES)], RuleFormat::Native).expect("good rules")
}

fn run(log: &str, format: Format, against: bool) -> (f64, u64) {
    let mut replay = Replay::new(rules(), against.then(rules), Options::new("web"));
    let mut parser = Parser::new(format).expect("not CSV");
    let start = Instant::now();
    let mut reader = Reader::new(log.as_bytes());
    let played = match format {
        // As the command does: in the order of their times.
        Format::Tidegate => replay.play_ordered(&mut Ordered::new([(reader, None)]), |_| ()),
        _ => replay.play_log(&mut reader, &mut parser, |_| ()),
    };
    played.expect("memory can be read");
    let report = replay.finish();
    assert_eq!(report.lines.bad, 0, "{:?}", report.lines);
    (report.lines.played as f64 / start.elapsed().as_secs_f64(), report.refused.now)
}

/// One day, callers drawn so that few make most requests.
fn log(format: Format, lines: u64) -> String {
    let mut out = String::new();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for line in 0..lines {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // The square of a uniform number leans to small ones.
        let uniform = (random >> 11) % CALLERS;
        let caller = uniform * uniform / CALLERS;
        let ip = format!("10.{}.{}.{}", caller >> 16, caller >> 8 & 255, caller & 255);
        let (second, method) = (line * 86_400 / lines, if random & 15 == 0 { "POST" } else { "GET" });
        let (h, m, s, item) = (second / 3_600, second / 60 % 60, second % 60, random >> 40 & 1023);
        let at = START + second;
        let _ = match format {
            Format::Combined => writeln!(
                out,
                "{ip} - - [16/Jan/2027:{h:02}:{m:02}:{s:02} +0000] \"{method} /v1/items/{item}?page=2 HTTP/1.1\" 200 612 \"https://example.com/shop\" \"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36\""
            ),
            Format::Tidegate => writeln!(
                out,
                "{{\"time_us\":{at}000000,\"domain\":\"web\",\"rule\":\"per-ip\",\"verdict\":\"admitted\",\"limit\":100,\"remaining\":42,\"source\":\"store\",\"node\":\"a1\",\"version\":3,\"n\":1,\"cost\":1,\"attributes\":{{\"ip\":\"{ip}\",\"method\":\"{method}\"}}}}"
            ),
            Format::Envoy => writeln!(
                out,
                "{{\"start_time\":\"2027-01-16T{h:02}:{m:02}:{s:02}.250Z\",\"method\":\"{method}\",\"path\":\"/v1/items/{item}\",\"protocol\":\"HTTP/2\",\"response_code\":200,\"response_flags\":\"-\",\"bytes_received\":0,\"bytes_sent\":612,\"duration\":12,\"x_forwarded_for\":null,\"user_agent\":\"Mozilla/5.0\",\"request_id\":\"b1c2\",\"authority\":\"api.example.com\",\"downstream_remote_address\":\"{ip}:5566\"}}"
            ),
            Format::Caddy | Format::Csv => writeln!(
                out,
                "{{\"level\":\"info\",\"ts\":{at}.25,\"logger\":\"http.log.access\",\"msg\":\"handled request\",\"request\":{{\"remote_ip\":\"{ip}\",\"remote_port\":\"41342\",\"client_ip\":\"{ip}\",\"proto\":\"HTTP/2.0\",\"method\":\"{method}\",\"host\":\"example.com\",\"uri\":\"/v1/items/{item}\",\"headers\":{{\"User-Agent\":[\"Mozilla/5.0\"],\"Accept\":[\"*/*\"]}}}},\"bytes_read\":0,\"user_id\":\"\",\"duration\":0.000929675,\"size\":612,\"status\":200}}"
            ),
        };
    }
    out
}
