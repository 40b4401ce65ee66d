//! `tidegate replay`

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::{run_in, tidegate};

const NEW: &str = "{ domain: web, rules: [{ name: per-ip, key: [ip], limits: [{ algorithm: sliding_log, limit: 2, window: 1h }] }] }";
const OLD: &str = "{ domain: web, rules: [{ name: per-ip, key: [ip], limits: [{ algorithm: sliding_log, limit: 4, window: 1h }] }] }";

/// Five requests of one caller and one of another, and a line that makes no sense.
fn dir() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let line = |ip: &str, second: u64| {
        format!("{ip} - - [16/Jan/2027:00:00:{second:02} +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"\n")
    };
    let mut log: String = (0..5).map(|second| line("203.0.113.7", second)).collect();
    log += &line("198.51.100.1", 30);
    log += "nonsense\n";
    fs::write(dir.path().join("access.log"), log).unwrap();
    fs::write(dir.path().join("new.yaml"), NEW).unwrap();
    fs::write(dir.path().join("old.yaml"), OLD).unwrap();
    dir
}

#[test]
fn a_person_reads_who_would_have_been_refused_and_when() {
    let told =
        run_in(dir().path(), &["replay", "access.log", "--rules", "new.yaml", "--against", "old.yaml"]);
    for expected in [
        "exit 0",
        "requests refused: 3 (50.00 % of 6), before 1, difference +2",
        "callers refused: 1 (50.00 % of 2), before 1, difference ±0",
        "hit first: ip=203.0.113.7 at 2027-01-16T00:00:02Z",
        "line 7: it does not say when the request came: nonsense",
        "limit 2 (sliding_log per 1 h): callers by their peak",
    ] {
        assert!(told.contains(expected), "no {expected:?} in\n{told}");
    }
}

#[test]
fn a_program_gets_the_same_as_json_and_files_are_written() {
    let dir = dir();
    let args = [
        "replay",
        "access.log",
        "--rules",
        "new.yaml",
        "--output",
        "json",
        "--svg",
        "a.svg",
        "--html",
        "a.html",
    ];
    let output = tidegate(&args).current_dir(dir.path()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["refused"]["now"], &report["lines"]["bad"]), (&3.into(), &1.into()));
    assert_eq!(report["rules"][0]["limits"][0]["peaks"][1]["value"], 5);
    assert!(fs::read_to_string(dir.path().join("a.svg")).unwrap().contains("</svg>"));
    let page = fs::read_to_string(dir.path().join("a.html")).unwrap();
    assert!(
        page.contains("type=\"range\"") && !page.contains("http://127") && !page.contains("src="),
        "{page}"
    );
}

#[test]
fn mistakes_say_what_to_do() {
    let dir = dir();
    fs::write(dir.path().join("strange.log"), "a b c\n").unwrap();
    fs::write(dir.path().join("empty.log"), "").unwrap();
    let two = format!("{NEW}\n---\n{}", OLD.replace("web", "api"));
    fs::write(dir.path().join("two.yaml"), two).unwrap();
    let told = |args: &[&str]| run_in(dir.path(), &[&["replay"], args].concat());
    for (args, expected) in [
        (&["strange.log", "--rules", "new.yaml"][..], "say which it is with --format"),
        (&["empty.log", "--rules", "new.yaml"], "the log is empty"),
        (&["missing.log", "--rules", "new.yaml"], "cannot read missing.log"),
        (&["access.log", "--rules", "two.yaml"], "name it with --domain; the rules have api, web"),
        (&["access.log", "--rules", "two.yaml", "--domain", "wep"], "web"),
        (&["access.log", "--rules", "new.yaml", "--format", "caddy"], "not a single line"),
        (&["access.log", "--rules", "new.yaml", "--format", "csv"], "--map time="),
        (&["access.log", "--rules", "new.yaml", "--map", "time=when"], "there is no column `when`"),
        (
            &["access.log", "--rules", "new.yaml", "--format", "combined", "--map", "ip=a"],
            "columns of CSV, or fields of JSON lines",
        ),
        (&["-", "access.log", "-", "--rules", "new.yaml"], "`-` is given twice"),
        (&["missing.log", "--rules", "new.yaml", "--html", "no/a.html"], "cannot write no/a.html"),
        (&["access.log", "--rules", "new.yaml", "--html", "./access.log"], "it is read, or written twice"),
        (&["access.log", "--rules", "new.yaml", "--svg", "new.yaml"], "it is read, or written twice"),
        (&["access.log", "--rules", "new.yaml", "--svg", "a", "--html", "a"], "written twice"),
    ] {
        let told = told(args);
        assert!(told.starts_with("exit 1") && told.contains(expected), "{args:?}: {told}");
    }
    assert_eq!(fs::read_to_string(dir.path().join("new.yaml")).unwrap(), NEW, "what is read stays as it is");
}

