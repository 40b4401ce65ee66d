//! `tidegate replay`

use std::fs;

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
    ] {
        let told = told(args);
        assert!(told.starts_with("exit 1") && told.contains(expected), "{args:?}: {told}");
    }
}

#[test]
fn a_pipe_is_played_and_a_compressed_log_is_named() {
    let dir = dir();
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let log = fs::read(dir.path().join("access.log")).unwrap();
    let writer = std::thread::spawn(move || fs::write(pipe, log).unwrap());
    let told = run_in(dir.path(), &["replay", "pipe", "--rules", "new.yaml"]);
    writer.join().unwrap();
    assert!(told.contains("requests refused: 3 (50.00 % of 6)"), "{told}");
    let gzip = std::process::Command::new("gzip").arg(dir.path().join("access.log")).status().unwrap();
    assert!(gzip.success());
    let told = run_in(dir.path(), &["replay", "access.log.gz", "--rules", "new.yaml"]);
    assert!(told.starts_with("exit 1") && told.contains("compressed") && told.contains("zcat"), "{told}");
}
