//! `Limiter::check` on the memory store, beside the bare store call and governor's keyed check, in one run:
//! `cargo bench -p tidegate-limiter`.
//!
//! Prints nanoseconds and, where valgrind is installed, instructions per decision (those are the same on a busy machine;
//! `-- instructions` prints them alone). Hash keys that can be fixed are, and the tables that choose their own in each process
//! are made anew several times, so that two runs differ by less than 0.5 %.
//! The limiter matches rules, names the cell, asks the store, and tells an observer; the store call is its last part. The
//! remote store is one that answers in the first poll: what is measured is the way to it, not the network.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::ptr_arg,
    reason = "a bench measures time and prints it"
)]

use std::future::Future;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tidegate_core::{Ask, Group, Limit, Micros, Rate, Scope, Timestamp, TokenBucket, Touch};
use tidegate_limiter::{
    CheckRequest, DescriptorAsk, Limiter, LimiterConfig, NoObserver, Prepared, RemoteConfig, Runtime, Task,
};
use tidegate_rules::{Format, RuleSet, Source};
use tidegate_store::{
    BatchOutcomes, CellCharge, CellKey, Clock, LeaseRef, ManualClock, MemoryConfig, MemoryStore, Refund,
    Reply, Request, Spend, Stamped, Store, SystemClock,
};

const KEYS: usize = 1_000_000;
const ROUNDS: usize = 9;
/// How often a subject is made anew to count its instructions, and how many decisions each makes.
const SUBJECTS: usize = 48;
const DECISIONS: usize = 500;
const HASH_KEYS: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

/// Each is one decision on one key.
const CASES: [(&str, Make); 9] = [
    ("governor keyed", |_| Box::new(Governor::new())),
    ("store, token bucket", |clock| Box::new(BareStore::new(clock))),
    ("prepared, one rule, one limit", |clock| Box::new(PreparedCheck::new(ONE, clock))),
    ("check, one rule, one limit", |clock| Box::new(Whole::new(ONE, clock))),
    ("check, one rule, two limits", |clock| Box::new(Whole::new(TWO_LIMITS, clock))),
    ("check, one rule, four limits", |clock| Box::new(Whole::new(FOUR_LIMITS, clock))),
    ("check, two of ten rules", |clock| Box::new(Whole::new(TEN, clock))),
    ("check, remote store", |clock| Box::new(Whole::remote(ONE, clock))),
    ("check, refused by deny cache", |clock| Box::new(Whole::remote(BAN, clock))),
];

type Make = fn(ReadClock) -> Box<dyn Checks>;

/// The real clock where nanoseconds count. It measures itself when it starts, now for longer and now for less, so
/// instructions are counted under one that stands still.
#[derive(Clone)]
struct ReadClock(Arc<dyn Clock>);

impl Clock for ReadClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

const ONE: &str = "- { name: per-user, key: [user], limits: [{ algorithm: token_bucket, rate: 1000000/s, burst: 1000000 }] }";
const BAN: &str =
    "- { name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 0, window: 1h }] }";
const TWO_LIMITS: &str = "- { name: per-user, key: [user], limits: [{ algorithm: token_bucket, rate: 1000000/s, burst: 1000000 }, 100000000/minute] }";
const FOUR_LIMITS: &str = "- { name: per-user, key: [user], limits: [{ algorithm: token_bucket, rate: 1000000/s, burst: 1000000 }, 100000000/minute, 100000000/hour, 100000000/day] }";
const TEN: &str = "
- { name: posts, match: { method: POST, path: /v1/items }, key: [user], limits: [{ algorithm: token_bucket, rate: 1000000/s, burst: 1000000 }] }
- { name: all, match: { path: '/v1/*' }, key: [user], limits: [100000000/minute] }
- { name: a, match: { path: /a }, limits: [1/minute] }
- { name: b, match: { path: /b }, limits: [1/minute] }
- { name: c, match: { path: /c }, limits: [1/minute] }
- { name: d, match: { path: /d }, limits: [1/minute] }
- { name: e, match: { path: /e }, limits: [1/minute] }
- { name: f, match: { path: /f }, limits: [1/minute] }
- { name: g, match: { path: /g }, limits: [1/minute] }
- { name: h, match: { path: /h }, limits: [1/minute] }";