#[test]
fn a_log_of_our_own_says_the_domain_of_each_request_so_nobody_else_must() {
    let dir = dir();
    let two = format!("{NEW}\n---\n{}", NEW.replace("web", "api"));
    fs::write(dir.path().join("two.yaml"), two).unwrap();
    let line = |domain: &str| {
        format!(
            "{{\"time_us\":1800057600000000,\"domain\":\"{domain}\",\"verdict\":\"admitted\",\"attributes\":{{\"ip\":\"a\"}}}}\n"
        )
    };
    fs::write(dir.path().join("own.log"), line("api").repeat(3) + &line("web")).unwrap();
    let told = run_in(dir.path(), &["replay", "own.log", "--rules", "two.yaml"]);
    assert!(told.starts_with("exit 0") && told.contains("requests refused: 1 (25.00 % of 4)"), "{told}");
}

#[test]
fn more_access_logs_are_played_than_a_process_may_open() {
    let dir = dir();
    let names: Vec<String> = (0..60).map(|number| format!("{number}.log")).collect();
    for name in &names {
        fs::copy(dir.path().join("access.log"), dir.path().join(name)).unwrap();
    }
    let program = tidegate(&[]).get_program().to_owned();
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 40; exec \"$0\" replay \"$@\" --rules new.yaml"])
        .arg(program)
        .args(&names)
        .current_dir(dir.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("of 360)"), "{told}{}", String::from_utf8_lossy(&output.stderr));
}

/// What a replay says of these logs where this many files may be open.
fn with_few_files(dir: &Path, logs: &[String]) -> Output {
    let script = "ulimit -n 40; exec \"$0\" replay \"$@\" --rules new.yaml --output json";
    let program = tidegate(&[]).get_program().to_owned();
    Command::new("sh").args(["-c", script]).arg(program).args(logs).current_dir(dir).output().unwrap()
}

#[test]
fn a_thousand_logs_of_our_own_are_played_like_one_with_all_their_lines() {
    let dir = dir();
    let line = |n: u64| {
        let (time_us, caller) = (1_800_057_600_000_000 + n * 7_000, n * n % 97);
        format!(
            "{{\"time_us\":{time_us},\"domain\":\"web\",\"verdict\":\"admitted\",\"attributes\":{{\"ip\":\"10.0.0.{caller}\"}}}}\n"
        )
    };
    // Half of the nodes write all the time, half one after the other.
    let log_of = |n: u64| if n.is_multiple_of(2) { n / 2 % 500 } else { 500 + n / 40 };
    let mut logs = vec![String::new(); 1_000];
    (0..20_000).for_each(|n| logs[usize::try_from(log_of(n)).unwrap()] += &line(n));
    let names: Vec<String> = (0..logs.len()).map(|number| format!("{number}.log")).collect();
    names.iter().zip(&logs).for_each(|(name, log)| fs::write(dir.path().join(name), log).unwrap());
    fs::write(dir.path().join("all.log"), (0..20_000).map(line).collect::<String>()).unwrap();

    let many = with_few_files(dir.path(), &names);
    let one = with_few_files(dir.path(), &["all.log".to_owned()]);
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text(&one).contains("\"read\": 20000"), "{one:?}");
    assert!(text(&many) == text(&one), "{}{}", text(&many), String::from_utf8_lossy(&many.stderr));
}

