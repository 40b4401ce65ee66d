//! The cost of the decision log per decision on the memory store: `cargo xtask bench decision-log`.
//!
//! In nanoseconds: without an observer, with one whose log is off, at its default (one admission in a hundred), and keeping
//! everything; then the same with only refusals, up to the rate and beyond it, in memory and to a file. The cases alternate
//! within one run, so that a busy machine slows all of them alike.
//!
//! `--instructions` counts with valgrind instead, so the result is the same on any machine: a case runs twice, and the
//! difference is the cost of a decision. It fails if a log that is off costs more than 1 % of a decision, or if a node that
//! refuses everything, [`BUSY`] times per second, spends more than 3 % of its requests on the log (3.5 % with a file).
//! `cargo xtask bench telemetry` counts the cost of an admission relative to a whole request.
//!
//! `--count CASE N` makes N decisions of one case and ends.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a bench measures time and prints it")]

use std::future::Future;
use std::pin::pin;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tidegate_decisions::{DecisionLog, DecisionLogConfig, FileConfig};
use tidegate_limiter::{
    CheckRequest, Decided, DescriptorAsk, Limiter, LimiterConfig, NoObserver, Observer, RuleWatcher,
};
use tidegate_rules::{Format, Rule, RuleSet, Source};
use tidegate_store::{MemoryConfig, MemoryStore, SystemClock};

const ADMITS: &str = "{ algorithm: token_bucket, rate: 1000000/s, burst: 1000000 }";
/// After the first request, all are refused.
const REFUSES: &str = "{ algorithm: fixed_window, limit: 1, window: 1d }";
const CALLERS: u32 = 1_000;
const ROUNDS: usize = 15;
/// Requests per second of a busy node, and the instructions of one over HTTP (`cargo xtask bench telemetry`).
const BUSY: f64 = 20_000.0;
const REQUEST: f64 = 29_456.0;
/// The default number of refusals kept per second.
const KEPT: f64 = 1_000.0;

/// What is measured.
struct Case {
    name: &'static str,
    limit: &'static str,
    log: Log,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Log {
    /// No observer.
    Nobody,
    /// An observer without a log.
    Off,
    /// One admission in so many, and so many refusals in a second.
    On { one_in: u32, refusals: u32, to: To },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Memory,
    File,
}

const fn on(one_in: u32, refusals: u32, to: To) -> Log {
    Log::On { one_in, refusals, to }
}

const ALL: u32 = u32::MAX;
const CASES: [Case; 10] = [
    Case { name: "admitted, no observer", limit: ADMITS, log: Log::Nobody },
    Case { name: "admitted, off", limit: ADMITS, log: Log::Off },
    Case { name: "admitted, one in 100", limit: ADMITS, log: on(100, ALL, To::Memory) },
    Case { name: "admitted, one in 10", limit: ADMITS, log: on(10, ALL, To::Memory) },
    Case { name: "admitted, every one", limit: ADMITS, log: on(1, ALL, To::Memory) },
    Case { name: "refused, no observer", limit: REFUSES, log: Log::Nobody },
    Case { name: "refused, off", limit: REFUSES, log: Log::Off },
    Case { name: "refused, beyond the rate", limit: REFUSES, log: on(100, 0, To::Memory) },
    Case { name: "refused, every one", limit: REFUSES, log: on(100, ALL, To::Memory) },
    Case { name: "refused, every one to a file", limit: REFUSES, log: on(100, ALL, To::File) },
];

struct Ears(Option<Arc<DecisionLog>>);

impl Observer for Ears {
    fn watch_rule(&self, _rule: &Rule) -> Arc<dyn RuleWatcher> {
        Arc::new(NoObserver)
    }

