//! Logs as disks, crashes and attackers leave them.

use std::io::{self, Read};

use tidegate_replay::{Format, Options, Parser, Reader, Replay};

use crate::{replay, rules};

const TWO_AN_HOUR: &str =
    "- { name: per-ip, key: [ip], limits: [{ algorithm: sliding_log, limit: 2, window: 1h }] }";

fn line(second: u64) -> String {
    format!("203.0.113.7 - - [16/Jan/2027:00:00:{second:02} +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"")
}

#[test]
fn torn_lines_and_nuls_are_counted_and_the_rest_is_played() {
    // A crash leaves half a line, and some file systems a stretch of zeros.
    let torn = &line(2)[..40];
    let log = format!("{}\n{torn}\n{}\n{}\n{}", line(0), "\0".repeat(5_000), line(1), line(3));
    let report = replay(&log, Format::Combined, TWO_AN_HOUR, None);
    assert_eq!((report.lines.played, report.lines.bad, report.refused.now), (3, 2, 1));
    assert!(report.lines.examples.iter().all(|bad| !bad.text.contains('\0')), "{:?}", report.lines.examples);
}

/// A log whose second line has ten megabytes and is never whole in memory.
struct Long {
    rest: Vec<u8>,
    x: usize,
    last: Vec<u8>,
}

impl Read for Long {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !self.rest.is_empty() {
            let n = self.rest.len().min(into.len());
            into[..n].copy_from_slice(&self.rest[..n]);
            self.rest.drain(..n);
            return Ok(n);
        }
        if self.x > 0 {
            let n = self.x.min(into.len());
            into[..n].fill(b'x');
            self.x -= n;
            return Ok(n);
        }
        self.rest = std::mem::take(&mut self.last);
        if self.rest.is_empty() { Ok(0) } else { self.read(into) }
    }
}

#[test]
fn a_line_of_ten_megabytes_is_one_bad_line() {
    let input =
        Long { rest: format!("{}\n", line(0)).into(), x: 10 << 20, last: format!("\n{}\n", line(1)).into() };
    let mut replay = Replay::new(rules(TWO_AN_HOUR), None, Options::new("web"));
    let mut parser = Parser::new(Format::Combined).unwrap();
    replay.play_log(&mut Reader::new(input), &mut parser, |_| ()).unwrap();
    let report = replay.finish();
    assert_eq!((report.lines.played, report.lines.bad, report.lines.read), (2, 1, 3));
}

#[test]
fn a_clock_that_goes_back_and_far_ahead_locks_nobody_out_and_frees_nobody() {
    let at = |time_us: u64| {
        format!(
            r#"{{"time_us":{time_us},"domain":"web","verdict":"admitted","n":1,"attributes":{{"ip":"a"}}}}"#
        )
    };
    let start = 1_800_057_600_000_000;
    // Back to 1970, then on: decided at the latest time that was seen, so the third of an hour is refused.
    let log = [at(start), at(0), at(start + 1), at(u64::MAX), at(start + 3_600_000_002)].join("\n");
    let report = replay(&log, Format::Tidegate, TWO_AN_HOUR, None);
    assert_eq!((report.lines.played, report.lines.bad, report.lines.out_of_order), (4, 1, 1));
    assert_eq!(report.refused.now, 1);
}

#[test]
fn an_empty_log_has_an_empty_report() {
    let report = replay("", Format::Combined, TWO_AN_HOUR, None);
    assert_eq!((report.lines.read, report.requests, report.refused.now), (0, 0, 0));
    assert!(!tidegate_replay::text(&report, 80).is_empty() && !tidegate_replay::html(&report).is_empty());
}

#[test]
fn a_line_that_claims_to_stand_for_everything_is_one_that_cannot_be_read() {
    let line = |n: &str| {
        format!(
            r#"{{"time_us":1800057600000000,"domain":"web","verdict":"admitted","n":{n},"attributes":{{"ip":"a"}}}}"#
        )
    };
    let log = [line("0"), line("-1"), line("99999999999"), line("4294967295"), line("1")].join("\n");
    let report = replay(&log, Format::Tidegate, TWO_AN_HOUR, None);
    assert_eq!((report.lines.played, report.lines.bad), (1, 4));
    assert_eq!(report.lines.examples[3].why, "it stands for more than 10,000,000 requests");
}