#[test]
fn a_pipe_is_played_and_a_compressed_log_is_named() {
    let dir = dir();
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let log = fs::read(dir.path().join("access.log")).unwrap();
    let writer = std::thread::spawn(move || fs::write(pipe, log).unwrap());
    let told = run_in(dir.path(), &["replay", "pipe", "--rules", "new.yaml"]);
    writer.join().unwrap();
    assert!(told.contains("requests refused: 3 (50.00 % of 6)"), "{told}");
    let gzip = Command::new("gzip").arg(dir.path().join("access.log")).status().unwrap();
    assert!(gzip.success());
    let told = run_in(dir.path(), &["replay", "access.log.gz", "--rules", "new.yaml"]);
    assert!(told.starts_with("exit 1") && told.contains("compressed") && told.contains("zcat"), "{told}");
}

/// A log of so many lines, a thousand to a second, each of the caller that `caller` says.
fn long_log(lines: u64, caller: impl Fn(u64) -> u64) -> String {
    use std::fmt::Write as _;
    let mut log = String::new();
    for n in 0..lines {
        let (second, caller) = (n / 1_000, caller(n));
        let (minute, second) = (second / 60, second % 60);
        writeln!(
            log,
            "10.{}.{}.{} - - [16/Jan/2027:00:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"",
            caller >> 16 & 255, caller >> 8 & 255, caller & 255
        )
        .unwrap();
    }
    log
}

/// The most memory that a replay of this log held at once, in KiB, and what it says.
fn held(dir: &Path, log: &str) -> (u64, Value) {
    let pipe = dir.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (rules, output) = (["--rules", "second.yaml"], ["--output", "json", "--max-callers", "2000"]);
    let child = tidegate(&[&["replay", "pipe"][..], &rules, &output].concat())
        .current_dir(dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // All of the log is written before the pipe is closed: until then it runs, and it has read all but a pipe's worth.
    use std::io::Write as _;
    let mut writer = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    writer.write_all(log.as_bytes()).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib = line.trim().trim_end_matches(" kB").trim().parse().unwrap();
    drop(writer);
    let output = child.wait_with_output().unwrap();
    fs::remove_file(pipe).unwrap();
    (kib, serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn memory_is_bounded_by_live_keys_however_many_callers_a_log_has() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "{ domain: web, rules: [{ name: per-ip, key: [ip], limits: [{ algorithm: fixed_window, limit: 5, window: 1s }] }] }";
    fs::write(dir.path().join("second.yaml"), rules).unwrap();
    const LINES: u64 = 200_000;
    let (few, report) = held(dir.path(), &long_log(LINES, |n| n % 1_000));
    assert_eq!((&report["lines"]["played"], &report["rules"][0]["callers"]), (&LINES.into(), &1_000.into()));
    let (many, report) = held(dir.path(), &long_log(LINES, |n| n));
    let callers = report["rules"][0]["callers"].as_u64().unwrap();
    assert!((180_000..220_000).contains(&callers), "nearly every line has a caller of its own: {callers}");
    // A thousand counters are alive at once, and two thousand callers are told apart. Were none of two hundred thousand counters
    // dropped they would take 6 MiB, and callers that are told apart 65 MiB more: that was measured.
    assert!(many < few + (4 << 10), "{many} KiB for 200,000 callers, {few} KiB for 1,000");
    assert!(many < 80 << 10, "{many} KiB, most of it the program itself: this is a debug build");
}

#[test]
fn progress_is_shown_in_a_terminal_and_nowhere_else() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("new.yaml"), NEW).unwrap();
    fs::write(dir.path().join("access.log"), long_log(2_000, |n| n % 500)).unwrap();
    let args = ["replay", "access.log", "--rules", "new.yaml"];
    let plain = tidegate(&args).current_dir(dir.path()).output().unwrap();
    assert_eq!((plain.status.code(), &*plain.stderr), (Some(0), &b""[..]), "nobody watches");
    // stdout goes elsewhere: what the terminal shows is stderr alone. A new one says that it has no columns, and nothing is drawn.
    let shown = shown_on_a_terminal(dir.path(), &format!("{} > report.txt", args.join(" ")));
    let size = fs::metadata(dir.path().join("access.log")).unwrap().len() as f64 / 1024.0;
    assert!(shown.contains(&format!("] 0 B of {size:.2} KiB, ")), "{shown:?}");
    assert!(shown.ends_with("\u{1b}[2K"), "it is gone in the end: {shown:?}");
    let report = fs::read(dir.path().join("report.txt")).unwrap();
    assert!(report == plain.stdout, "the report is the same, byte for byte");
}

