//! What a check costs among ten thousand rules, and where many rules match: `cargo xtask bench many-rules`.
//!
//! Prints nanoseconds and, where valgrind is installed, instructions per check on the memory store, both for the whole
//! check and for each rule that matches. Rules that have nothing to do with a request must cost it nothing, and each of a
//! hundred that match no more than each of ten.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a bench measures time and prints it")]

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tidegate_limiter::{CheckRequest, DescriptorAsk, Limiter, LimiterConfig, NoObserver};
use tidegate_rules::{Format, OverrideEffect, RuleSet, RuntimeOverride, Source};
use tidegate_store::{ManualClock, MemoryConfig, MemoryStore};

const ROUNDS: usize = 9;
const TIMES: usize = 20_000;
const COUNTED: usize = 1_000;

/// A set of rules and how many of them match the request.
struct Case {
    name: &'static str,
    rules: fn() -> String,
    matching: usize,
}

/// Overrides of other callers' keys, where the name of a case says so.
const OVERRIDES: usize = 100_000;

const CASES: [Case; 13] = [
    Case { name: "1 rule", rules: || globs(1, |_| "/v1/*".into()), matching: 1 },
    Case { name: "1 rule, 100,000 overrides", rules: || globs(1, |_| "/v1/*".into()), matching: 1 },
    Case { name: "10,000 paths", rules: || globs(10_000, |n| format!("/v1/users/{n}/x7x/b")), matching: 1 },
    Case {
        name: "10,000 x /v1/users/N/*",
        rules: || globs(10_000, |n| format!("/v1/users/{n}/*")),
        matching: 1,
    },
    Case { name: "10,000 x *xNx*", rules: || globs(10_000, |n| format!("*x{n}x*")), matching: 1 },
    Case { name: "10,000 x /v*/N/*", rules: || globs(10_000, |n| format!("/v*/{n}/*")), matching: 1 },
    Case {
        name: "10,000 x /v*/users/*/xNx/*",
        rules: || globs(10_000, |n| format!("/v*/users/*/x{n}x/*")),
        matching: 1,
    },
    Case { name: "Envoy, 10,000 x *xNx*", rules: || wildcards(10_000, |n| format!("*x{n}x*")), matching: 1 },
    Case {
        name: "Envoy, 10,000 x /v*/N/*",
        rules: || wildcards(10_000, |n| format!("/v*/{n}/*")),
        matching: 1,
    },
    Case { name: "10 rules that match", rules: || globs(10, |_| "/v1/*".into()), matching: 10 },
    Case { name: "32 rules that match", rules: || globs(32, |_| "/v1/*".into()), matching: 32 },
    Case { name: "100 rules that match", rules: || globs(100, |_| "/v1/*".into()), matching: 100 },
    Case { name: "300 rules that match", rules: || globs(300, |_| "/v1/*".into()), matching: 300 },
];

fn globs(count: usize, path: fn(usize) -> String) -> String {
    let limit = "{ algorithm: token_bucket, rate: 1000000/s, burst: 1000000 }";
    let rule =
        |n| format!("- {{ name: r{n}, match: {{ path: '{}' }}, key: [user], limits: [{limit}] }}\n", path(n));
    format!("domain: api\nrules:\n{}", (0..count).map(rule).collect::<String>())
}

fn wildcards(count: usize, path: fn(usize) -> String) -> String {
    let limit = "rate_limit: { unit: day, requests_per_unit: 1000000000 }";
    let rule = |n| format!("- {{ key: path, value: '{}', {limit} }}\n", path(n));
    format!("domain: api\ndescriptors:\n{}", (0..count).map(rule).collect::<String>())
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, run, case, times] = &args[..]
        && run == "run"
    {
        let case = CASES.iter().find(|one| one.name == case).expect("a case of the table");
        let subject = Subject::new(case);
        return (0..times.parse().expect("a number of times")).for_each(|_| subject.check(case));
    }
    println!("{:<28} {:>10} {:>14} {:>14} {:>18}", "", "ns", "ns a match", "instructions", "instr. a match");
    for case in &CASES {
        let subject = Subject::new(case);
        subject.check(case);
        let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| nanos(|| subject.check(case))).collect();
        rounds.sort_by(f64::total_cmp);
        let (each, matching) = (rounds[0], case.matching as f64);
        let counted = instructions(case.name);
        let shown = |count: Option<u64>| count.map_or("no valgrind".to_owned(), |count| count.to_string());
        println!(
            "{:<28} {each:>10.0} {:>14.0} {:>14} {:>18}",
            case.name,
            each / matching,
            shown(counted),
            shown(counted.map(|count| count / case.matching as u64)),
        );
    }
    change_one_override();
}

