//! Many clients at once, live through real servers and in a replay of the logs that they leave: both decide every request alike.
//!
//! Limits come back while they ask, leases end in no order, penalties begin and end, and nobody waits for anybody. What a replay cannot
//! repeat is left out: refunds through one node that the deny cache of another does not hear of.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use serde_json::{Value, json};
use tidegate_replay::{Format, Line, MergeByTime, Options, Parser, Reader, Replay, Tells};
use tidegate_rules::{Format as RuleFormat, RuleSet, Source};
use tidegate_server::rls::rate_limit_service_client::RateLimitServiceClient;
use tidegate_server::rls::{Code, Entry, RateLimitDescriptor, RateLimitRequest};
use tidegate_testkit::resp::{self, Client};
use tidegate_testkit::{Redis, http};
use tokio::runtime::Runtime;
use tonic::transport::Channel;

use crate::control_world::PATIENCE;
use crate::live_and_replay::{LoggingServer, command_agrees, grpc_client};

const RULES: &str = "\
domain: api
rules:
  - { name: apart, match: { kind: apart }, key: [user], limits: [{ algorithm: sliding_log, limit: 1000, window: 10s, min_interval: 20ms }] }
  - { name: window, match: { kind: window }, key: [user], limits: [{ algorithm: fixed_window, limit: 15, window: 1s }] }
  - { name: sliding, match: { kind: sliding }, key: [user], limits: [{ algorithm: sliding_window, limit: 15, window: 1s }] }
  - { name: log, match: { kind: log }, key: [user], limits: [{ algorithm: sliding_log, limit: 15, window: 1s }] }
  - { name: bucket, match: { kind: bucket }, key: [user], limits: [{ algorithm: token_bucket, rate: 50/s, burst: 3 }] }
  - { name: leaky, match: { kind: leaky }, key: [user], limits: [{ algorithm: leaky_bucket, rate: 50/s, max_delay: 60ms }] }
  - { name: two, match: { kind: two }, key: [user], limits: [{ algorithm: token_bucket, rate: 50/s, burst: 4 }, { algorithm: sliding_log, limit: 25, window: 1s }] }
  - { name: counting, match: { kind: counting }, key: [user], limits: [{ algorithm: sliding_log, limit: 4, window: 100ms, count_refused: true }] }
  - { name: slots, match: { kind: slots }, key: [user], limits: [{ algorithm: concurrency, limit: 2, ttl: 1h }] }
  - { name: both, match: { kind: both }, key: [user], limits: [{ algorithm: concurrency, limit: 2, ttl: 1h }, { algorithm: sliding_log, limit: 40, window: 1s }] }
  - { name: all-slots, match: { kind: [slots, both] }, key: [], limits: [{ algorithm: concurrency, limit: 9, ttl: 1h }] }
  - { name: weighed, match: { kind: weighed }, key: [user], limits: [{ algorithm: concurrency, limit: 2, ttl: 1s, count_refused: true }] }
  - { name: brief, match: { kind: brief }, key: [user], limits: [{ algorithm: concurrency, limit: 3, ttl: 1s }] }
  - { name: banned, match: { kind: banned }, key: [user], penalty: 1s, limits: [{ algorithm: sliding_log, limit: 12, window: 1s }] }
  - { name: banished, match: { kind: banished }, key: [user], penalty: 1s, limits: [{ algorithm: token_bucket, rate: 50/s, burst: 4 }] }
  - { name: everybody, match: { kind: [window, sliding, log, bucket, two] }, limits: [{ algorithm: sliding_window, limit: 400, window: 1s }] }
";

/// Those that take leases, which a gateway would never give back, come last.
const KINDS: [&str; 14] = [
    "apart", "window", "sliding", "log", "bucket", "leaky", "two", "counting", "banned", "banished", "slots",
    "both", "weighed", "brief",
];
const WITHOUT_LEASES: usize = 10;
const CLIENTS: u64 = 10;
const STEPS: usize = 250;

/// One of many clients: its connections to every node, and what it knows.
struct AtOnce {
    nodes: Vec<Connections>,
    runtime: Runtime,
    random: u64,
    client: u64,
    /// Whether each request passed, by its number.
    live: BTreeMap<u64, bool>,
    held: Vec<String>,
}

struct Connections {
    http: std::net::SocketAddr,
    resp: Client,
    grpc: RateLimitServiceClient<Channel>,
}