/// What a terminal of 100 columns shows of tidegate with these arguments.
fn shown_on_a_terminal(dir: &Path, args: &str) -> String {
    let command = format!("stty cols 100 rows 30; {} {args}", env!("CARGO_BIN_EXE_tidegate"));
    let watched = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .current_dir(dir)
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&watched.stdout).into_owned();
    assert!(watched.status.success(), "{shown}");
    shown
}

#[test]
fn progress_advances_through_the_log_and_help_says_that_it_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("new.yaml"), NEW).unwrap();
    fs::write(dir.path().join("access.log"), long_log(200_000, |n| n % 500)).unwrap();
    let shown = shown_on_a_terminal(dir.path(), "replay access.log --rules new.yaml > /dev/null");
    let size = fs::metadata(dir.path().join("access.log")).unwrap().len() as f64 / f64::from(1 << 20);
    let behind = format!(" of {size:.2} MiB, ");
    let bytes = |amount: &str| {
        let (number, unit) = amount.split_once(' ').unwrap();
        let unit = ["B", "KiB", "MiB"].iter().position(|known| *known == unit).unwrap();
        number.parse::<f64>().unwrap() * 1_024_f64.powi(i32::try_from(unit).unwrap())
    };
    // Every picture of the bar: how much of the log was played. It is drawn anew every 65,536 lines.
    let played: Vec<f64> = shown
        .split("] ")
        .skip(1)
        .filter_map(|rest| rest.split_once(&behind).map(|(amount, _)| bytes(amount)))
        .collect();
    assert!(played.is_sorted(), "it never goes back: {played:?}");
    let between = played.iter().filter(|amount| **amount > 0.0 && **amount < size * f64::from(1 << 20));
    assert!(between.count() >= 2, "it is drawn while it runs: {shown:?}");
    let help = String::from_utf8(tidegate(&["replay", "--help"]).output().unwrap().stdout).unwrap();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("On a terminal a bar shows how much of the log was played"), "{help}");
}

