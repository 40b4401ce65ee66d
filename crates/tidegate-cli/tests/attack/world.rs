//! Real servers to attack: a store, and tidegate processes on it.

use std::fs;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;
use tidegate_testkit::{
    Memcached, Moto, Postgres, Redis, RedisCluster, SentinelGroup, ShardedRedis, SteppedClock,
    TidegateServer, eventually, http,
};

/// Far longer than any of this takes, for machines that are busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What a node waits for its store where every decision must be the store's: a busy machine must not make it give up.
pub(crate) const PATIENT: &str = "5s";
/// What it waits by default.
pub(crate) const DEFAULT: &str = "10ms";

#[expect(clippy::disallowed_methods, reason = "the attacks' one clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The machine's wall clock, since 1970.
#[expect(clippy::disallowed_methods, reason = "fixed windows begin by the wall clock")]
pub(crate) fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970")
}

/// Lets time pass that a fault must last, or that a client was told to wait.
#[expect(clippy::disallowed_methods, reason = "faults take their time, and so do clients that wait as told")]
pub(crate) fn pass(span: Duration) {
    std::thread::sleep(span);
}

/// Only one attack at a time: each needs the whole machine.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where cells live.
pub(crate) enum Store {
    Single(Box<Redis>),
    Sentinel(SentinelGroup),
    Cluster(RedisCluster),
    Sharded(ShardedRedis),
    /// With the name of a database in it.
    Postgres(Box<Postgres>, String),
    Memcached(Box<Memcached>),
    /// An emulator.
    DynamoDb(Box<Moto>),
}

impl Store {
    pub(crate) fn single() -> Self {
        Store::Single(Box::new(Redis::start()))
    }

    /// One that reads `clock`.
    pub(crate) fn on_clock(clock: &SteppedClock) -> Self {
        Store::Single(Box::new(Redis::builder().clock(clock).start()))
    }

    pub(crate) fn postgres() -> Self {
        let postgres = Postgres::start();
        let url = postgres.new_database();
        let database = url.rsplit('/').next().expect("a URL names one").to_owned();
        Store::Postgres(Box::new(postgres), database)
    }

    pub(crate) fn memcached() -> Self {
        Store::Memcached(Box::new(Memcached::start()))
    }

    pub(crate) fn dynamodb() -> Self {
        Store::DynamoDb(Box::new(Moto::start()))
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Store::Single(redis) => redis.url(),
            Store::Sentinel(group) => group.url(),
            Store::Cluster(cluster) => cluster.url(),
            Store::Sharded(servers) => servers.url(),
            Store::Postgres(server, database) => format!("postgres://postgres@{}/{database}", server.addr()),
            Store::Memcached(server) => Memcached::url_of(&[server]),
            Store::DynamoDb(server) => server.url("limits"),
        }
    }

    /// Every Redis that may hold cells.
    pub(crate) fn servers(&self) -> Vec<&Redis> {
        match self {
            Store::Single(redis) => vec![redis],
            Store::Sentinel(group) => group.nodes().iter().collect(),
            Store::Cluster(cluster) => cluster.nodes().iter().collect(),
            Store::Sharded(servers) => servers.nodes().iter().collect(),
            Store::Postgres(..) | Store::Memcached(_) | Store::DynamoDb(_) => Vec::new(),
        }
    }

    /// Whether one request may need several servers.
    pub(crate) fn reserves(&self) -> bool {
        matches!(self, Store::Cluster(_) | Store::Sharded(_))
    }
}

/// One tidegate process.
pub(crate) struct Node {
    server: TidegateServer,
    pub(crate) resp: SocketAddr,
    http: SocketAddr,
    admin: SocketAddr,
    dir: TempDir,
}

impl Node {
    /// Starts one on `store` with these rules of the domain `api`, and returns when it is in touch with its store.
    pub(crate) fn start(store: &str, timeout: &str, rules: &str) -> Self {
        Node::start_with(store, timeout, "", rules)
    }

    /// The same with `more` in its configuration.
    pub(crate) fn start_with(store: &str, timeout: &str, more: &str, rules: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = format!(
            "listen: {{ http: '127.0.0.1:0', grpc: '127.0.0.1:0', resp: '127.0.0.1:0', admin: '127.0.0.1:0' }}\n\
             store: {{ url: '{store}', timeout: {timeout} }}\nrules: {{ paths: [rules.yaml] }}\n{more}"
        );
        write_rules(&dir, rules);
        fs::write(dir.path().join("tidegate.yaml"), config).unwrap();
        let config = dir.path().join("tidegate.yaml");
        let mut server = TidegateServer::start(binary(), &["--config", config.to_str().unwrap()]);
        let [resp, http, admin] = ["resp", "http", "admin"].map(|name| server.addr(name));
        let node = Node { server, resp, http, admin, dir };
        node.wait_ready();
        node
    }

    /// Is killed, and started again on other ports.
    pub(crate) fn come_back(&mut self) {
        self.server.restart();
        [self.resp, self.http, self.admin] = ["resp", "http", "admin"].map(|name| self.server.addr(name));
        self.wait_ready();
    }

    /// Takes other rules into use.
    pub(crate) fn change_rules(&mut self, rules: &str) {
        write_rules(&self.dir, rules);
        let version = self.metric("tidegate_config_version");
        self.server.reload();
        eventually("the rules are taken", PATIENCE, || self.metric("tidegate_config_version") > version);
    }

    /// Waits until it knows of `count` nodes, itself included.
    pub(crate) fn wait_for_fleet(&self, count: usize) {
        eventually("the nodes know of each other", PATIENCE, || {
            self.metric("tidegate_fleet_size") == count as f64
        });
    }

    /// Waits until it is in touch with its store.
    pub(crate) fn wait_ready(&self) {
        eventually("the node is in touch with its store", PATIENCE, || {
            http::get(self.http, "/readyz").text() == "ready\n"
        });
    }

    /// The memory that it takes.
    pub(crate) fn resident_bytes(&mut self) -> u64 {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.server.process().pid())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    }

    /// A metric without labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = http::get(self.admin, "/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }
}

/// The binary of this build, or another one to attack, say a release build.
fn binary() -> String {
    std::env::var("ATTACK_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_tidegate").to_owned())
}

fn write_rules(dir: &TempDir, rules: &str) {
    fs::write(dir.path().join("rules.yaml"), format!("domain: api\nrules:\n{rules}")).unwrap();
}
