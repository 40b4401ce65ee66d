//! What a user costs in memory under every algorithm, in the memory store and in Redis, beside the table of the paper
//! that the design starts from: a log of 100 hits (L=100), 50 requests at once (C=50).
//!
//! In Redis, "the key" is the mean of `MEMORY USAGE`; "all told" is how much `used_memory` grew per user, which has the
//! server's tables in it too.

#![expect(clippy::print_stdout, reason = "this is what it is for")]
#![expect(clippy::unwrap_used, reason = "a measurement may fail")]

mod paper;

use tidegate_core::{
    Algorithm, Concurrency, FixedWindow, LeakyBucket, Limit, Micros, Rate, RefusedHits, SlidingLog,
    SlidingWindow, TokenBucket,
};
use tidegate_store::{MemoryConfig, MemoryStore, Request, Spend, Store};
use tidegate_testkit::Redis;
use tidegate_testkit::resp::Value;

use paper::{User, store};

/// A limit, and what the paper's table says that it takes per user.
struct Row {
    limit: Limit,
    paper: &'static str,
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        println!("Bytes per user, everything spent: L=100 hits in an hour, C=50 requests at once\n");
        println!(
            "| algorithm | users | the paper's table | memory store | Redis, the key | Redis, all told |"
        );
        println!("|---|---|---|---|---|---|");
        for row in rows() {
            println!("{}", measured(&row).await);
        }
        println!("| sorted set as in the paper, L=100 | 20000 | 800 | - | {} |", sorted_sets());
    });
}

fn rows() -> [Row; 6] {
    let (hour, refused) = (Micros::from_secs(3_600), RefusedHits::Forget);
    let rate = Rate::new(100, hour).unwrap();
    let log = SlidingLog::new(100, hour, Micros::ZERO, refused).unwrap();
    [
        Row { limit: Limit::TokenBucket(TokenBucket::new(rate, 100).unwrap()), paper: "16" },
        Row { limit: Limit::FixedWindow(FixedWindow::new(100, hour).unwrap()), paper: "16" },
        Row { limit: Limit::SlidingWindow(SlidingWindow::new(100, hour).unwrap()), paper: "-" },
        Row { limit: Limit::LeakyBucket(LeakyBucket::new(rate, hour).unwrap()), paper: "-" },
        Row { limit: Limit::SlidingLog(log), paper: "800 (8L)" },
        Row { limit: Limit::Concurrency(Concurrency::new(50, hour, refused).unwrap()), paper: "800 (16C)" },
    ]
}

async fn measured(Row { limit, paper }: &Row) -> String {
    let users = if limit.is_counter() { 100_000 } else { 20_000 };
    let config = MemoryConfig::new().max_cells(2 * users).max_log_bytes(1 << 30);
    let memory = MemoryStore::new(config);
    let before = memory.stats().bytes;
    fill(&memory, limit, users).await;
    let in_memory = (memory.stats().bytes - before) / users;
    let redis = Redis::start();
    let store = store(&redis);
    // The script is there before anything is measured.
    fill(&store, limit, 1).await;
    let before = info(&redis, "used_memory");
    fill(&store, limit, users).await;
    let told = (info(&redis, "used_memory") - before) / users as f64;
    let name = limit.algorithm().name();
    format!("| {name} | {users} | {paper} | {in_memory} | {} | {told:.0} |", key_bytes(&redis))
}

/// What a user does who uses all that there is: calls, and hits in each.
fn full_use(limit: &Limit) -> (u64, u64) {
    match limit.algorithm() {
        Algorithm::SlidingLog => (50, 2),
        Algorithm::Concurrency => (50, 1),
        _ => (1, 100),
    }
}

async fn fill(store: &dyn Store, limit: &Limit, users: usize) {
    let (calls, hits) = full_use(limit);
    for first in (0..users).step_by(1_000) {
        let chunk: Vec<(u64, User)> = (first..users.min(first + 1_000))
            .map(|number| (number as u64 + 1, User::new(limit, number, 0)))
            .collect();
        for call in 0..calls {
            // Names as random as real ones.
            let name = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(2 * call) | 1;
            let spends: Vec<[Spend<'_>; 1]> =
                chunk.iter().map(|(number, user)| [user.spend(limit, hits, name(*number))]).collect();
            let batch: Vec<Request<'_>> = spends.iter().map(|spends| Request::once(spends)).collect();
            store.decide(&batch).answer().await.unwrap();
        }
    }
}

/// The same log as the paper keeps it: a sorted set of the times of hits.
fn sorted_sets() -> String {
    const USERS: usize = 20_000;
    let redis = Redis::start();
    let before = info(&redis, "used_memory");
    let fill = "for user = 1, 1000 do \
                  local key = 'rate_limiter:' .. string.format('%07d', ARGV[1] + user) \
                  for hit = 1, 100 do \
                    local now = string.format('%.0f', 1755800000123456 + 36000000 * hit) \
                    redis.call('ZADD', key, now, now) \
                  end \
                end";
    for first in (0..USERS).step_by(1_000) {
        redis.cmd(&["EVAL", fill, "0", &first.to_string()]);
    }
    let told = (info(&redis, "used_memory") - before) / USERS as f64;
    format!("{} | {told:.0}", key_bytes(&redis))
}

/// The mean of `MEMORY USAGE` over a hundred keys.
fn key_bytes(redis: &Redis) -> i64 {
    let key = || match redis.cmd(&["RANDOMKEY"]) {
        Value::Bulk(key) => key,
        other => panic!("a key is a string, not {other:?}"),
    };
    (0..100).map(|_| redis.cmd(&[&b"MEMORY"[..], b"USAGE", &key()]).int()).sum::<i64>() / 100
}

/// A number that `INFO` shows.
fn info(redis: &Redis, field: &str) -> f64 {
    let value = redis.info(field).unwrap_or_else(|| panic!("INFO has no {field}"));
    value.parse().unwrap_or_else(|_| panic!("{field} is a number, not {value}"))
}