/// What it takes to ban one more caller, beside compiling the rules that the ban is laid over.
fn change_one_override() {
    let began = Instant::now();
    let rules = compiled(globs(10_000, |n| format!("/v1/users/{n}/*")));
    let compiling = began.elapsed();
    let (with_all, _) = rules.with_overrides(&overrides(OVERRIDES));
    let one_more = overrides(OVERRIDES + 1);
    let began = Instant::now();
    let changed = black_box(with_all.with_overrides(&one_more));
    println!(
        "one more of {OVERRIDES} overrides is laid over 10,000 rules in {:.0?}, which compile in {compiling:.0?}",
        began.elapsed()
    );
    drop(changed);
}

fn overrides(count: usize) -> Vec<RuntimeOverride> {
    let one = |number: usize| RuntimeOverride {
        domain: "api".into(),
        rule: Some("r0".into()),
        when: vec![("user".into(), format!("special-{number}"))],
        effect: match number % 2 {
            0 => OverrideEffect::Ban,
            _ => OverrideEffect::Limits("[5/minute]".into()),
        },
        until: None,
    };
    (0..count).map(one).collect()
}

fn compiled(text: String) -> RuleSet {
    let format = if text.contains("descriptors:") { Format::EnvoyRatelimit } else { Format::Native };
    RuleSet::compile(&[Source::new("rules.yaml", text)], format).expect("fine rules")
}

struct Subject(Limiter);

impl Subject {
    fn new(case: &Case) -> Self {
        let mut rules = compiled((case.rules)());
        if case.name.contains("overrides") {
            rules = rules.with_overrides(&overrides(OVERRIDES)).0;
        }
        let clock = Arc::new(ManualClock::at(tidegate_core::Timestamp::from_micros(1_800_000_000_000_000)));
        let store = MemoryStore::with_clock(MemoryConfig::default(), clock.clone());
        let mut config = LimiterConfig::new(rules, Arc::new(store), Arc::new(NoObserver));
        config.clock = clock;
        Subject(Limiter::new(config))
    }

    /// Kept whole, since valgrind counts from where it begins to where it ends.
    #[inline(never)]
    fn check(&self, case: &Case) {
        let entries: [(&str, &[u8]); 2] = [("path", b"/v1/users/7/x7x/b"), ("user", b"42")];
        // envoyproxy/ratelimit's descriptors are matched whole.
        let entries = if case.name.starts_with("Envoy") { &entries[..1] } else { &entries[..] };
        let descriptors = [DescriptorAsk::one(black_box(entries))];
        let request = CheckRequest::new("api", &descriptors);
        let decision = at_once(self.0.check(&request)).expect("a known domain");
        assert_eq!(decision.reports().len(), case.matching, "{}", case.name);
    }
}

/// Memory answers at once: no runtime is needed, and none is measured.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("memory answers at once"),
    }
}

fn nanos(mut once: impl FnMut()) -> f64 {
    let began = Instant::now();
    (0..TIMES).for_each(|_| once());
    began.elapsed().as_nanos() as f64 / TIMES as f64
}

/// Instructions per check.
fn instructions(name: &str) -> Option<u64> {
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--toggle-collect=many_rules::Subject::check",
        ])
        .arg(std::env::current_exe().ok()?)
        .args(["run", name, &COUNTED.to_string()])
        .output()
        .ok()?;
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = report.lines().find(|line| line.contains("Collected"))?;
    Some(line.rsplit(' ').next()?.trim().parse::<u64>().ok()? / COUNTED as u64)
}
