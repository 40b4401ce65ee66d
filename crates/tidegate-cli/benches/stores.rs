//! What a decision costs through the limiter on each store, side by side in one run: a table for docs/operate/stores.md.
//!
//! Limiter, clients and servers share the machine; compare lines of one run. CPU is what the kernel counts for this process, and for
//! the server's with all its children, divided by the decisions. Beside PostgreSQL stands what its own pgbench does there: TPC-B-like
//! transactions, on tables that are logged, without waiting for a disk.

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
use tidegate_store::{MemoryConfig, MemoryStore, Store};
use tidegate_store_dynamodb::{DynamoDbConfig, DynamoDbStore, Login};
use tidegate_store_memcached::{MemcachedConfig, MemcachedStore};
use tidegate_store_postgres::{PostgresConfig, PostgresStore};
use tidegate_store_redis::{RedisConfig, RedisStore};
use tidegate_testkit::{Memcached, Moto, Postgres, Redis, cpu_of, cpu_of_family};
use tokio::task::LocalSet;
use tokio::time::Instant;

const PLENTY: &str = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [{ algorithm: token_bucket, rate: 1000000000/h, burst: 1000000 }] }] }";
const ONE: &str = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [1/day] }] }";
const KEYS: usize = 100_000;
const IN_FLIGHT: usize = 256;
/// How long each store is loaded to have all keys, and then measured.
const LASTS: Duration = Duration::from_secs(4);
/// An emulator takes one request at a time.
const OF_THE_EMULATOR: Load = Load { keys: 500, in_flight: 16, name: "500" };
/// Time enough that the store decides everything.
const PATIENT: Duration = Duration::from_secs(10);

/// How many users ask, how often at once.
#[derive(Clone, Copy)]
struct Load {
    keys: usize,
    in_flight: usize,
    name: &'static str,
}

const ALL: Load = Load { keys: KEYS, in_flight: IN_FLIGHT, name: "100,000" };

/// A store under measurement.
struct Subject<'s> {
    name: &'s str,
    open: &'s dyn Fn() -> Arc<dyn Store>,
    /// The server's process; none of a store in this one.
    server: Option<u32>,
    /// What it keeps now: users and bytes.
    kept: &'s dyn Fn() -> (f64, f64),
}

fn main() {
    if !std::env::args().any(|word| word == "--bench") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        println!(
            "{IN_FLIGHT} in flight ({} on moto), one core for limiter and clients\n",
            OF_THE_EMULATOR.in_flight
        );
        println!(
            "| Store | Keys | Decisions/s | p50 us | p99 us | CPU us, node | CPU us, server | Bytes a user |"
        );
        println!("|---|---|---|---|---|---|---|---|");
        memory().await;
        redis().await;
        memcached().await;
        let pgbench = postgres().await;
        dynamodb().await;
        println!("\npgbench on that PostgreSQL, 8 clients: {pgbench}");
    });
}

async fn memory() {
    let store = Arc::new(MemoryStore::new(MemoryConfig::new().max_cells(4 * KEYS)));
    let kept = || (store.stats().cells as f64, store.stats().bytes as f64);
    let open = || -> Arc<dyn Store> { store.clone() };
    Subject { name: "memory", open: &open, server: None, kept: &kept }.measure(ALL).await;
}

async fn redis() {
    let redis = Redis::start();
    let open = || -> Arc<dyn Store> {
        let config = RedisConfig::default().timeout(PATIENT);
        Arc::new(RedisStore::new(&redis.url().parse().unwrap(), &config).unwrap())
    };
    let info = |field: &str| redis.info(field).unwrap().parse::<f64>().unwrap();
    let before = info("used_memory");
    let kept = || (KEYS as f64, info("used_memory") - before);
    let server = redis.info("process_id").unwrap().parse().ok();
    Subject { name: "Redis", open: &open, server, kept: &kept }.measure(ALL).await;
}

async fn memcached() {
    let mut memcached = Memcached::start_with(&["-m", "512"]);
    let server = Some(memcached.process().pid());
    let open = || -> Arc<dyn Store> {
        let config = MemcachedConfig::default().timeout(PATIENT);
        Arc::new(MemcachedStore::new(&Memcached::url_of(&[&memcached]).parse().unwrap(), &config).unwrap())
    };
    let kept = || (memcached.statistic("curr_items") as f64, memcached.statistic("bytes") as f64);
    Subject { name: "Memcached", open: &open, server, kept: &kept }.measure(ALL).await;
}

