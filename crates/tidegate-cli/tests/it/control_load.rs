//! What a publish costs those who ask meanwhile.

use std::fmt::Write as _;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate_testkit::resp::{self, Client};
use tidegate_testkit::{eventually, http};

use crate::control_world::{Node, PATIENCE, rules_of};

/// What a build without optimization compiles in a second or two is enough to see that nobody waits for it.
const RULES: usize = if cfg!(debug_assertions) { 1_000 } else { 10_000 };
/// Requests that are on their way at once.
const PIPELINE: usize = 16;
/// How long it is measured before the publish.
const BEFORE: Duration = Duration::from_secs(1);

/// How long each round of requests took, and how many requests got no decision.
#[derive(Default)]
struct Rounds {
    took: Vec<Duration>,
    failed: usize,
}

impl Rounds {
    fn p99(&mut self) -> Duration {
        self.took.sort();
        self.took[self.took.len() * 99 / 100]
    }
}

#[expect(clippy::disallowed_methods, reason = "it measures how long real answers take")]
fn now() -> Instant {
    Instant::now()
}

/// Asks again and again while `goes_on`.
fn ask(client: &mut Client, goes_on: impl Fn() -> bool) -> Rounds {
    let mut rounds = Rounds::default();
    let mut user = 0_u64;
    while goes_on() {
        let began = now();
        let users: Vec<String> = (0..PIPELINE as u64).map(|more| (user + more).to_string()).collect();
        user += PIPELINE as u64;
        let asked: Vec<Vec<&str>> = users.iter().map(|user| vec!["TG.CHECK", "api", "user", user]).collect();
        for answer in client.pipeline(&asked) {
            let decided =
                matches!(&answer, resp::Value::Array(parts) if parts.first() == Some(&resp::Value::Int(1)));
            rounds.failed += usize::from(!decided);
        }
        rounds.took.push(now().duration_since(began));
    }
    rounds
}

#[test]
fn thousands_of_rules_are_published_under_load_and_no_request_fails() {
    let mut node = Node::start("");
    let mut text = rules_of(1_000_000);
    for number in 0..RULES {
        let _ = writeln!(
            text,
            "  - {{ name: rule-{number}, match: {{ path: /v1/{number}/* }}, key: [user], limits: [5/s] }}"
        );
    }
    assert_eq!(node.publish(&rules_of(1_000_000)).status, 200);
    let resp = node.server.addr("resp");
    let published = AtomicBool::new(false);
    let (mut before, mut during, took) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut client = Client::connect(resp);
            let start = now();
            let before = ask(&mut client, || start.elapsed() < BEFORE);
            (before, ask(&mut client, || !published.load(Ordering::Relaxed)))
        });
        let began = now();
        tidegate_testkit::poll(BEFORE * 20, || (began.elapsed() >= BEFORE).then_some(()));
        let began = now();
        let answer = std::panic::catch_unwind(AssertUnwindSafe(|| node.publish(&text)));
        let took = began.elapsed();
        published.store(true, Ordering::Relaxed);
        let answer = answer.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let (before, during) = asking.join().unwrap();
        (before, during, took)
    });
    let rate = (before.took.len() * PIPELINE) as f64 / BEFORE.as_secs_f64();
    println!(
        "{RULES} rules published in {took:?} under {rate:.0} requests/s: p99 of a round of {PIPELINE} {:?} before, {:?} \
         meanwhile",
        before.p99(),
        during.p99(),
    );
    assert_eq!((before.failed, during.failed), (0, 0));
    assert!(!during.took.is_empty());
    let body = r#"{"domain":"api","attributes":{"user":"a","path":"/v1/999/x"},"cost":0}"#;
    assert_eq!(http::post_json(node.http, "/v1/check", body).json()["rule"], "rule-999");
}

/// Promised are 5 ms in a release build, of which a debug build takes about ten times as many.
const LONGEST_TURN: f64 = if cfg!(debug_assertions) { 0.1 } else { 0.005 };