#[test]
fn a_mark_of_the_byte_order_before_the_first_line_is_no_part_of_it() {
    let line = r#"203.0.113.7 - - [16/Nov/2026:02:30:16 +0000] "GET / HTTP/1.1" 200 1 "-" "-""#;
    let log = format!("\u{feff}{line}\n{line}\n{line}\n");
    let report = replay(&log, Format::Combined, TWO_AN_HOUR, None);
    assert_eq!((report.rules[0].callers, report.refused.now), (1, 1));
}

/// A line of one caller, so many minutes after midnight.
fn after(minutes: u64) -> String {
    let at = 1_800_057_600 + minutes * 60;
    format!(r#"{{"time_us":{at}000000,"domain":"web","verdict":"admitted","n":1,"attributes":{{"ip":"a"}}}}"#)
}

#[test]
fn one_line_far_ahead_of_all_others_is_the_one_that_is_wrong() {
    let minutes = (0..100).map(|line| if line == 20 { 40_000_000 } else { line * 31 });
    let log: Vec<String> = minutes.map(after).collect();
    let report = replay(&log.join("\n"), Format::Tidegate, TWO_AN_HOUR, None);
    assert_eq!((report.lines.played, report.lines.bad, report.lines.out_of_order), (99, 1, 0));
    assert_eq!(report.refused.now, 0, "two an hour are within the limit");
    let shown = &report.lines.examples[0];
    assert_eq!((shown.line, &*shown.why), (21, "its time is far ahead of the lines around it"));
}

#[test]
fn a_log_that_goes_on_after_days_loses_no_line() {
    let log = [0, 1, 2, 20_000, 20_001, 20_002, 50_000].map(after);
    let report = replay(&log.join("\n"), Format::Tidegate, TWO_AN_HOUR, None);
    assert_eq!((report.lines.played, report.lines.bad, report.refused.now), (7, 0, 2));
    assert_eq!(report.to_s, 1_800_057_600 + 50_000 * 60, "the last line as well");
}

#[test]
fn logs_that_are_given_the_newest_first_are_told_to_be_turned_round() {
    let log = [500, 501, 0, 1].map(after);
    let report = replay(&log.join("\n"), Format::Tidegate, TWO_AN_HOUR, None);
    assert!(report.notes.iter().any(|note| note.contains("the oldest first")), "{:?}", report.notes);
}

#[test]
fn costs_beyond_all_bounds_overflow_nothing_whatever_the_algorithm() {
    let rules = "- name: all
  key: [ip]
  limits:
    - { algorithm: fixed_window, limit: 9, window: 1d }
    - { algorithm: sliding_window, limit: 9, window: 1h }
    - { algorithm: sliding_log, limit: 9, window: 2h }
    - { algorithm: token_bucket, rate: 1/s, burst: 9 }
    - { algorithm: leaky_bucket, rate: 5/s, max_delay: 2s }
    - { algorithm: concurrency, limit: 9, ttl: 1m }";
    let line =
        |minutes: u64, cost: u64| after(minutes).replace("\"n\":1", &format!("\"n\":1,\"cost\":{cost}"));
    let costs = [u64::MAX, u64::MAX, 1 << 53, 1 << 63, 0, 1];
    let log: Vec<String> = (0..24).map(|number| line(number / 2, costs[number as usize % 6])).collect();
    let report = replay(&log.join("\n"), Format::Tidegate, rules, None);
    assert_eq!((report.lines.played, report.refused.now), (24, 16), "all that cost more than nine");
    let told = tidegate_replay::text(&report, 80);
    assert!(told.contains("18,446,744,073,709,551,615"), "{told}");
    assert!(!tidegate_replay::html(&report).is_empty() && !tidegate_replay::svg(&report).is_empty());
}