/// Returns what pgbench says.
async fn postgres() -> String {
    let mut postgres = Postgres::start();
    let server = Some(postgres.process().pid());
    let url = postgres.new_database();
    let open = || -> Arc<dyn Store> {
        let config = PostgresConfig::default().timeout(PATIENT);
        Arc::new(PostgresStore::new(&url.parse().unwrap(), &config).unwrap())
    };
    let kept = || {
        let query = "SELECT count(*), pg_total_relation_size('tidegate.cells') FROM tidegate.cells";
        let told = postgres.query(&url, query);
        let (rows, bytes) = told.trim().split_once('|').unwrap();
        (rows.parse().unwrap(), bytes.parse().unwrap())
    };
    Subject { name: "PostgreSQL", open: &open, server, kept: &kept }.measure(ALL).await;
    postgres.pgbench(&url, LASTS)
}

async fn dynamodb() {
    let mut moto = Moto::start();
    let server = Some(moto.process().pid());
    let url = moto.url("limits").parse().unwrap();
    let login = Login::Key { id: "test".to_owned(), secret: "test".to_owned() };
    let config = DynamoDbConfig::default().timeout(PATIENT).login(login);
    // The first look creates the table.
    DynamoDbStore::new(&url, &config).unwrap().look().await.unwrap();
    let open = || -> Arc<dyn Store> { Arc::new(DynamoDbStore::new(&url, &config).unwrap()) };
    // What AWS would keep of them, it does not say.
    let kept = || (0.0, 0.0);
    Subject { name: "DynamoDB (moto: an emulator)", open: &open, server, kept: &kept }
        .measure(OF_THE_EMULATOR)
        .await;
}

impl Subject<'_> {
    async fn measure(&self, load: Load) {
        for (rules, load) in [(PLENTY, load), (ONE, Load { keys: 1, name: "one, refused", ..load })] {
            let store = (self.open)();
            let limiter = Rc::new(limiter(rules, store, self.server.is_some()));
            // Once for the cells and to be warm.
            ask(&limiter, load, LASTS).await;
            let (own, server) = (cpu_of(std::process::id()), self.server_cpu());
            let mut times = ask(&limiter, load, LASTS).await;
            let of_each = |span: Duration| span.as_secs_f64() * 1e6 / times.len() as f64;
            let own = of_each(cpu_of(std::process::id()).saturating_sub(own));
            let server = match self.server {
                Some(_) => format!("{:.1}", of_each(self.server_cpu().saturating_sub(server))),
                None => "-".to_owned(),
            };
            let kept = match (self.kept)() {
                (users, bytes) if users > 0.0 && load.keys > 1 => format!("{:.0}", bytes / users),
                _ => "-".to_owned(),
            };
            let rate = times.len() as f64 / LASTS.as_secs_f64();
            times.sort_by(f64::total_cmp);
            let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
            println!(
                "| {} | {} | {rate:.0} | {:.0} | {:.0} | {own:.1} | {server} | {kept} |",
                self.name,
                load.name,
                at(50),
                at(99)
            );
        }
    }

    fn server_cpu(&self) -> Duration {
        self.server.map(cpu_of_family).unwrap_or_default()
    }
}

fn limiter(rules: &str, store: Arc<dyn Store>, is_remote: bool) -> Limiter {
    let rules =
        RuleSet::compile(&[tidegate_rules::Source::new("rules.yaml", rules)], Format::Native).unwrap();
    let config = LimiterConfig::new(rules, store, Arc::new(NoObserver));
    if !is_remote {
        return Limiter::new(config);
    }
    let mut remote = RemoteConfig::new(Arc::new(TokioRuntime));
    remote.timeout = Micros::from_secs(PATIENT.as_secs());
    Limiter::new(config.over_a_network(remote))
}

/// Keeps so many checks in flight over so many users: how long each took, in us.
async fn ask(limiter: &Rc<Limiter>, load: Load, lasts: Duration) -> Vec<f64> {
    let Load { keys, in_flight, .. } = load;
    let until = Instant::now() + lasts;
    let client = |number: usize| {
        let limiter = limiter.clone();
        tokio::task::spawn_local(async move {
            let (mut times, mut turn) = (Vec::new(), number * keys / in_flight);
            while Instant::now() < until {
                let began = Instant::now();
                let user = format!("user-{:07}", turn * 7_919 % keys);
                let entries: [(&str, &[u8]); 1] = [("user", user.as_bytes())];
                let asks = [DescriptorAsk::one(&entries)];
                let decision = limiter.check(&CheckRequest::new("api", &asks)).await.unwrap();
                let source = decision.source.name();
                assert!(matches!(source, "store" | "deny_cache" | "local"), "{source}");
                times.push(began.elapsed().as_secs_f64() * 1e6);
                turn += 1;
                // A refusal that is remembered suspends nowhere; the others want their turn.
                tokio::task::yield_now().await;
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