/// How often the control plane's thread worked for longer than that without a rest, by the metric that operators have.
fn long_turns(node: &Node) -> f64 {
    let text = http::get(node.admin, "/metrics").text();
    let number = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
    let of = |beginning: &str| text.lines().find(|line| line.starts_with(beginning)).map_or(0.0, number);
    let name = "tidegate_control_thread_busy_seconds";
    of(&format!("{name}_count")) - of(&format!("{name}_bucket{{le=\"{LONGEST_TURN}\"}}"))
}

#[test]
fn nothing_holds_up_the_control_thread_of_a_server_with_thousands_of_rules() {
    let redis = tidegate_testkit::Redis::start();
    let store = format!("store: {{ url: '{}', timeout: '1s' }}", redis.url());
    let leader = Node::start(&format!("{store}\nadmin: {{ node: leader }}\ndecision_log: {{}}"));
    let follower = Node::start(&format!("{store}\nadmin: {{ database: none }}\ndecision_log: {{}}"));
    let mut text = rules_of(1_000_000);
    for number in 0..RULES {
        let _ = writeln!(
            text,
            "  - {{ name: rule-{number}, match: {{ path: /v1/{number}/* }}, key: [user], limits: [5/s] }}"
        );
    }
    let documents = json!({ "documents": [{ "domain": "api", "text": text }] });
    let mut long = Vec::new();
    let mut before = [&leader, &follower].map(long_turns);
    let mut look = |step: &str| {
        let now = [&leader, &follower].map(long_turns);
        if now != before {
            long.push(format!("{step}: {before:?} to {now:?}"));
        }
        before = now;
    };
    assert_eq!(leader.publish(&text).status, 200);
    follower.runs(1_000_000);
    look("publish");
    for (method, path, body) in [
        ("GET", "/rules", &Value::Null),
        ("POST", "/rules/validate", &documents),
        ("POST", "/replay", &documents),
        ("GET", "/stats", &Value::Null),
        ("GET", "/nodes", &Value::Null),
    ] {
        let answer = leader.ask(method, path, &[], body);
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text());
        look(path);
    }
    leader.ban("7");
    eventually("the ban is followed", PATIENCE, || !follower.allows("7"));
    look("ban");
    let asked = |node: &Node| http::get(node.admin, "/metrics").text();
    // Several looks for alerts, each two seconds after the last.
    let alive = || asked(&leader).contains("tidegate_control_thread_busy_seconds_count");
    eventually("it is measured", PATIENCE, alive);
    let began = now();
    tidegate_testkit::poll(PATIENCE, || (began.elapsed() > Duration::from_secs(7)).then_some(()));
    look("alerts");
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn the_largest_set_that_is_taken_reaches_a_fleet_and_its_memory_is_given_back() {
    let redis = tidegate_testkit::Redis::start();
    let store = format!("store: {{ url: '{}', timeout: '1s' }}", redis.url());
    let mut leader = Node::start(&format!("{store}\nadmin: {{ node: leader }}"));
    let follower = Node::start(&format!("{store}\nadmin: {{ database: none }}"));
    let of = |bytes: usize, limit| {
        let filler = "x".repeat(8_000);
        let mut text = rules_of(limit);
        for number in 0..bytes / 8_064 {
            let _ = writeln!(
                text,
                "  - {{ name: r{number}, description: '{filler}', limits: [{}/s] }}",
                number + 9
            );
        }
        text
    };
    assert_eq!(leader.publish(&of(17 << 20, 5)).status, 413, "this is more than is taken");
    let resident_kib = |node: &mut Node| {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", node.server.process().pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
    };
    let before = resident_kib(&mut leader);
    let began = now();
    let answer = leader.publish(&of(15 << 20, 6));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let took = began.elapsed();
    follower.runs(6);
    println!("15 MiB of rules published in {took:?}, followed after {:?}", began.elapsed());
    assert_eq!(leader.publish(&rules_of(7)).status, 200);
    follower.runs(7);
    // Ten times the set would be kept by one that kept every form of it.
    eventually("its memory is given back", PATIENCE, || resident_kib(&mut leader) < before + (100 << 10));
}
