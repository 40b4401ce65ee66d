//! What a decision costs Redis in CPU time, and a caller in latency, on a redis-server that this starts and stops.
//!
//! CPU is what the server says of itself under `INFO cpu`: the whole process, reading and writing sockets included. Other
//! work on the same machine makes it more, never less, so the best of many short runs is shown too. Latency is that of a
//! decision through the store beside a script that does nothing, through the same client, in turns.

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

use paper::{User, store};

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

const LOADS: [Load; 5] = [
    Load { name: "alone, 1 call in flight", in_flight: 1, batch: 1, cells: 1 },
    Load { name: "alone, 64 calls in flight", in_flight: 64, batch: 1, cells: 1 },
    Load { name: "batch of 8 on one key", in_flight: 64, batch: 8, cells: 1 },
    Load { name: "batch of 8 on 8 keys", in_flight: 64, batch: 8, cells: 8 },
    Load { name: "batch of 64 on 64 keys", in_flight: 4, batch: 64, cells: 64 },
];

const KEYS: usize = 100_000;
/// Few enough that a run is over before another process has its turn.
const DECISIONS: usize = 1_024;
const RUNS: usize = 100;
const ROUND_TRIPS: usize = 20_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        cpu_table().await;
        latency_table().await;
    });
}

async fn cpu_table() {
    println!(
        "Redis CPU per decision in us, the whole process: median of {RUNS} runs (the best); {KEYS} keys\n"
    );
    println!("| algorithm | {} |", LOADS.map(|load| load.name).join(" | "));
    println!("|---|{}", "---|".repeat(LOADS.len()));
    for (name, command) in [("`PING`", "PING"), ("`INCR`", "INCR")] {
        let cost = bare_costs(&Redis::start(), command).await;
        println!("| {name}, for comparison | - | {} | - | - | - |", shown(cost));
    }
    // Names of algorithms on the command line choose among them.
    let chosen: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_chosen =
        |limit: &Limit| chosen.is_empty() || chosen.iter().any(|name| name == limit.algorithm().name());
    for limit in limits().into_iter().filter(is_chosen) {
        let redis = Redis::start();
        let store = store(&redis);
        let mut row = Vec::new();
        for load in LOADS {
            row.push(shown(costs(&redis, &store, &limit, load).await));
        }
        println!("| {} | {} |", limit.algorithm().name(), row.join(" | "));
    }
    println!("\nTargets for token_bucket: at most 9 alone, 3 in a batch of 8, 4 over distinct keys.");
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

fn shown(costs: Vec<f64>) -> String {
    let best = percentile(costs.clone(), 0);
    format!("{:.2} ({best:.2})", median(costs))
}

/// What a decision costs, run by run, once all keys are there.
async fn costs(redis: &Redis, store: &RedisStore, limit: &Limit, load: Load) -> Vec<f64> {
    let users: Vec<Vec<User>> = (0..KEYS / usize::from(load.cells))
        .map(|number| (0..load.cells).map(|cell| User::new(limit, number, cell)).collect())
        .collect();
    for some in users.chunks(500 / usize::from(load.cells) + 1) {
        let spends: Vec<[Spend<'_>; 1]> =
            some.iter().flatten().map(|user| [user.spend(limit, 1, 1)]).collect();
        let batch: Vec<Request<'_>> = spends.iter().map(|spends| Request::once(spends)).collect();
        store.decide(&batch).answer().await.unwrap();
    }
    let mut costs = Vec::new();
    for run in 0..RUNS {
        let calls = DECISIONS / load.batch;
        // Far from each other, as users are.
        let user = |call: usize| &users[(run * calls + call) * 7_919 % users.len()];
        let before = spent_us(redis);
        let asked = (0..calls).map(|call| ask(store, limit, load, user(call), call));
        let mut waiting = asked.into_iter();
        let mut under_way: FuturesUnordered<_> = waiting.by_ref().take(load.in_flight).collect();
        while under_way.next().await.is_some() {
            under_way.extend(waiting.next());
        }
        costs.push((spent_us(redis) - before) / (calls * load.batch) as f64);
    }
    costs
}

async fn ask(store: &RedisStore, limit: &Limit, load: Load, users: &[User], call: usize) {
    let lease = |number: usize| (call * load.batch + number + 2) as u64;
    let spends: Vec<[Spend<'_>; 1]> =
        (0..load.batch).map(|number| [users[number % users.len()].spend(limit, 1, lease(number))]).collect();
    let batch: Vec<Request<'_>> = spends.iter().map(|spends| Request::once(spends)).collect();
    store.decide(&batch).answer().await.unwrap();
}

/// What a command costs that is no script, run by run.
async fn bare_costs(redis: &Redis, command: &str) -> Vec<f64> {
    let client = redis::Client::open(redis.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let run = |first: usize| {
        let calls = (first..first + 64).map(|call| {
            let mut words = redis::cmd(command);
            if command != "PING" {
                words.arg(format!("api:per-user:counter:{:07}", call * 7_919 % KEYS));
            }
            let mut connection = connection.clone();
            async move { words.query_async::<redis::Value>(&mut connection).await.unwrap() }
        });
        futures_util::future::join_all(calls)
    };
    for first in (0..KEYS).step_by(64) {
        run(first).await;
    }
    let mut costs = Vec::new();
    for first in 0..RUNS {
        let before = spent_us(redis);
        for call in 0..DECISIONS / 64 {
            run((first * DECISIONS + call) * 64).await;
        }
        costs.push((spent_us(redis) - before) / DECISIONS as f64);
    }
    costs
}

/// What the server has spent so far, reading and writing sockets included.
fn spent_us(redis: &Redis) -> f64 {
    let text = redis.cmd(&["INFO", "cpu"]).text();
    let seconds = |field: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap().trim().parse::<f64>().unwrap()
    };
    1e6 * (seconds("used_cpu_user") + seconds("used_cpu_sys"))
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
        store.decide(&[Request::once(&spends)]).answer().await.unwrap();
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
    println!("\nOurs / bare: {:.2} (target: at most 1.2)", median(ours) / median(bare));
}

fn median(values: Vec<f64>) -> f64 {
    percentile(values, 50)
}

fn percentile(mut values: Vec<f64>, percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() * percent / 100).min(values.len() - 1)]
}