    fn decided(&self, decided: &Decided<'_>) {
        if let Some(log) = &self.0 {
            log.decided(decided);
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    if let [.., flag, case, count] = &words[..]
        && flag == "--count"
    {
        let asked = Asked::new(&CASES[case.parse::<usize>().expect("a case")]);
        asked.ask(count.parse().expect("a count"));
        asked.end();
        return ExitCode::SUCCESS;
    }
    if words.iter().any(|word| word == "--instructions") {
        return if instructions() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let decisions = if words.iter().any(|word| word == "--bench") { 200_000 } else { 100 };
    let all = CASES.each_ref().map(Asked::new);
    let mut best = [f64::INFINITY; CASES.len()];
    for _ in 0..ROUNDS {
        for (asked, best) in all.iter().zip(&mut best) {
            let start = Instant::now();
            asked.ask(decisions);
            *best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(decisions));
        }
    }
    table("ns/decision", best);
    all.iter().for_each(Asked::end);
    ExitCode::SUCCESS
}

fn table(unit: &str, taken: [f64; CASES.len()]) {
    println!("{:<30} {unit:>12} {:>12}", "kept", "added");
    for (place, case) in CASES.iter().enumerate() {
        // Beside nobody, who comes first of each kind.
        let nobody = CASES[..=place].iter().rposition(|case| case.log == Log::Nobody).unwrap_or(0);
        println!("{:<30} {:>12.1} {:>12.1}", case.name, taken[place], taken[place] - taken[nobody]);
    }
}

/// Counts instructions, and checks that the log costs as little as it should.
fn instructions() -> bool {
    let mut taken = [0.0; CASES.len()];
    for (case, taken) in taken.iter_mut().enumerate() {
        let [few, many] = [2_000, 12_000].map(|count| counted(case, count));
        *taken = (many - few) / 10_000.0;
    }
    table("instructions", taken);
    let of = |name: &str| {
        let place = CASES.iter().position(|case| case.name == name).expect("a case of that name");
        taken[place]
    };
    let mut good = true;
    let mut check = |what: &str, ratio: f64, most: f64| {
        println!("{what}: {ratio:.4} times, and at most {most}");
        good &= ratio <= most;
    };
    for verdict in ["admitted", "refused"] {
        let off = of(&format!("{verdict}, off")) / of(&format!("{verdict}, no observer"));
        check(&format!("a log that is off, beside no observer, {verdict}"), off, 1.01);
    }
    let (off, beyond) = (of("refused, off"), of("refused, beyond the rate"));
    // Writing to a file costs more than the 3 % that the log may take: 3.1 % if everything is refused. It must not grow.
    for (kept, most) in [("refused, every one", 1.03), ("refused, every one to a file", 1.035)] {
        let each = (beyond - off) + (of(kept) - beyond) * KEPT / BUSY;
        let ratio = (REQUEST + each) / REQUEST;
        check(&format!("{kept}, {KEPT:.0} of {BUSY:.0} a second, beside a request over HTTP"), ratio, most);
    }
    good
}

/// Instructions of a process that makes this many decisions of a case.
fn counted(case: usize, count: u32) -> f64 {
    let own = std::env::current_exe().expect("this runs");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(own);
    let ended = valgrind.args(["--count", &case.to_string(), &count.to_string()]).output();
    let ended = ended.expect("valgrind is installed; hint: `cargo xtask tools install`");
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    let line = told.lines().find(|line| line.contains("Collected"));
    let counted = line.and_then(|line| line.rsplit(' ').next()?.trim().parse().ok());
    counted.unwrap_or_else(|| panic!("valgrind says: {told}"))
}

/// A limiter to call, and its log.
struct Asked {
    limiter: Limiter,
    log: Option<Arc<DecisionLog>>,
    refuses: bool,
    _dir: Option<tempfile::TempDir>,
}

impl Asked {
    fn new(case: &Case) -> Self {
        let dir =
            matches!(case.log, Log::On { to: To::File, .. }).then(|| tempfile::tempdir().expect("room"));
        let log = match case.log {
            Log::On { one_in, refusals, .. } => {
                let path = |dir: &tempfile::TempDir| dir.path().join("decisions.log");
                let file =
                    dir.as_ref().map(path).map(|path| FileConfig { path, most_bytes: 64 << 20, keep: 1 });
                let config = DecisionLogConfig {
                    admissions_one_in: Some(one_in),
                    refusals_per_second: refusals,
                    file,
                    ..DecisionLogConfig::default()
                };
                Some(Arc::new(DecisionLog::open(config, Arc::new(SystemClock::new())).expect("a log")))
            }
            Log::Nobody | Log::Off => None,
        };
        let text = format!(
            "{{ domain: api, rules: [{{ name: per-user, key: [user], limits: [{}] }}] }}",
            case.limit
        );
        let rules = RuleSet::compile(&[Source::new("rules.yaml", text)], Format::Native).expect("good rules");
        let store = Arc::new(MemoryStore::new(MemoryConfig::default()));
        let observer: Arc<dyn Observer> = match case.log {
            Log::Nobody => Arc::new(NoObserver),
            _ => Arc::new(Ears(log.clone())),
        };
        let limiter = Limiter::new(LimiterConfig::new(rules, store, observer));
        let asked = Asked { limiter, log, refuses: case.limit == REFUSES, _dir: dir };
        // From here on every caller is known.
        (0..CALLERS).for_each(|n| {
            asked.ask_one(n);
        });
        asked
    }

    fn ask(&self, count: u32) {
        for n in 0..count {
            assert_ne!(self.ask_one(n), self.refuses);
            // Writing the file is part of the cost: nothing may be dropped.
            if n % 4_096 == 4_095 {
                self.end();
            }
        }
    }

    fn ask_one(&self, n: u32) -> bool {
        let user = (n % CALLERS).to_le_bytes();
        let entries: [(&str, &[u8]); 3] = [("user", &user), ("method", b"GET"), ("path", b"/v1/items")];
        let asks = [DescriptorAsk::one(&entries)];
        let request = CheckRequest::new("api", &asks);
        let check = pin!(self.limiter.check(&request));
        match check.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => decision.expect("the domain is known").allowed,
            Poll::Pending => unreachable!("memory answers at once"),
        }
    }

    fn end(&self) {
        if let Some(log) = &self.log {
            assert!(log.flush(Duration::from_secs(60)) && log.stats().dropped == 0, "lines are lost");
        }
    }
}
