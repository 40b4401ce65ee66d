//! Decisions a second through the limiter on each store that nodes can share, side by side in one run.
//!
//! Limiter, clients and server share the machine; compare lines of one run. Beside PostgreSQL stands what its own pgbench does there:
//! TPC-B-like transactions, on tables that are logged, without waiting for a disk.

#![expect(clippy::print_stdout, reason = "this is what it is for")]
#![expect(clippy::unwrap_used, reason = "a measurement may fail")]

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Micros;
use tidegate_limiter::{
    CheckRequest, DescriptorAsk, Limiter, LimiterConfig, NoObserver, RemoteConfig, TokioRuntime,
};
use tidegate_rules::{Format, RuleSet};
use tidegate_store::Store;
use tidegate_store_memcached::{MemcachedConfig, MemcachedStore};
use tidegate_store_postgres::{PostgresConfig, PostgresStore};
use tidegate_store_redis::{RedisConfig, RedisStore};
use tidegate_testkit::{Memcached, Postgres, Redis};
use tokio::task::LocalSet;
use tokio::time::Instant;

const PLENTY: &str = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [{ algorithm: token_bucket, rate: 1000000000/h, burst: 1000000 }] }] }";
const ONE: &str = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [1/day] }] }";
const KEYS: usize = 100_000;
const IN_FLIGHT: usize = 256;
const LASTS: Duration = Duration::from_secs(5);
/// Time enough that the store decides everything.
const PATIENT: Duration = Duration::from_secs(5);

fn main() {
    if !std::env::args().any(|word| word == "--bench") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        println!("{KEYS} keys, {IN_FLIGHT} in flight, one core for limiter and clients\n");
        println!("| store | keys | decisions/s | p50 us | p99 us |\n|---|---|---|---|---|");
        let redis = Redis::start();
        let at = || -> Arc<dyn Store> {
            let config = RedisConfig::default().timeout(PATIENT);
            Arc::new(RedisStore::new(&redis.url().parse().unwrap(), &config).unwrap())
        };
        measure("Redis", &at).await;
        let memcached = Memcached::start_with(&["-m", "512"]);
        let at = || -> Arc<dyn Store> {
            let config = MemcachedConfig::default().timeout(PATIENT);
            Arc::new(
                MemcachedStore::new(&Memcached::url_of(&[&memcached]).parse().unwrap(), &config).unwrap(),
            )
        };
        measure("Memcached", &at).await;
        let postgres = Postgres::start();
        let url = postgres.new_database();
        let at = || -> Arc<dyn Store> {
            let config = PostgresConfig::default().timeout(PATIENT);
            Arc::new(PostgresStore::new(&url.parse().unwrap(), &config).unwrap())
        };
        measure("PostgreSQL", &at).await;
        println!("\npgbench, 8 clients: {}", postgres.pgbench(&url, LASTS));
    });
}

async fn measure(name: &str, store: &dyn Fn() -> Arc<dyn Store>) {
    for (rules, keys) in [(PLENTY, KEYS), (ONE, 1)] {
        let limiter = Rc::new(limiter(rules, store()));
        // Once for the cells and to be warm.
        load(&limiter, keys, LASTS).await;
        let mut times = load(&limiter, keys, LASTS).await;
        let rate = times.len() as f64 / LASTS.as_secs_f64();
        times.sort_by(f64::total_cmp);
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
        let keys = if keys == 1 { "one, refused".to_owned() } else { keys.to_string() };
        println!("| {name} | {keys} | {rate:.0} | {:.0} | {:.0} |", at(50), at(99));
    }
}

fn limiter(rules: &str, store: Arc<dyn Store>) -> Limiter {
    let rules =
        RuleSet::compile(&[tidegate_rules::Source::new("rules.yaml", rules)], Format::Native).unwrap();
    let mut remote = RemoteConfig::new(Arc::new(TokioRuntime));
    remote.timeout = Micros::from_secs(PATIENT.as_secs());
    Limiter::new(LimiterConfig::new(rules, store, Arc::new(NoObserver)).over_a_network(remote))
}

/// Keeps so many checks in flight over `keys` users: how long each took, in us.
async fn load(limiter: &Rc<Limiter>, keys: usize, lasts: Duration) -> Vec<f64> {
    let until = Instant::now() + lasts;
    let client = |number: usize| {
        let limiter = limiter.clone();
        tokio::task::spawn_local(async move {
            let (mut times, mut turn) = (Vec::new(), number * keys / IN_FLIGHT);
            while Instant::now() < until {
                let began = Instant::now();
                let user = format!("user-{:07}", turn * 7_919 % keys);
                let entries: [(&str, &[u8]); 1] = [("user", user.as_bytes())];
                let asks = [DescriptorAsk::one(&entries)];
                let decision = limiter.check(&CheckRequest::new("api", &asks)).await.unwrap();
                let source = decision.source.name();
                assert!(source == "store" || source == "deny_cache", "{source}");
                times.push(began.elapsed().as_secs_f64() * 1e6);
                turn += 1;
                // A refusal that is remembered suspends nowhere; the others want their turn.
                tokio::task::yield_now().await;
            }
            times
        })
    };
    let clients: Vec<_> = (0..IN_FLIGHT).map(client).collect();
    let mut all = Vec::new();
    for client in clients {
        all.extend(client.await.unwrap());
    }
    all
}
