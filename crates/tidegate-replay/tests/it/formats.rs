//! Every format, and lines that do not conform.

use tidegate_replay::{Format, Options, Order, Parser, Reader, Replay, Report, RuleChange, html, svg, text};

use crate::{replay, rules};

const TWO_AN_HOUR: &str =
    "- { name: per-ip, key: [ip], limits: [{ algorithm: sliding_log, limit: 2, window: 1h }] }";

/// Three requests of one caller, the third a second after the second.
fn three(format: Format) -> String {
    let line = |n: u64| match format {
        Format::Combined => {
            format!("203.0.113.7 - - [16/Jan/2027:00:00:0{n} +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"")
        }
        Format::Tidegate => format!(
            r#"{{"time_us":180005760{n}000000,"domain":"web","rule":"x","verdict":"admitted","n":1,"attributes":{{"ip":"203.0.113.7"}}}}"#
        ),
        Format::Envoy => format!(
            r#"{{"start_time":"2027-01-16T00:00:0{n}.5Z","method":"GET","path":"/","downstream_remote_address":"203.0.113.7:99"}}"#
        ),
        Format::Caddy | Format::Csv | Format::Json => format!(
            r#"{{"ts":180005760{n}.5,"request":{{"client_ip":"203.0.113.7","method":"GET","uri":"/","host":"a"}},"status":200}}"#
        ),
    };
    (0..3).map(|n| line(n) + "\n").collect()
}

#[test]
fn the_same_traffic_in_every_format_gives_the_same_answer() {
    for format in [Format::Combined, Format::Tidegate, Format::Envoy, Format::Caddy] {
        let log = three(format);
        assert_eq!(Format::of(log.lines().next().unwrap().as_bytes()), Ok(format));
        let report = replay(&log, format, TWO_AN_HOUR, None);
        assert_eq!((report.refused.now, report.lines.bad), (1, 0), "{}", format.name());
        assert_eq!(report.rules[0].hit_first[0].caller, "ip=203.0.113.7");
        assert_eq!(report.rules[0].hit_first[0].first_refused_us.unwrap() / 1_000_000, 1_800_057_602);
    }
}

#[test]
fn csv_is_read_by_its_mapping() {
    let log = "when,client,amount\n2027-01-16T00:00:00Z,a,1\n2027-01-16T00:00:01Z,a,2\n1800057602,b,2\n";
    let mapping = [("time", "when"), ("ip", "client"), ("cost", "amount")];
    let mapping = mapping.map(|(what, column)| (what.to_owned(), column.to_owned()));
    let (header, rest) = log.split_once('\n').unwrap();
    let mut parser = Parser::csv(header.as_bytes(), &mapping).unwrap();
    let mut replay = Replay::new(rules(TWO_AN_HOUR), None, Options::new("web"));
    replay.play_log(&mut Reader::new(rest.as_bytes()), &mut parser, |_| ()).unwrap();
    let report = replay.finish();
    assert_eq!((report.requests, report.refused.now), (3, 1));
}

#[test]
fn lines_that_make_no_sense_are_counted_and_shown() {
    let log = format!("not a line\n{}\x1b[2J<script>\n{}\n", three(Format::Combined), "x".repeat(100_000));
    let report = replay(&log, Format::Combined, TWO_AN_HOUR, None);
    assert_eq!((report.lines.read, report.lines.played, report.lines.bad), (6, 3, 3));
    let shown: Vec<(u64, &str)> = report.lines.examples.iter().map(|bad| (bad.line, &*bad.text)).collect();
    assert_eq!(shown, [(1, "not a line"), (5, r"\u{1b}[2J<script>"), (6, "")]);
    let text = text(&report, 100);
    assert!(text.contains("3 of 6 lines were not played"), "{text}");
    assert!(!html(&report).contains("<script>\n"), "nothing that a caller wrote is markup");
    assert!(html(&report).contains("[2J&lt;script&gt;"));
}

#[test]
fn lines_out_of_order_never_turn_the_clock_back() {
    let mut lines: Vec<String> = three(Format::Combined).lines().map(ToOwned::to_owned).collect();
    lines.rotate_right(1);
    let report = replay_in(Order::AsRead, &lines.join("\n"), TWO_AN_HOUR);
    assert_eq!((report.lines.out_of_order, report.lines.most_out_of_order_us), (2, 2_000_000));
    assert_eq!(report.refused.now, 1);
    assert!(
        report.notes.iter().any(|note| note.contains("earlier than the one before")),
        "{:?}",
        report.notes
    );
}

/// The combined log of one caller with requests at these seconds.
fn at_seconds(seconds: &[u64]) -> String {
    let line = |second: &u64| {
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        format!(
            "203.0.113.7 - - [16/Jan/2027:{hour:02}:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"\n"
        )
    };
    seconds.iter().map(line).collect()
}

const ONE_IN_FIVE_SECONDS: &str =
    "- { name: r, key: [ip], limits: [{ algorithm: sliding_log, limit: 1, window: 5s }] }";

fn replay_in(order: Order, log: &str, text: &str) -> Report {
    let mut replay = Replay::new(rules(text), None, Options { order, ..Options::new("web") });
    let mut parser = Parser::new(Format::Combined).unwrap();
    replay.play_log(&mut Reader::new(log.as_bytes()), &mut parser, |_| ()).unwrap();
    replay.finish()
}

#[test]
fn lines_written_late_are_replayed_in_the_order_of_their_times() {
    // Every request is 5 s after the one before it, so that none is refused; every third line is written 10 s late.
    let times: Vec<u64> = (0..300).map(|n| 10 + n * 5).collect();
    let late: Vec<u64> = times.chunks(3).flat_map(|three| [three[1], three[2], three[0]]).collect();
    let refused =
        |order, seconds: &[u64]| replay_in(order, &at_seconds(seconds), ONE_IN_FIVE_SECONDS).refused.now;
    assert_eq!(refused(Order::Window, &times), 0);
    assert_eq!(
        refused(Order::AsRead, &late),
        100,
        "as they stand, the late ones count a second time at once"
    );
    let report = replay_in(Order::Window, &at_seconds(&late), ONE_IN_FIVE_SECONDS);
    assert_eq!((report.refused.now, report.lines.out_of_order), (0, 0));
    assert_eq!((report.lines.reordered, report.lines.most_reordered_us), (100, 10_000_000));
    let note = "100 lines are earlier than one before them, by up to 10.000 s: they are replayed in the order of their times";
    assert!(report.notes.iter().any(|one| one == note), "{:?}", report.notes);
}

#[test]
fn what_is_behind_by_more_than_the_window_is_counted_and_sorting_the_whole_log_is_named() {
    let log = at_seconds(&[1_000, 2_000, 3_000, 100]);
    let report = replay_in(Order::Window, &log, ONE_IN_FIVE_SECONDS);
    assert_eq!((report.lines.out_of_order, report.lines.played), (1, 4));
    assert!(
        report.notes.iter().any(|note| note.ends_with("--sort puts the whole log in order")),
        "{:?}",
        report.notes
    );
    let report = replay_in(Order::Whole, &log, ONE_IN_FIVE_SECONDS);
    assert_eq!((report.lines.out_of_order, report.lines.reordered, report.lines.played), (0, 1, 4));
}

#[test]
fn a_sampled_line_counts_as_often_as_it_stands_for() {
    let line =
        r#"{"time_us":1800057600000000,"domain":"web","verdict":"admitted","n":5,"attributes":{"ip":"a"}}"#;
    let report = replay(line, Format::Tidegate, TWO_AN_HOUR, None);
    assert_eq!((report.lines.read, report.requests, report.refused.now), (1, 5, 3));
    let told = report.estimate.as_deref().unwrap_or_default();
    assert!(told.starts_with("an estimate: 1 of 1 lines") && told.contains("admissions_one_in: 1"), "{told}");
    let shown = text(&report, 80);
    assert!(shown.contains("requests refused, estimated: 3"), "{shown}");
    let elsewhere = line.replace("web", "other");
    let report = replay(&elsewhere, Format::Tidegate, TWO_AN_HOUR, None);
    assert_eq!((report.lines.unknown_domain, report.requests), (1, 0));
}

#[test]
fn what_a_rule_matches_on_and_the_log_hashes_is_unknown_and_never_nought() {
    let line = r##"{"time_us":1800057600000000,"domain":"web","verdict":"refused","source":"deny_cache","n":1,"attributes":{"ip":"#0123456789abcdef","path":"#0123456789abcdee"}}"##;
    let counted =
        "- { name: counted, key: [ip], limits: [{ algorithm: sliding_log, limit: 2, window: 1h }] }";
    for pattern in ["/login", "/log*"] {
        let matching = format!(
            "- {{ name: matching, match: {{ path: '{pattern}' }}, key: [ip], limits: [{{ algorithm: sliding_log, limit: 2, window: 1h }}] }}"
        );
        let report = replay(line, Format::Tidegate, &format!("{matching}\n{counted}"), None);
        let told = "unknown: the log hashes `path`, and rule web/matching must know the values; add `decision_log: { clear: [path] }`";
        assert_eq!(report.unknown.as_deref(), Some(told));
        let unknown: Vec<bool> = report.rules.iter().map(|rule| rule.unknown).collect();
        assert_eq!(unknown, [false, true], "counting by a hash is no matching");
        assert!(!report.notes.iter().any(|note| note.contains("deny_cache")), "{:?}", report.notes);
        let (shown, page) = (text(&report, 80), html(&report));
        assert_eq!(shown.lines().nth(1), Some(told), "{shown}");
        assert!(shown.contains("rule web/matching\n  unknown"), "{shown}");
        assert!(page.contains("Unknown: the log hashes"), "{page}");
    }
    assert_eq!(replay(line, Format::Tidegate, counted, None).unknown, None);
}

#[test]
fn a_first_line_far_ahead_of_the_others_is_not_believed() {
    let line = |time_s: u64| {
        format!(
            "{{\"ts\":{time_s},\"request\":{{\"remote_ip\":\"a\",\"method\":\"GET\",\"uri\":\"/\"}},\"status\":200}}\n"
        )
    };
    let one_an_hour: String = (0..100).map(|hour| line(1_800_000_000 + hour * 3_600)).collect();
    let log = line(4_000_000_000) + &one_an_hour;
    let report = replay(&log, Format::Caddy, TWO_AN_HOUR, None);
    assert_eq!((report.lines.played, report.lines.bad, report.refused.now), (100, 1, 0));
    assert_eq!((report.lines.examples[0].line, report.from_s), (1, 1_800_000_000));
    let alone = replay(&line(4_000_000_000), Format::Caddy, TWO_AN_HOUR, None);
    assert_eq!((alone.lines.played, alone.lines.bad), (1, 0), "nothing tells that it is wrong");
}

#[test]
fn a_bad_line_of_a_csv_file_has_its_number_there_and_no_line_is_from_1970() {
    let log = "time,ip\n1800000000,a\noops,a\n1800000001,a\n";
    let mut reader = Reader::new(log.as_bytes());
    let Some(tidegate_replay::Line::Text(header)) = reader.next_line().unwrap() else { panic!("a header") };
    let columns = [("time", "time"), ("ip", "ip")].map(|(what, column)| (what.to_owned(), column.to_owned()));
    let mut parser = Parser::csv(header, &columns).unwrap();
    let mut played = Replay::new(rules(TWO_AN_HOUR), None, Options::new("web"));
    played.play_log(&mut reader, &mut parser, |_| ()).unwrap();
    assert_eq!(played.finish().lines.examples[0].line, 3);
    let nothing = replay("no log\n", Format::Caddy, TWO_AN_HOUR, None);
    let shown = text(&nothing, 80);
    assert!(shown.starts_with("not a single line could be played") && !shown.contains("1970"), "{shown}");
    assert!(!html(&nothing).contains("1970"));
}

#[test]
fn rules_are_compared_by_name_and_key() {
    let old = "- { name: per-ip, key: [user], limits: [{ algorithm: sliding_log, limit: 1, window: 1h }] }
- { name: gone, limits: [{ algorithm: sliding_log, limit: 1, window: 1h }] }";
    let report = replay(&three(Format::Combined), Format::Combined, TWO_AN_HOUR, Some(old));
    let changes: Vec<(&str, RuleChange, u64, Option<u64>)> = report
        .rules
        .iter()
        .map(|rule| (&*rule.rule, rule.change, rule.refused.now, rule.refused.before))
        .collect();
    assert_eq!(
        changes,
        [
            ("gone", RuleChange::Removed, 0, Some(2)),
            ("per-ip", RuleChange::Added, 1, Some(0)),
            ("per-ip", RuleChange::Removed, 0, Some(0)),
        ]
    );
    assert_eq!((report.newly_refused, report.newly_admitted), (Some(0), Some(1)));
}

#[test]
fn a_shadow_rule_shows_what_enforcing_it_would_refuse() {
    let shadow = TWO_AN_HOUR.replace("key:", "shadow: true, key:");
    let report = replay(&three(Format::Combined), Format::Combined, &shadow, None);
    assert_eq!((report.refused.now, report.rules[0].refused.now, report.rules[0].shadow), (0, 1, true));
    assert!(text(&report, 80).contains("what enforcing it would refuse"));
}

#[test]
fn a_concurrency_limit_counts_requests_that_overlap() {
    let two_at_once =
        "- { name: uploads, key: [ip], limits: [{ algorithm: concurrency, limit: 2, ttl: 60s }] }";
    // Each takes ten seconds: the third finds two in progress, the fourth, eleven seconds later, none.
    let line = |second: u64| {
        format!(
            r#"{{"ts":{}.0,"duration":10.0,"request":{{"client_ip":"1.1.1.1","method":"GET","uri":"/","host":"a"}},"status":200}}"#,
            1_800_057_610 + second
        )
    };
    let log = [0, 1, 2, 13].map(line).join("\n");
    let report = replay(&log, Format::Caddy, two_at_once, None);
    assert_eq!((report.requests, report.refused.now), (4, 1));
    let untimed = log.replace("\"duration\":10.0,", "");
    let report = replay(&untimed, Format::Caddy, two_at_once, None);
    assert_eq!(report.refused.now, 0);
    assert!(report.notes.iter().any(|note| note.contains("how long they took")), "{:?}", report.notes);
}

#[test]
fn a_chart_names_its_limit_and_stays_well_formed() {
    let report = replay(&three(Format::Combined), Format::Combined, TWO_AN_HOUR, None);
    let picture = svg(&report);
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    assert!(picture.contains("limit 2"), "{picture}");
    assert_eq!(picture.matches("<g ").count(), picture.matches("</g>").count());
    let text = text(&report, 80);
    assert!(text.contains("hit first: ip=203.0.113.7 at 2027-01-16T00:00:02Z"), "{text}");
}
