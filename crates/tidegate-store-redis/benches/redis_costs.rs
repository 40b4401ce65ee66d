//! What a decision costs Redis in CPU time, and a caller in latency, on a redis-server that this starts and stops.
//!
//! CPU is what the server says of itself: `INFO cpu` is the whole process, reading and writing sockets included;
//! `INFO commandstats` is the script alone. Latency is that of a decision through the store beside a script that does
//! nothing, through the same client, in turns.

#![expect(clippy::print_stdout, reason = "this is what it is for")]
#![expect(clippy::unwrap_used, reason = "a measurement may fail")]

mod paper;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tidegate_core::{
    Concurrency, FixedWindow, LeakyBucket, Limit, Micros, Rate, RefusedHits, SlidingLog, SlidingWindow,
    TokenBucket,
};
use tidegate_store::{Request, Spend, Store};
use tidegate_store_redis::RedisStore;
use tidegate_testkit::Redis;
use tokio::time::Instant;

use paper::{User, info, store};

/// How calls are made.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    /// Calls under way at once.
    in_flight: usize,
    /// Requests in a call.
    batch: usize,
    /// Cells of one user over which those are spread.
    cells: u8,
}

const LOADS: [Load; 4] = [
    Load { name: "alone, 1 call in flight", in_flight: 1, batch: 1, cells: 1 },
    Load { name: "alone, 64 calls in flight", in_flight: 64, batch: 1, cells: 1 },
    Load { name: "batch of 8 on one key", in_flight: 64, batch: 8, cells: 1 },
    Load { name: "batch of 8 on 8 keys", in_flight: 64, batch: 8, cells: 8 },
];

const USERS: usize = 100_000;
const DECISIONS: usize = 40_000;
const RUNS: usize = 5;
const ROUND_TRIPS: usize = 20_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        cpu_table().await;
        latency_table().await;
    });
}

/// Microseconds of Redis's time.
#[derive(Clone, Copy)]
struct Cost {
    process: f64,
    script: f64,
}

async fn cpu_table() {
    println!(
        "Redis CPU per decision in us: the whole process (the script alone); {USERS} keys, median of {RUNS}\n"
    );
    println!("| algorithm | {} |", LOADS.map(|load| load.name).join(" | "));
    println!("|---|{}", "---|".repeat(LOADS.len()));
    println!("| `PING`, for comparison | - | {:.2} | - | - |", ping_cost(&Redis::start()).await);
    for limit in limits() {
        let redis = Redis::start();
        let store = store(&redis);
        let mut row = Vec::new();
        for load in LOADS {
            let mut costs = Vec::new();
            for _ in 0..=RUNS {
                costs.push(cost(&redis, &store, &limit, load).await);
            }
            // The first makes the keys.
            row.push(shown(&costs[1..]));
        }
        println!("| {} | {} |", limit.algorithm().name(), row.join(" | "));
    }
    println!("\nTargets for token_bucket: at most 9 alone, 3 in a batch of 8.");
}

/// Limits that a measurement does not exhaust.
fn limits() -> [Limit; 6] {
    let hour = Micros::from_secs(3_600);
    let rate = Rate::new(1_000_000, hour).unwrap();
    let (short, refused) = (Micros::from_millis(50), RefusedHits::Forget);
    [
        Limit::TokenBucket(TokenBucket::new(rate, 1_000_000).unwrap()),
        Limit::FixedWindow(FixedWindow::new(1_000_000_000, hour).unwrap()),
        Limit::SlidingWindow(SlidingWindow::new(4_000_000_000, hour).unwrap()),
        Limit::LeakyBucket(LeakyBucket::new(rate, hour).unwrap()),
        Limit::SlidingLog(SlidingLog::new(100, short, Micros::ZERO, refused).unwrap()),
        Limit::Concurrency(Concurrency::new(50, short, refused).unwrap()),
    ]
}

fn shown(costs: &[Cost]) -> String {
    let of = |part: fn(&Cost) -> f64| median(costs.iter().map(part).collect());
    format!("{:.2} ({:.2})", of(|cost| cost.process), of(|cost| cost.script))
}

async fn cost(redis: &Redis, store: &RedisStore, limit: &Limit, load: Load) -> Cost {
    let users: Vec<Vec<User>> = (0..DECISIONS / load.batch)
        .map(|call| (0..load.cells).map(|cell| User::new(limit, call * 7 % USERS, cell)).collect())
        .collect();
    let before = spent_us(redis);
    let calls = users.iter().enumerate().map(|(call, users)| async move {
        let spends: Vec<[Spend<'_>; 1]> = (0..load.batch)
            .map(|number| [users[number % users.len()].spend(limit, 1, (call * 8 + number) as u64 + 1)])
            .collect();
        let batch: Vec<Request<'_>> = spends.iter().map(|spends| Request { spends }).collect();
        store.decide(&batch).answer().await.unwrap();
    });
    let mut calls = calls.into_iter();
    let mut under_way: FuturesUnordered<_> = calls.by_ref().take(load.in_flight).collect();
    while under_way.next().await.is_some() {
        under_way.extend(calls.next());
    }
    let after = spent_us(redis);
    let decisions = (users.len() * load.batch) as f64;
    Cost {
        process: (after.process - before.process) / decisions,
        script: (after.script - before.script) / decisions,
    }
}

async fn ping_cost(redis: &Redis) -> f64 {
    let client = redis::Client::open(redis.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let before = spent_us(redis);
    for _ in 0..500 {
        let pings = (0..64).map(|_| {
            let mut connection = connection.clone();
            async move { redis::cmd("PING").query_async::<String>(&mut connection).await.unwrap() }
        });
        futures_util::future::join_all(pings).await;
    }
    (spent_us(redis).process - before.process) / 32_000.0
}

/// What the server has spent so far.
fn spent_us(redis: &Redis) -> Cost {
    let stats = redis.cmd(&["INFO", "commandstats"]).text();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
    let script = line.and_then(|line| line.split(',').find_map(|field| field.strip_prefix("usec=")));
    Cost {
        process: 1e6 * (info(redis, "used_cpu_user") + info(redis, "used_cpu_sys")),
        script: script.map_or(0.0, |script| script.parse().unwrap()),
    }
}

async fn latency_table() {
    let redis = Redis::start();
    let (limit, store) = (limits()[0].clone(), store(&redis));
    let user = User::new(&limit, 1, 0);
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let script = redis::Script::new("return 1");
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..ROUND_TRIPS {
        let began = Instant::now();
        let spends = [user.spend(&limit, 1, 0)];
        store.decide(&[Request { spends: &spends }]).answer().await.unwrap();
        ours.push(began.elapsed().as_secs_f64() * 1e6);
        let began = Instant::now();
        let _: i64 = script.key("key").invoke_async(&mut connection).await.unwrap();
        bare.push(began.elapsed().as_secs_f64() * 1e6);
    }
    println!("\nLatency of one call in flight in us, {ROUND_TRIPS} of each in turns\n");
    println!("| | median | p99 |\n|---|---|---|");
    for (name, times) in [("a token-bucket decision", &ours), ("a bare `EVALSHA` of `return 1`", &bare)] {
        println!("| {name} | {:.1} | {:.1} |", median(times.clone()), percentile(times.clone(), 99));
    }
    println!("\nOurs / bare: {:.2} (target: at most 2)", median(ours) / median(bare));
}

fn median(values: Vec<f64>) -> f64 {
    percentile(values, 50)
}

fn percentile(mut values: Vec<f64>, percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() * percent / 100).min(values.len() - 1)]
}
