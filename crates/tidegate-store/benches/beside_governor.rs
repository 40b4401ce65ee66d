//! The memory store's call beside governor's keyed check, in one run: `cargo bench -p tidegate-store`.
//!
//! Prints nanoseconds per decision for one hot key and for a million random string keys, on one thread and on two, bytes
//! per key, and the ratio to governor. Both sides take a string key and a limit that never refuses within the run.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::ptr_arg,
    reason = "a bench measures time and prints it"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tidegate_core::{Ask, Group, Limit, Micros, Rate, Scope, TokenBucket, Touch};
use tidegate_store::{CellKey, MemoryConfig, MemoryStore, Reply, Request, Spend, Store};

#[global_allocator]
static HEAP: Counting = Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

/// Counts what is allocated, so that bytes per key are those really taken, whoever takes them.
struct Counting;

#[expect(unsafe_code, reason = "an allocator that counts and passes on")]
// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(ptr, layout) }
    }
}

const KEYS: usize = 1_000_000;
const ROUNDS: usize = 9;
/// More than anyone can ask within the run: a refusal would write nothing, and seem fast.
const PER_SECOND: u64 = 1_000_000_000;

fn main() {
    let keys: Vec<String> = (0..KEYS).map(|i| format!("user-{:016x}", scramble(i as u64))).collect();
    let order: Vec<u32> = (0..KEYS).map(|i| (scramble(i as u64 ^ 0xabcd) % KEYS as u64) as u32).collect();
    let (ours, our_bytes) = held(|| fill(Ours::new(), &keys));
    let (governor, governor_bytes) = held(|| fill(Theirs::new(), &keys));

    println!("{:<28} {:>10} {:>10} {:>8}", "", "tidegate", "governor", "ratio");
    let (our_hot, governor_hot) = fastest(|| (hot(&ours, &keys[7]), hot(&governor, &keys[7])));
    row("one hot key, ns", our_hot, governor_hot);
    row(
        "1 M keys, 1 thread, ns",
        rounds(|| random(&ours, &keys, &order)),
        rounds(|| random(&governor, &keys, &order)),
    );
    row(
        "1 M keys, 2 threads, ns/op",
        rounds(|| two_threads(&ours, &keys, &order)),
        rounds(|| two_threads(&governor, &keys, &order)),
    );
    row("bytes per key", our_bytes as f64 / KEYS as f64, governor_bytes as f64 / KEYS as f64);
}

/// Both limiters, asked alike.
trait Checks: Sync {
    fn check(&self, key: &String) -> bool;
}

struct Ours {
    store: MemoryStore,
    limit: Limit,
    scope: Scope,
}

impl Ours {
    fn new() -> Self {
        let rate = Rate::new(PER_SECOND, Micros::from_secs(1)).expect("a fine rate");
        Ours {
            store: MemoryStore::new(MemoryConfig::default()),
            limit: Limit::TokenBucket(TokenBucket::new(rate, PER_SECOND).expect("a fine bucket")),
            scope: Scope::new(&[b"bench", b"per-user", b"token_bucket"]),
        }
    }
}

impl Checks for Ours {
    fn check(&self, key: &String) -> bool {
        let cell = CellKey { scope: &self.scope, key: key.as_bytes(), tag: key.as_bytes() };
        let touch = Touch { limit: &self.limit, ask: Ask::hits(1), group: Group::ENFORCED };
        let spends = [Spend { cell, touch }];
        matches!(&self.store.decide(&[Request::once(&spends)]), Reply::Now(Ok(told)) if told[0].is_admitted())
    }
}

struct Theirs(DefaultKeyedRateLimiter<String>);

impl Theirs {
    fn new() -> Self {
        let quota = Quota::per_second(NonZeroU32::new(PER_SECOND as u32).expect("not zero"));
        Theirs(RateLimiter::keyed(quota))
    }
}

impl Checks for Theirs {
    fn check(&self, key: &String) -> bool {
        self.0.check_key(key).is_ok()
    }
}

fn fill<L: Checks>(limiter: L, keys: &[String]) -> L {
    for key in keys {
        black_box(limiter.check(key));
    }
    limiter
}

fn hot(limiter: &impl Checks, key: &String) -> f64 {
    let times = 10_000;
    let began = Instant::now();
    for _ in 0..times {
        black_box(limiter.check(black_box(key)));
    }
    nanos(began.elapsed(), times)
}

fn random(limiter: &impl Checks, keys: &[String], order: &[u32]) -> f64 {
    let began = Instant::now();
    for &index in order {
        black_box(limiter.check(&keys[index as usize]));
    }
    nanos(began.elapsed(), order.len())
}

fn two_threads(limiter: &impl Checks, keys: &[String], order: &[u32]) -> f64 {
    let (left, right) = order.split_at(order.len() / 2);
    let began = Instant::now();
    std::thread::scope(|threads| {
        threads.spawn(|| random(limiter, keys, left));
        threads.spawn(|| random(limiter, keys, right));
    });
    nanos(began.elapsed(), order.len())
}

/// The fastest of many short rounds, in turn: what it costs when nobody else has the core meanwhile.
fn fastest(mut both: impl FnMut() -> (f64, f64)) -> (f64, f64) {
    (0..2_000)
        .map(|_| both())
        .fold((f64::MAX, f64::MAX), |(ours, theirs), (our, their)| (ours.min(our), theirs.min(their)))
}

/// The median of several rounds: these machines are shared.
fn rounds(mut once: impl FnMut() -> f64) -> f64 {
    let mut all: Vec<f64> = (0..ROUNDS).map(|_| once()).collect();
    all.sort_by(f64::total_cmp);
    all[ROUNDS / 2]
}

fn held<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.load(Ordering::Relaxed);
    let made = make();
    (made, HELD.load(Ordering::Relaxed) - before)
}

fn nanos(elapsed: Duration, times: usize) -> f64 {
    elapsed.as_nanos() as f64 / times as f64
}

fn row(what: &str, ours: f64, theirs: f64) {
    println!("{what:<28} {ours:>10.1} {theirs:>10.1} {:>8.2}", ours / theirs);
}

/// A fixed scrambling, so that every run asks for the same keys in the same order.
fn scramble(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
