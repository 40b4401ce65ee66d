//! Instructions per decision, counted by valgrind and so the same on a busy machine: `cargo bench -p tidegate-store
//! --bench instructions`. A regression shows here before it shows in nanoseconds.

#![expect(clippy::print_stdout, reason = "a bench prints")]

use std::hint::black_box;
use std::num::NonZeroU32;
use std::process::Command;

use governor::{Quota, RateLimiter};
use smallvec::SmallVec;
use tidegate_core::{
    Ask, Cell, FixedWindow, Group, LeakyBucket, Limit, Micros, Rate, RefusedHits, Scope, SlidingLog,
    SlidingWindow, Timestamp, TokenBucket, Touch,
};
use tidegate_store::{CellKey, ManualClock, MemoryConfig, MemoryStore, Reply, Request, Spend, Store};

const TIMES: u64 = 10_000;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, run, name, times] = &args[..]
        && run == "run"
    {
        return run_case(name, times.parse().expect("a number of times"));
    }
    println!("{:<34} {:>14}", "", "instructions");
    for name in CASES {
        // The same run with none of the decisions is what starting up costs.
        let counted = count(name, TIMES).zip(count(name, 0)).map(|(with, without)| (with - without) / TIMES);
        match counted {
            Some(each) => println!("{name:<34} {each:>14}"),
            None => return println!("valgrind is not here: install it to count instructions"),
        }
    }
}

const CASES: [&str; 9] = [
    "governor keyed",
    "core token_bucket",
    "core fixed_window",
    "core sliding_window",
    "core sliding_log",
    "core leaky_bucket",
    "store token_bucket",
    "store sliding_window",
    "store two limits",
];

fn count(name: &str, times: u64) -> Option<u64> {
    let itself = std::env::current_exe().ok()?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(itself)
        .args(["run", name, &times.to_string()])
        .output()
        .ok()?;
    let report = String::from_utf8_lossy(&output.stderr);
    let line = report.lines().find(|line| line.contains("Collected"))?;
    line.rsplit(' ').next()?.trim().parse().ok()
}

fn run_case(name: &str, times: u64) {
    let (layer, algorithm) = name.split_once(' ').expect("a layer and an algorithm");
    if layer == "governor" {
        return run_governor(times);
    }
    let limits = limits(algorithm);
    if layer == "core" {
        let mut cell = Cell::Vacant;
        for i in 0..times {
            let now = Timestamp::from_micros(1_800_000_000_000_000 + i * 10);
            black_box(limits[0].decide(&mut cell, now, Ask::hits(1)));
        }
        return;
    }
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    let store = MemoryStore::with_clock(MemoryConfig::new().max_cells(10_000), clock);
    let scopes: Vec<Scope> = (0..limits.len()).map(|i| Scope::new(&[b"bench", &[i as u8]])).collect();
    let key = b"user-0123456789abcdef";
    for _ in 0..times {
        store.clock().advance(Micros::new(10));
        let spends: SmallVec<[Spend<'_>; 2]> = limits
            .iter()
            .zip(&scopes)
            .map(|(limit, scope)| Spend {
                cell: CellKey { scope, key, tag: key },
                touch: Touch { limit, ask: Ask::hits(1), group: Group::ENFORCED },
            })
            .collect();
        let Reply::Now(outcomes) = store.decide(&[Request::once(&spends)]) else { return };
        black_box(outcomes.expect("memory answers"));
    }
}

/// The same decision by governor, for comparison.
fn run_governor(times: u64) {
    let governor = RateLimiter::keyed(Quota::per_second(NonZeroU32::MAX));
    let key = String::from("user-0123456789abcdef");
    for _ in 0..times {
        black_box(governor.check_key(black_box(&key))).expect("far below the quota");
    }
}

fn limits(algorithm: &str) -> Vec<Limit> {
    let second = Micros::from_secs(1);
    let rate = Rate::new(1_000_000, second).expect("a fine rate");
    let token = Limit::TokenBucket(TokenBucket::new(rate, 1_000_000).expect("fine"));
    let sliding = Limit::SlidingWindow(SlidingWindow::new(1_000_000, second).expect("fine"));
    vec![match algorithm {
        "token_bucket" => token,
        "fixed_window" => Limit::FixedWindow(FixedWindow::new(1_000_000, second).expect("fine")),
        "sliding_window" => sliding,
        "sliding_log" => Limit::SlidingLog(
            SlidingLog::new(1_000, second, Micros::ZERO, RefusedHits::Forget).expect("fine"),
        ),
        "leaky_bucket" => Limit::LeakyBucket(LeakyBucket::new(rate, second).expect("fine")),
        "two limits" => return vec![token, sliding],
        other => panic!("no such case: {other}"),
    }]
}