fn main() {
    let args: Vec<String> = std::env::args().filter(|arg| arg != "--bench").collect();
    match &args[1..] {
        [run, case] if run == "run" => return run_case(case),
        [only] if only == "instructions" => return print_instructions(),
        _ => {}
    }
    let keys: Vec<String> = (0..KEYS).map(|i| format!("user-{:016x}", scramble(i as u64))).collect();
    let order: Vec<u32> = (0..KEYS).map(|i| (scramble(i as u64 ^ 0xabcd) % KEYS as u64) as u32).collect();
    println!(
        "{:<30} {:>9} {:>7} {:>12} {:>7} {:>13}",
        "", "hot, ns", "ratio", "1 M keys, ns", "ratio", "instructions"
    );
    let mut governor = None;
    for (name, make) in CASES {
        let subject = make(ReadClock(Arc::new(SystemClock::new())));
        for key in &keys {
            black_box(subject.check(key));
        }
        let hot = rounds(|| nanos(2_000_000, |_| subject.check(black_box(&keys[7]))));
        let many = rounds(|| nanos(order.len(), |i| subject.check(&keys[order[i] as usize])));
        let (hot_base, many_base) = *governor.get_or_insert((hot, many));
        let counted = instructions(name).map_or("no valgrind".to_owned(), |each| each.to_string());
        println!(
            "{name:<30} {hot:>9.1} {:>7.2} {many:>12.1} {:>7.2} {counted:>13}",
            hot / hot_base,
            many / many_base
        );
    }
}

trait Checks {
    fn check(&self, key: &String) -> bool;
}

struct Governor(DefaultKeyedRateLimiter<String>);

impl Governor {
    fn new() -> Self {
        Governor(RateLimiter::keyed(Quota::per_second(NonZeroU32::new(1_000_000).expect("not zero"))))
    }
}

impl Checks for Governor {
    fn check(&self, key: &String) -> bool {
        self.0.check_key(key).is_ok()
    }
}

struct BareStore {
    store: MemoryStore<ReadClock>,
    limit: Limit,
    scope: Scope,
}

impl BareStore {
    fn new(clock: ReadClock) -> Self {
        let rate = Rate::new(1_000_000, Micros::from_secs(1)).expect("a fine rate");
        BareStore {
            store: memory(clock),
            limit: Limit::TokenBucket(TokenBucket::new(rate, 1_000_000).expect("a fine bucket")),
            scope: Scope::new(&[b"bench", b"per-user", b"token_bucket"]),
        }
    }
}

impl Checks for BareStore {
    fn check(&self, key: &String) -> bool {
        let cell = CellKey { scope: &self.scope, key: key.as_bytes(), tag: key.as_bytes() };
        let touch = Touch { limit: &self.limit, ask: Ask::hits(1), group: Group::ENFORCED };
        match self.store.decide(&[Request::once(&[Spend { cell, touch }])]) {
            Reply::Now(Ok(outcomes)) => outcomes[0].is_admitted(),
            _ => false,
        }
    }
}

struct PreparedCheck(Prepared<1>);

impl PreparedCheck {
    fn new(rules: &str, clock: ReadClock) -> Self {
        let limiter = Limiter::new(config(rules, Arc::new(memory(clock.clone())), clock));
        PreparedCheck(limiter.prepare("api", ["user"]).expect("no leases"))
    }
}

impl Checks for PreparedCheck {
    fn check(&self, key: &String) -> bool {
        self.0.check_blocking(&[key]).is_ok_and(|verdict| verdict.is_allowed())
    }
}

struct Whole(Limiter);

impl Whole {
    fn new(rules: &str, clock: ReadClock) -> Self {
        Whole(Limiter::new(config(rules, Arc::new(memory(clock.clone())), clock)))
    }

    fn remote(rules: &str, clock: ReadClock) -> Self {
        let mut remote = RemoteConfig::new(Arc::new(AtOnce));
        remote.secret = HASH_KEYS;
        let store = Arc::new(Soon(memory(clock.clone())));
        Whole(Limiter::new(config(rules, store, clock).over_a_network(remote)))
    }
}