type Attributes = Vec<(&'static str, String)>;

impl AtOnce {
    fn connect(servers: &[LoggingServer], client: u64, seed: u64) -> AtOnce {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let connect = |server: &LoggingServer| {
            let resp = Client::connect(server.resp);
            resp.set_patience(PATIENCE).unwrap();
            Connections { http: server.http, resp, grpc: grpc_client(server.grpc, &runtime) }
        };
        let nodes = servers.iter().map(connect).collect();
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ client.wrapping_mul(0xd1b5_4a32_d192_ed03);
        AtOnce { nodes, runtime, random, client, live: BTreeMap::new(), held: Vec::new() }
    }

    fn pick(&mut self, of: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % of
    }

    /// A new request, which is answered later.
    fn attributes(&mut self, kinds: usize) -> (u64, Attributes) {
        let number = self.client * 1_000_000 + self.live.len() as u64;
        self.live.insert(number, false);
        let kind = KINDS[self.pick(kinds)].to_owned();
        let user = format!("u{}", self.pick(2));
        (number, vec![("kind", kind), ("user", user), ("number", number.to_string())])
    }

    fn run(mut self) -> BTreeMap<u64, bool> {
        for _ in 0..STEPS {
            match self.pick(10) {
                0..3 => self.ask_by_http(),
                3 => self.ask_for_a_batch(),
                4..6 => self.ask_by_resp(),
                6 => self.ask_by_grpc(),
                _ => self.release(),
            }
        }
        self.live
    }

    fn check(&mut self, kinds: usize) -> (u64, Value) {
        let (number, attributes) = self.attributes(kinds);
        let attributes: BTreeMap<&str, String> = attributes.into_iter().collect();
        let cost = 1 + self.pick(3) / 2;
        (number, json!({ "domain": "api", "attributes": attributes, "cost": cost }))
    }

    fn ask_by_http(&mut self) {
        let (number, body) = self.check(KINDS.len());
        let node = self.pick(self.nodes.len());
        let answer = http::post_json(self.nodes[node].http, "/v1/check", &body.to_string()).json();
        self.note(number, &answer);
    }

    fn ask_for_a_batch(&mut self) {
        let (node, size) = (self.pick(self.nodes.len()), 2 + self.pick(6));
        let (numbers, checks): (Vec<u64>, Vec<Value>) = (0..size).map(|_| self.check(KINDS.len())).unzip();
        let body = json!({ "checks": checks }).to_string();
        let answer = http::post_json(self.nodes[node].http, "/v1/check/batch", &body).json();
        for (number, answer) in numbers.into_iter().zip(answer["decisions"].as_array().unwrap()) {
            self.note(number, answer);
        }
    }

    fn note(&mut self, number: u64, answer: &Value) {
        self.live.insert(number, answer["allowed"].as_bool().unwrap());
        self.held.extend(answer["lease"].as_str().map(str::to_owned));
    }

    /// Several at once over one connection.
    fn ask_by_resp(&mut self) {
        let (node, size) = (self.pick(self.nodes.len()), 1 + self.pick(6));
        let (mut numbers, mut commands) = (Vec::new(), Vec::new());
        for _ in 0..size {
            let (number, attributes) = self.attributes(KINDS.len());
            let cost = (1 + self.pick(3) / 2).to_string();
            let mut words: Vec<String> = ["TG.CHECK", "api", "COST", &cost].map(str::to_owned).into();
            words.extend(attributes.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
            numbers.push(number);
            commands.push(words);
        }
        for (number, answer) in numbers.into_iter().zip(self.nodes[node].resp.pipeline(&commands)) {
            let answer = answer.array();
            let allowed = answer[0].int() == 1;
            self.live.insert(number, allowed);
            if allowed && answer[7] != resp::Value::Nil {
                self.held.push(answer[7].text());
            }
        }
    }

    fn ask_by_grpc(&mut self) {
        let (number, first) = self.attributes(WITHOUT_LEASES);
        let mut all = vec![first.clone()];
        if self.pick(3) == 0 {
            // A request may have several descriptors, and is one.
            let (kind, user) = (KINDS[self.pick(WITHOUT_LEASES)], format!("u{}", self.pick(2)));
            all.push(vec![("kind", kind.to_owned()), ("user", user), ("number", number.to_string())]);
        }
        let entry =
            |(key, value): (&str, String)| Entry { key: key.to_owned(), value: value.into_bytes().into() };
        let descriptor = |attributes: Attributes| RateLimitDescriptor {
            entries: attributes.into_iter().map(entry).collect(),
            ..RateLimitDescriptor::default()
        };
        let descriptors = all.into_iter().map(descriptor).collect();
        let request =
            RateLimitRequest { domain: "api".to_owned(), descriptors, ..RateLimitRequest::default() };
        let node = self.pick(self.nodes.len());
        let asked = self.nodes[node].grpc.should_rate_limit(request);
        let answer = self.runtime.block_on(asked).unwrap().into_inner();
        self.live.insert(number, answer.overall_code() == Code::Ok);
    }

    /// Gives back, or prolongs, one of the leases that it holds.
    fn release(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (node, place) = (self.pick(self.nodes.len()), self.pick(self.held.len()));
        match self.pick(8) {
            0 => drop(self.nodes[node].resp.cmd(&["TG.RENEW", &self.held[place]])),
            1..4 => {
                let body = json!({ "lease": self.held.swap_remove(place) }).to_string();
                let _ = http::post_json(self.nodes[node].http, "/v1/release", &body);
            }
            _ => {
                let lease = self.held.swap_remove(place);
                assert!(!self.nodes[node].resp.cmd(&["TG.RELEASE", &lease]).is_error());
            }
        }
    }
}

/// Lets clients ask at once, and plays what the servers wrote.
fn agree_on_every_decision(stores: &[&str], seed: u64) {
    let server =
        |(number, store): (usize, &&str)| LoggingServer::start(store, &format!("node-{number}"), RULES);
    let servers: Vec<LoggingServer> = stores.iter().enumerate().map(server).collect();
    let clients: Vec<_> = (0..CLIENTS).map(|client| AtOnce::connect(&servers, client, seed)).collect();
    let clients: Vec<_> = clients.into_iter().map(|client| thread::spawn(|| client.run())).collect();
    let live: BTreeMap<u64, bool> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
    let logs: Vec<String> = servers.into_iter().map(LoggingServer::log).collect();
    let otherwise = decided_otherwise(&logs, &live);
    assert!(otherwise.is_empty(), "seed {seed}: {}", otherwise.join("\n"));
    command_agrees(&logs, RULES);
}

/// The lines of requests that a replay in the order of the store's times decides otherwise.
fn decided_otherwise(logs: &[String], live: &BTreeMap<u64, bool>) -> Vec<String> {
    let rules = RuleSet::compile(&[Source::new("rules.yaml", RULES)], RuleFormat::Native).unwrap();
    let mut replay = Replay::new(rules, None, Options::new("api"));
    let mut parser = Parser::new(Format::Tidegate).unwrap();
    let mut lines = MergeByTime::new(logs.iter().map(|log| (Reader::new(log.as_bytes()), None)));
    let (mut seen, mut refused_by, mut otherwise) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    while let Some(line) = lines.next_line().unwrap() {
        let Line::Text(text) = line.line else { panic!("a line is too long") };
        let shown = String::from_utf8_lossy(text).into_owned();
        let recorded = parser.parse(text).unwrap_or_else(|bad| panic!("{bad}: {shown}"));
        // No replay repeats such a decision; the store's timeout of five seconds is far from what this traffic needs.
        let without = recorded.own.source.is_some_and(|source| source.is_without_the_store());
        assert!(!without, "decided without the store: {shown}");
        assert!(recorded.own.decided_at.is_some(), "the store did not say when: {shown}");
        let now = replay.play(&recorded);
        if recorded.tells != Tells::Request {
            continue;
        }
        let number = recorded.attributes.iter().find(|(name, _)| name == "number").unwrap();
        let number: u64 = String::from_utf8_lossy(&number.1).parse().unwrap();
        assert_eq!(recorded.refused, Some(!live[&number]), "the log tells otherwise: {shown}");
        if now.unwrap().now != live[&number] {
            otherwise.push(shown.clone());
        }
        let line: Value = serde_json::from_str(&shown).unwrap();
        refused_by.extend(line["rule"].as_str().filter(|_| !live[&number]).map(str::to_owned));
        seen.insert(number);
    }
    assert_eq!(seen.len(), live.len(), "not every request is in the log");
    assert!(refused_by.len() >= 14, "too little happened: {refused_by:?}");
    otherwise
}

/// Which traffic to make; more of it with `LIVE_SEEDS=1..20`.
fn seeds() -> std::ops::Range<u64> {
    let told = std::env::var("LIVE_SEEDS").ok();
    let range = told.as_deref().and_then(|told| told.split_once(".."));
    range.map_or(1..2, |(from, to)| from.parse().unwrap()..to.parse().unwrap())
}

#[test]
fn a_server_on_memory_and_a_replay_agree_on_every_decision_of_many_clients_at_once() {
    for seed in seeds() {
        agree_on_every_decision(&["memory:"], seed);
    }
}

#[test]
fn two_servers_on_one_redis_and_a_replay_agree_on_every_decision_of_many_clients_at_once() {
    for seed in seeds() {
        let redis = Redis::start();
        let store = redis.url();
        agree_on_every_decision(&[&store, &store], seed);
    }
}
