//! A decision through the limiter on a redis-server that this starts and stops: its latency beside a bare script's, and how
//! many calls under way are best.
//!
//! Limiter, clients and Redis share the machine; compare lines of one run. Redis's CPU time is what it says of itself, sockets
//! included.

#![expect(clippy::print_stdout, reason = "this is what it is for")]
#![expect(clippy::unwrap_used, reason = "a measurement may fail")]

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Micros;
use tidegate_limiter::{
    CheckRequest, DescriptorAsk, Limiter, LimiterConfig, NoObserver, RemoteConfig, Source, TokioRuntime,
};
use tidegate_rules::{Format, RuleSet};
use tidegate_store_redis::{RedisConfig, RedisStore};
use tidegate_testkit::Redis;
use tokio::task::LocalSet;
use tokio::time::Instant;

const RULES: &str = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [{ algorithm: token_bucket, rate: 1000000000/h, burst: 1000000 }] }] }";
const KEYS: usize = 100_000;
const ROUND_TRIPS: usize = 10_000;
const LASTS: Duration = Duration::from_millis(1_500);

fn main() {
    if !std::env::args().any(|word| word == "--bench") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        one_at_a_time().await;
        calls_under_way().await;
    });
}

/// A limiter on `redis` with so many calls under way, and time enough that the store decides everything.
fn limiter(redis: &Redis, calls: usize) -> Limiter {
    let rules =
        RuleSet::compile(&[tidegate_rules::Source::new("rules.yaml", RULES)], Format::Native).unwrap();
    let patient = Duration::from_secs(5);
    let config = RedisConfig::default().timeout(patient);
    let store = RedisStore::new(&redis.url().parse().unwrap(), &config).unwrap();
    let mut remote = RemoteConfig::new(Arc::new(TokioRuntime));
    remote.timeout = Micros::from_secs(5);
    remote.queue.calls = calls;
    Limiter::new(LimiterConfig::new(rules, Arc::new(store), Arc::new(NoObserver)).over_a_network(remote))
}

async fn check(limiter: &Limiter, user: usize) {
    let user = format!("user-{user:07}");
    let entries: [(&str, &[u8]); 1] = [("user", user.as_bytes())];
    let asks = [DescriptorAsk::one(&entries)];
    let request = CheckRequest::new("api", &asks);
    let decision = limiter.check(&request).await.unwrap();
    assert!(decision.allowed && decision.source == Source::Store, "{:?}", decision.source);
}

async fn one_at_a_time() {
    let redis = Redis::start();
    let limiter = limiter(&redis, 4);
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let script = redis::Script::new("return 1");
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for turn in 0..ROUND_TRIPS {
        let began = Instant::now();
        check(&limiter, turn % 100).await;
        ours.push(micros(began));
        let began = Instant::now();
        let _: i64 = script.key("key").invoke_async(&mut connection).await.unwrap();
        bare.push(micros(began));
    }
    println!("Latency of one request at a time in us, {ROUND_TRIPS} of each in turns\n");
    println!("| | median | p99 |\n|---|---|---|");
    for (name, times) in
        [("a check through the limiter", &mut ours), ("a bare `EVALSHA` of `return 1`", &mut bare)]
    {
        println!("| {name} | {:.1} | {:.1} |", percentile(times, 50), percentile(times, 99));
    }
    println!(
        "\nOurs / bare: {:.2} (target: at most 1.2)\n",
        percentile(&mut ours, 50) / percentile(&mut bare, 50)
    );
}

async fn calls_under_way() {
    println!("{KEYS} keys, one core for limiter and clients\n");
    println!(
        "| calls under way | in flight | decisions/s | p50 us | p99 us | Redis CPU us |\n|---|---|---|---|---|---|"
    );
    for in_flight in [64, 512] {
        for calls in [1, 2, 3, 4, 6, 8] {
            let redis = Redis::start();
            let limiter = Rc::new(limiter(&redis, calls));
            // Once for the cells and to be warm.
            load(&limiter, in_flight, LASTS / 3).await;
            let before = spent_us(&redis);
            let mut times = load(&limiter, in_flight, LASTS).await;
            let cpu = (spent_us(&redis) - before) / times.len() as f64;
            println!(
                "| {calls} | {in_flight} | {:.0} | {:.0} | {:.0} | {cpu:.2} |",
                times.len() as f64 / LASTS.as_secs_f64(),
                percentile(&mut times, 50),
                percentile(&mut times, 99),
            );
        }
    }
}

/// Keeps so many checks in flight, each of another user: how long each took, in us.
async fn load(limiter: &Rc<Limiter>, in_flight: usize, lasts: Duration) -> Vec<f64> {
    let until = Instant::now() + lasts;
    let client = |number: usize| {
        let limiter = limiter.clone();
        tokio::task::spawn_local(async move {
            let (mut times, mut user) = (Vec::new(), number * KEYS / in_flight);
            while Instant::now() < until {
                let began = Instant::now();
                check(&limiter, user * 7_919 % KEYS).await;
                times.push(micros(began));
                user += 1;
            }
            times
        })
    };
    let clients: Vec<_> = (0..in_flight).map(client).collect();
    let mut all = Vec::new();
    for client in clients {
        all.extend(client.await.unwrap());
    }
    all
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
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

fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() * percent / 100).min(values.len() - 1)]
}