fn memory(clock: ReadClock) -> MemoryStore<ReadClock> {
    MemoryStore::with_clock(MemoryConfig::default(), clock).with_hash_keys(HASH_KEYS)
}

fn config(rules: &str, store: Arc<dyn Store>, clock: ReadClock) -> LimiterConfig {
    let text = format!("domain: api\nrules:\n{rules}");
    let rules = RuleSet::compile(&[Source::new("rules.yaml", text)], Format::Native).expect("fine rules");
    let mut config = LimiterConfig::new(rules, store, Arc::new(NoObserver));
    config.clock = clock.0;
    config
}

/// Memory behind a reply that must be awaited.
struct Soon(MemoryStore<ReadClock>);

impl Store for Soon {
    fn decide<'a>(&'a self, batch: &'a [Request<'a>]) -> Reply<'a, BatchOutcomes> {
        Reply::Later(Box::pin(async move { self.0.decide(batch).answer().await }))
    }
    fn refund<'a>(&'a self, refunds: &'a [Refund<'a>]) -> Reply<'a, Stamped<()>> {
        self.0.refund(refunds)
    }
    fn charge<'a>(&'a self, charges: &'a [CellCharge<'a>]) -> Reply<'a, Stamped<()>> {
        self.0.charge(charges)
    }
    fn reset<'a>(&'a self, cell: CellKey<'a>, limit: &'a Limit) -> Reply<'a, Stamped<()>> {
        self.0.reset(cell, limit)
    }
    fn renew<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        self.0.renew(lease)
    }
    fn release<'a>(&'a self, lease: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        self.0.release(lease)
    }
}

/// Runs a task while it is being spawned: the store does not let it wait.
struct AtOnce;

impl Runtime for AtOnce {
    fn spawn(&self, task: Task) {
        at_once(task);
    }

    fn sleep(&self, _span: Micros) -> Task {
        Box::pin(std::future::pending())
    }
}

impl Checks for Whole {
    fn check(&self, key: &String) -> bool {
        let entries: [(&str, &[u8]); 3] =
            [("user", key.as_bytes()), ("path", b"/v1/items"), ("method", b"POST")];
        let descriptors = [DescriptorAsk::one(&entries)];
        let request = CheckRequest::new("api", &descriptors);
        at_once(self.0.check(&request)).is_ok_and(|decision| decision.allowed)
    }
}

/// Memory answers at once: no runtime is needed, and none is measured.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("memory answers at once"),
    }
}

fn print_instructions() {
    for (name, _) in CASES {
        println!("{name:<30} {:>9}", instructions(name).expect("valgrind is installed"));
    }
}

fn run_case(name: &str) {
    let (_, make) = CASES.iter().find(|(case, _)| *case == name).expect("a case of the table");
    for _ in 0..SUBJECTS {
        let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
        let (subject, key) = (make(ReadClock(Arc::new(clock))), String::from("user-0123456789abcdef"));
        // Tables are allocated by the first decision.
        black_box(subject.check(&key));
        counted_decisions(&*subject, &key);
    }
}

/// What callgrind counts, and nothing else.
#[inline(never)]
fn counted_decisions(subject: &dyn Checks, key: &String) {
    for _ in 0..DECISIONS {
        black_box(subject.check(black_box(key)));
    }
}

/// Instructions per decision.
fn instructions(name: &str) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted_decisions*"])
        .arg(std::env::current_exe().ok()?)
        .args(["run", name])
        .output()
        .ok()?;
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = report.lines().find(|line| line.contains("Collected"))?;
    let all = line.rsplit(' ').next()?.trim().parse::<u64>().ok()?;
    Some(all / (SUBJECTS * DECISIONS) as u64)
}

fn nanos(times: usize, mut once: impl FnMut(usize) -> bool) -> f64 {
    let began = Instant::now();
    for i in 0..times {
        black_box(once(i));
    }
    began.elapsed().as_nanos() as f64 / times as f64
}

/// The median of several rounds: these machines are shared.
fn rounds(mut once: impl FnMut() -> f64) -> f64 {
    let mut all: Vec<f64> = (0..ROUNDS).map(|_| once()).collect();
    all.sort_by(f64::total_cmp);
    all[ROUNDS / 2]
}

/// A fixed scrambling, so that every run asks for the same keys in the same order.
fn scramble(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