#[test]
fn two_runs_write_the_same_json_svg_and_html_byte_for_byte() {
    let dir = dir();
    let log = long_log(20_000, |n| n * n % 997);
    fs::write(dir.path().join("access.log"), log).unwrap();
    let run = |name: &str| {
        let [svg, html] = ["svg", "html"].map(|kind| format!("{name}.{kind}"));
        let args =
            ["replay", "access.log", "--rules", "new.yaml", "--against", "old.yaml", "--output", "json"];
        let args = [&args[..], &["--svg", &svg, "--html", &html]].concat();
        // Few callers are told apart: which of them are sampled must not change from run to run either.
        let output = tidegate(&args).args(["--max-callers", "100"]).current_dir(dir.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let [svg, html] = [svg, html].map(|file| fs::read(dir.path().join(file)).unwrap());
        [output.stdout, svg, html]
    };
    let [first, second] = ["first", "second"].map(run);
    for (place, what) in ["JSON", "SVG", "HTML"].iter().enumerate() {
        assert!(first[place].len() > 500, "the {what} says something");
        assert!(first[place] == second[place], "the {what} differs");
    }
}

/// A line as Apache's documentation defines its combined format: every directive, replaced by what stands for it.
fn apache(directives: &[(&str, &str)]) -> String {
    let format = r#"%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-agent}i""#;
    let line = directives.iter().fold(format.to_owned(), |line, (name, value)| line.replace(name, value));
    assert!(!line.contains('%'), "a directive is not replaced: {line}");
    line + "\n"
}

#[test]
fn an_apache_log_is_played_by_user_and_path_whatever_its_quotes_hold() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "{ domain: web, rules: [{ name: reads, match: { method: GET, path: /apache_pb.gif }, key: [user], limits: [{ algorithm: sliding_log, limit: 2, window: 1h }] }] }";
    fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    let line = |user: &str, time: &str, request: &str| {
        // Apache puts a backslash before quotes and backslashes, and writes a size of nothing as `-`.
        apache(&[
            ("%h", "host.example.net"),
            ("%l", "-"),
            ("%u", user),
            ("%t", time),
            ("%r", request),
            ("%>s", "200"),
            ("%b", "-"),
            ("%{Referer}i", "http://www.example.com/start.html?a=\\\"b\\\""),
            ("%{User-agent}i", "Mozilla/4.08 [en] (Win98; I ;Nav) \\\\ \\\"x\\\""),
        ])
    };
    let gif = "GET /apache_pb.gif?size=\\\"1\\\" HTTP/1.0";
    // The same second, written in two zones; then another user, method and path.
    let log = line("frank", "[10/Oct/2026:13:55:36 -0700]", gif)
        + &line("frank", "[10/Oct/2026:20:55:36 +0000]", gif)
        + &line("frank", "[10/Oct/2026:20:55:37 +0000]", gif)
        + &line("alice", "[10/Oct/2026:20:55:38 +0000]", gif)
        + &line("frank", "[10/Oct/2026:20:55:39 +0000]", "POST /apache_pb.gif HTTP/1.0")
        + &line("frank", "[10/Oct/2026:20:55:40 +0000]", "GET /other HTTP/1.0")
        + &line("frank", "[10/Oct/2026:21:55:40 +0000]", gif);
    fs::write(dir.path().join("access.log"), log).unwrap();
    let args = ["replay", "access.log", "--rules", "rules.yaml", "--output", "json"];
    let output = tidegate(&args).current_dir(dir.path()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["format"], &report["lines"]["bad"]), (&"combined".into(), &0.into()), "{report}");
    let rule = &report["rules"][0];
    // Of frank's three within the hour the third is one too many; an hour later there is room again.
    assert_eq!(
        (&rule["requests"], &rule["refused"]["now"], &rule["callers"]),
        (&5.into(), &1.into(), &2.into())
    );
    assert_eq!(rule["hit_first"][0]["caller"], "user=frank");
    assert_eq!(rule["hit_first"][0]["first_refused_us"], 1_791_665_737_000_000u64);
}

#[test]
fn a_csv_is_played_by_the_columns_that_are_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "{ domain: web, rules: [{ name: per-team, key: [team], limits: [{ algorithm: sliding_log, limit: 10, window: 1h }] }] }";
    fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    // The team's name holds a comma and quotes; what a column is called is for its owner to say.
    let log = "id,when,who,units\n\
               1,2027-01-16T00:00:00Z,\"Smith, \"\"A\"\"\",6\n\
               2,2027-01-16T00:00:01Z,\"Smith, \"\"A\"\"\",4\n\
               3,2027-01-16T00:00:02Z,\"Smith, \"\"A\"\"\",1\n\
               4,2027-01-16T00:00:03Z,Jones,1\n\
               5,yesterday,Jones,1\n";
    fs::write(dir.path().join("usage.csv"), log).unwrap();
    let played = |map: &[&str]| {
        let args = ["replay", "usage.csv", "--rules", "rules.yaml", "--format", "csv", "--output", "json"];
        let map = map.iter().flat_map(|one| ["--map", *one]);
        let args: Vec<&str> = args.into_iter().chain(map).collect();
        let output = tidegate(&args).current_dir(dir.path()).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let report = played(&["time=when", "team=who", "cost=units"]);
    let rule = &report["rules"][0];
    assert_eq!(
        (&rule["requests"], &rule["refused"]["now"], &rule["callers"]),
        (&4.into(), &1.into(), &2.into())
    );
    assert_eq!(rule["hit_first"][0]["caller"], "team=Smith, \"A\"");
    assert_eq!(report["lines"]["bad"], 1, "{report}");
    // Without its column every request costs one: nobody is refused.
    assert_eq!(played(&["time=when", "team=who"])["refused"]["now"], 0);
}
