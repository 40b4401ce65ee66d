//! What the decision log adds to a decision, in nanoseconds, on the memory store: `cargo xtask bench decision-log`.
//!
//! Off, at its default (one admission in a hundred), and keeping everything, in turns within one run, so that a busy machine
//! slows all of them alike. A decision over HTTP or gRPC takes several microseconds (`cargo xtask bench server`): 3 % of
//! that is what the default may add, and `cargo xtask bench telemetry` counts what it does add, in instructions.
//!
//! `--count CASE N` makes N decisions of one case (0: off, 1: one in a hundred, 2: one in ten, 3: everything) and ends, for
//! `valgrind --tool=callgrind`: the difference between two N is what a decision takes in instructions, on any machine.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a bench measures time and prints it")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tidegate_decisions::{DecisionLog, DecisionLogConfig};
use tidegate_limiter::{
    CheckRequest, Decided, DescriptorAsk, Limiter, LimiterConfig, NoObserver, Observer, RuleWatcher,
};
use tidegate_rules::{Format, Rule, RuleSet, Source};
use tidegate_store::{MemoryConfig, MemoryStore, SystemClock};

const RULES: &str = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [{ algorithm: token_bucket, rate: 1000000/s, burst: 1000000 }] }] }";
const ROUNDS: usize = 15;

struct Ears(Option<DecisionLog>);

impl Observer for Ears {
    fn watch_rule(&self, _rule: &Rule) -> Arc<dyn RuleWatcher> {
        Arc::new(NoObserver)
    }

    fn decided(&self, decided: &Decided<'_>) {
        if let Some(log) = &self.0 {
            log.hear(decided);
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if let [.., flag, case, count] = &words[..]
        && flag == "--count"
    {
        let one_in = [None, Some(100), Some(10), Some(1)][case.parse::<usize>().expect("a case")];
        let limiter = limiter(one_in);
        (0..count.parse().expect("a count")).for_each(|n| ask(&limiter, n));
        return;
    }
    let decisions = if std::env::args().any(|arg| arg == "--bench") { 200_000 } else { 100 };
    let cases = [("off", None), ("one in 100", Some(100)), ("one in 10", Some(10)), ("everything", Some(1))];
    let limiters = cases.map(|(_, one_in)| limiter(one_in));
    let mut best = [f64::INFINITY; 4];
    for _ in 0..ROUNDS {
        for (limiter, best) in limiters.iter().zip(&mut best) {
            let start = Instant::now();
            (0..decisions).for_each(|n| ask(limiter, n));
            *best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(decisions));
        }
    }
    println!("{:<14} {:>12} {:>12}", "kept", "ns/decision", "added");
    for ((name, _), taken) in cases.iter().zip(best) {
        println!("{name:<14} {taken:>12.1} {:>12.1}", taken - best[0]);
    }
}

fn limiter(one_in: Option<u32>) -> Limiter {
    let log = one_in.map(|admissions_one_in| {
        let config = DecisionLogConfig { admissions_one_in, ..DecisionLogConfig::default() };
        DecisionLog::open(config, Arc::new(SystemClock::new())).expect("it has no file")
    });
    let rules = RuleSet::compile(&[Source::new("rules.yaml", RULES)], Format::Native).expect("good rules");
    let store = Arc::new(MemoryStore::new(MemoryConfig::default()));
    Limiter::new(LimiterConfig::new(rules, store, Arc::new(Ears(log))))
}

fn ask(limiter: &Limiter, n: u32) {
    let user = (n % 10_000).to_le_bytes();
    let entries: [(&str, &[u8]); 3] = [("user", &user), ("method", b"GET"), ("path", b"/v1/items")];
    let asks = [DescriptorAsk::one(&entries)];
    let request = CheckRequest::new("api", &asks);
    let check = pin!(limiter.check(&request));
    match check.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => assert!(decision.is_ok_and(|decision| decision.allowed)),
        Poll::Pending => unreachable!("memory answers at once"),
    }
}
