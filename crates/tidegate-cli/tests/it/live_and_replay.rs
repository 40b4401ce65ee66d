//! The same traffic live through real servers and in a replay of the logs that they leave: both decide every request alike.
//!
//! Requests come one after the other, over every protocol; leases overlap, end in no order and on other nodes than they began. What
//! comes at once is in `live_and_replay_at_once.rs`. Whatever comes back by itself takes half a day, but for leases with a short time to
//! live, which nobody asks about while they end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_replay::{Format, Line, MergeByTime, Options, Parser, Reader, Replay, Tells};
use tidegate_rules::{Format as RuleFormat, RuleSet, Source};
use tidegate_server::rls::rate_limit_service_client::RateLimitServiceClient;
use tidegate_server::rls::{Code, Entry, RateLimitDescriptor, RateLimitRequest};
use tidegate_testkit::resp::{self, Client};
use tidegate_testkit::{Redis, TidegateServer, Upstream, eventually, http};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

use crate::control_world::{PATIENCE, TOKEN};
use crate::redis_world::BINARY;
use crate::tidegate;

const RULES: &str = "\
domain: api
rules:
  - { name: slots, match: { kind: slots }, key: [user], limits: [{ algorithm: concurrency, limit: 3, ttl: 1h }] }
  - { name: both, match: { kind: both }, key: [user], limits: [{ algorithm: concurrency, limit: 4, ttl: 1h }, { algorithm: sliding_log, limit: 25, window: 12h }] }
  - { name: weighed, match: { kind: weighed }, key: [user], limits: [{ algorithm: concurrency, limit: 3, ttl: 1h, count_refused: true }] }
  - { name: brief, match: { kind: brief }, key: [user], limits: [{ algorithm: concurrency, limit: 2, ttl: 3s }] }
  - { name: all-slots, match: { kind: [slots, both] }, key: [], limits: [{ algorithm: concurrency, limit: 10, ttl: 1h }] }
  - { name: tried, shadow: true, match: { kind: slots }, key: [], limits: [{ algorithm: concurrency, limit: 1, ttl: 1h }] }
  - { name: bucket, match: { kind: bucket }, key: [user], limits: [{ algorithm: token_bucket, rate: 1/day, burst: 9 }] }
  - { name: yearly, match: { kind: yearly }, key: [user], limits: [{ algorithm: fixed_window, limit: 9, window: year }] }
  - { name: sliding, match: { kind: sliding }, key: [user], limits: [{ algorithm: sliding_window, limit: 9, window: 12h }] }
  - { name: log, match: { kind: log }, key: [user], limits: [{ algorithm: sliding_log, limit: 9, window: 12h }] }
  - { name: apart, match: { kind: apart }, key: [user], limits: [{ algorithm: sliding_log, limit: 50, window: 12h, min_interval: 12h }] }
  - { name: counting, match: { kind: counting }, key: [user], limits: [{ algorithm: sliding_log, limit: 5, window: 12h, count_refused: true }] }
  - { name: leaky, match: { kind: leaky }, key: [user], limits: [{ algorithm: leaky_bucket, rate: 1/day, max_delay: 5d }] }
  - { name: plans, match: { kind: plans }, key: [user], tiers: { on: plan, default: free, free: [{ algorithm: sliding_log, limit: 3, window: 12h }], pro: [{ algorithm: sliding_log, limit: 6, window: 12h }], internal: unlimited }, key_overrides: [{ when: { user: u2 }, limits: [{ algorithm: sliding_log, limit: 1, window: 12h }] }] }
  - { name: signed, match: { kind: signed }, key: [token], on_missing_key: refuse, limits: [{ algorithm: sliding_log, limit: 9, window: 12h }] }
  - { name: banned, match: { kind: banned }, key: [user], penalty: 12h, limits: [{ algorithm: sliding_log, limit: 4, window: 12h }] }
  - { name: special, match: { kind: log, user: u1 }, key: [user], overrides: [log], limits: [{ algorithm: sliding_log, limit: 4, window: 12h }] }
  - { name: everybody, limits: [{ algorithm: sliding_log, limit: 700, window: 12h }] }
";

const KINDS: [&str; 13] = [
    "slots", "both", "weighed", "bucket", "yearly", "sliding", "log", "apart", "counting", "leaky", "plans",
    "signed", "banned",
];

/// A server that keeps every decision in a file.
pub(crate) struct LoggingServer {
    server: TidegateServer,
    pub(crate) http: SocketAddr,
    pub(crate) resp: SocketAddr,
    pub(crate) grpc: SocketAddr,
    admin: SocketAddr,
    dir: TempDir,
}

impl LoggingServer {
    pub(crate) fn start(store: &str, name: &str, rules: &str) -> LoggingServer {
        LoggingServer::start_with_env(store, name, rules, &[])
    }

    pub(crate) fn start_with_env(
        store: &str,
        name: &str,
        rules: &str,
        more: &[(&str, &str)],
    ) -> LoggingServer {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("rules.yaml"), rules).unwrap();
        let config = format!(
            "listen: {{ http: '127.0.0.1:0', grpc: '127.0.0.1:0', resp: '127.0.0.1:0', admin: '127.0.0.1:0' }}\n\
             store: {{ url: '{store}', timeout: 5s }}\nrules: {{ paths: [rules.yaml] }}\nadmin: {{ node: {name} }}\n\
             decision_log: {{ admissions_one_in: 1, refusals_per_second: 1000000, clear: ['*'], file: {{ path: decisions.log }} }}\n"
        );
        let path = dir.path().join("tidegate.yaml");
        fs::write(&path, config).unwrap();
        let env = [more, &[("TIDEGATE_DRAIN__DELAY", "0s"), ("TIDEGATE_ADMIN__TOKENS", TOKEN)]].concat();
        let mut server = TidegateServer::start_with_env(BINARY, &["--config", path.to_str().unwrap()], &env);
        let [http, resp, grpc, admin] = ["http", "resp", "grpc", "admin"].map(|what| server.addr(what));
        eventually("the node is ready", PATIENCE, || http::get(http, "/readyz").text() == "ready\n");
        LoggingServer { server, http, resp, grpc, admin, dir }
    }

    /// Stops the server, which writes what waits, and reads its log.
    pub(crate) fn log(mut self) -> String {
        assert!(self.server.terminate().success());
        fs::read_to_string(self.dir.path().join("decisions.log")).unwrap()
    }
}

/// A client of a server's gRPC.
pub(crate) fn grpc_client(addr: SocketAddr, runtime: &Runtime) -> RateLimitServiceClient<Channel> {
    let channel = Endpoint::from_shared(format!("http://{addr}")).unwrap();
    RateLimitServiceClient::new(runtime.block_on(channel.connect()).unwrap())
}

/// A server and its clients.
struct Node {
    server: LoggingServer,
    http: SocketAddr,
    resp: Client,
    grpc: RateLimitServiceClient<Channel>,
    admin: SocketAddr,
}

impl Node {
    fn start(store: &str, name: &str, runtime: &Runtime) -> Node {
        let server = LoggingServer::start(store, name, RULES);
        let (resp, grpc) = (Client::connect(server.resp), grpc_client(server.grpc, runtime));
        Node { http: server.http, admin: server.admin, server, resp, grpc }
    }
}

/// Servers, and what their client knows.
struct Traffic {
    runtime: Runtime,
    nodes: Vec<Node>,
    random: u64,
    /// Whether each request passed, by its number.
    live: Vec<bool>,
    held: Vec<String>,
    refused_by: BTreeMap<String, u64>,
}

type Attributes = Vec<(String, String)>;

impl Traffic {
    fn new(stores: &[&str]) -> Traffic {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let node = |(number, store): (usize, &&str)| Node::start(store, &format!("node-{number}"), &runtime);
        let nodes = stores.iter().enumerate().map(node).collect();
        Traffic { runtime, nodes, random: 7, live: Vec::new(), held: Vec::new(), refused_by: BTreeMap::new() }
    }

    fn pick(&mut self, of: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % of
    }

    fn node(&mut self) -> usize {
        self.pick(self.nodes.len())
    }

    fn attributes(&mut self) -> Attributes {
        let kind = KINDS[self.pick(KINDS.len())];
        let mut all = vec![("kind", kind.to_owned()), ("user", format!("u{}", self.pick(4)))];
        if self.pick(3) > 0 {
            all.push(("plan", ["free", "pro", "internal", "unknown"][self.pick(4)].to_owned()));
        }
        if self.pick(4) > 0 {
            all.push(("token", format!("t{}", self.pick(3))));
        }
        all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Does something, over some protocol, at some node.
    fn step(&mut self) {
        match self.pick(100) {
            0..70 => {
                let attributes = self.attributes();
                self.ask(attributes);
            }
            70..84 => self.release(),
            84..87 if !self.held.is_empty() => {
                let (node, lease) = (self.node(), self.held[0].clone());
                // A reset may have ended it.
                assert!(!self.nodes[node].resp.cmd(&["TG.RENEW", &lease]).is_error());
            }
            87..95 if self.nodes.len() == 1 => self.give_back(),
            95.. => {
                let (first, second) = (self.attributes(), self.attributes());
                self.ask_by_grpc(&[first, second], false);
            }
            _ => {}
        }
    }

    /// Gives something back, in one of the ways there are.
    fn give_back(&mut self) {
        match self.pick(8) {
            0..4 => self.refund(),
            4..7 => {
                let (first, second) = (self.attributes(), self.attributes());
                self.ask_by_grpc(&[first, second], true);
            }
            _ => self.reset(),
        }
    }

    /// Gives things back through either node. The other one may refuse for as long as its deny cache keeps a refusal: nobody
    /// asks meanwhile.
    fn give_back_in_peace(&mut self) {
        const DENIED_FOR: Duration = Duration::from_secs(1);
        (0..24).for_each(|_| self.give_back());
        let given = now();
        eventually("no node repeats an earlier refusal", PATIENCE, || now() > given + DENIED_FOR);
    }

    fn ask(&mut self, attributes: Attributes) -> bool {
        match self.pick(8) {
            0 if !["slots", "both", "weighed"].contains(&attributes[0].1.as_str()) => {
                self.ask_by_grpc(&[attributes], false)
            }
            0..4 => self.ask_by_resp(attributes),
            _ => self.ask_by_http(attributes),
        }
    }

    fn ask_by_http(&mut self, mut attributes: Attributes) -> bool {
        attributes.push(("number".to_owned(), self.live.len().to_string()));
        let attributes: BTreeMap<String, String> = attributes.into_iter().collect();
        let (node, cost) = (self.node(), 1 + self.pick(3) / 2);
        let body = json!({ "domain": "api", "attributes": attributes, "cost": cost }).to_string();
        let answer = http::post_json(self.nodes[node].http, "/v1/check", &body).json();
        self.held.extend(answer["lease"].as_str().map(str::to_owned));
        self.note(answer["allowed"] == true, answer["rule"].as_str())
    }

    fn ask_by_resp(&mut self, mut attributes: Attributes) -> bool {
        attributes.push(("number".to_owned(), self.live.len().to_string()));
        let (node, cost) = (self.node(), 1 + self.pick(3) / 2);
        let mut words: Vec<String> = ["TG.CHECK", "api", "COST"].map(str::to_owned).into();
        words.push(cost.to_string());
        words.extend(attributes.into_iter().flat_map(|(name, value)| [name, value]));
        let answer = self.nodes[node].resp.cmd(&words);
        let answer = answer.array();
        let allowed = answer[0].int() == 1;
        if allowed && answer[7] != resp::Value::Nil {
            self.held.push(answer[7].text());
        }
        self.note(allowed, None)
    }

    /// Asks as a gateway does, for several descriptors at once, the last of which may give hits back. A gateway gives no lease
    /// back: they live until the end.
    fn ask_by_grpc(&mut self, descriptors: &[Attributes], give_back: bool) -> bool {
        let number = self.live.len().to_string();
        let descriptor = |(place, attributes): (usize, &Attributes)| {
            let entry = |(key, value): (&String, &String)| Entry {
                key: key.clone(),
                value: value.clone().into_bytes().into(),
            };
            let number = [("number".to_owned(), number.clone())];
            let all = attributes.iter().chain(&number).map(|(key, value)| entry((key, value)));
            let is_negative_hits = give_back && place + 1 == descriptors.len();
            RateLimitDescriptor { entries: all.collect(), is_negative_hits, ..RateLimitDescriptor::default() }
        };
        let descriptors = descriptors.iter().enumerate().map(descriptor).collect();
        let request =
            RateLimitRequest { domain: "api".to_owned(), descriptors, ..RateLimitRequest::default() };
        let node = self.node();
        let asked = self.nodes[node].grpc.should_rate_limit(request);
        let answer = self.runtime.block_on(asked).unwrap().into_inner();
        self.note(answer.overall_code() == Code::Ok, None)
    }

    fn note(&mut self, allowed: bool, rule: Option<&str>) -> bool {
        self.live.push(allowed);
        if let Some(rule) = rule.filter(|_| !allowed) {
            *self.refused_by.entry(rule.to_owned()).or_default() += 1;
        }
        allowed
    }

    fn release(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (node, place) = (self.node(), self.pick(self.held.len()));
        let lease = self.held.swap_remove(place);
        // A reset may have ended it: then there is nothing to release.
        if self.pick(2) == 0 {
            let body = json!({ "lease": lease }).to_string();
            let released = http::post_json(self.nodes[node].http, "/v1/release", &body);
            assert_eq!(released.status, 200, "{}", released.text());
        } else {
            assert!(!self.nodes[node].resp.cmd(&["TG.RELEASE", &lease]).is_error());
        }
    }

    fn refund(&mut self) {
        let (node, age) = (self.node(), self.pick(2));
        let attributes: BTreeMap<String, String> = self.attributes().into_iter().collect();
        let mut body = json!({ "domain": "api", "attributes": attributes, "amount": 2 });
        if age == 0 {
            body["age_ms"] = 5.into();
        }
        let answer = http::post_json(self.nodes[node].http, "/v1/refund", &body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    fn reset(&mut self) {
        let node = self.node();
        let attributes: BTreeMap<String, String> = self.attributes().into_iter().collect();
        let body = json!({ "domain": "api", "attributes": attributes, "reason": "a test" }).to_string();
        let headers = [("authorization", &*format!("Bearer {TOKEN}")), ("content-type", "application/json")];
        let answer =
            http::request(self.nodes[node].admin, "POST", "/admin/v1/keys/reset", &headers, body.as_bytes());
        let answer = answer.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// Leases with a short time to live: two fill the limit, one of them is renewed, the other ends by itself. Nobody asks at
    /// the moment when one ends: by the clock of this machine it has ended for certain, or is far from it.
    fn let_leases_end(&mut self) {
        const TTL: Duration = Duration::from_secs(3);
        let brief = |user: &str| -> Attributes {
            [("kind", "brief"), ("user", user)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into()
        };
        let known = self.held.len();
        for user in ["a", "b"] {
            assert!(self.ask_by_http(brief(user)));
            assert!(self.ask_by_resp(brief(user)));
            self.ask_by_http(brief(user));
        }
        let taken = now();
        let leases = self.held.split_off(known);
        eventually("half of their time is over", PATIENCE, || now() >= taken + TTL / 2);
        let node = self.node();
        self.nodes[node].resp.cmd(&["TG.RENEW", &leases[0]]);
        eventually("what was not renewed has ended", PATIENCE, || now() >= taken + TTL);
        for user in ["a", "b"] {
            for _ in 0..3 {
                self.ask_by_resp(brief(user));
            }
        }
    }

    /// Stops the servers and plays their logs: every request is decided as it was.
    fn check(self) {
        let Traffic { nodes, live, refused_by, .. } = self;
        let logs: Vec<String> = nodes.into_iter().map(|node| node.server.log()).collect();
        let rules = RuleSet::compile(&[Source::new("rules.yaml", RULES)], RuleFormat::Native).unwrap();
        let mut replay = Replay::new(rules, None, Options::new("api"));
        let mut parser = Parser::new(Format::Tidegate).unwrap();
        let mut lines = MergeByTime::new(logs.iter().map(|log| (Reader::new(log.as_bytes()), None)));
        let (mut seen, mut events) = (BTreeSet::new(), BTreeMap::<String, u64>::new());
        while let Some(line) = lines.next_line().unwrap() {
            let Line::Text(text) = line.line else { panic!("a line is too long") };
            let shown = String::from_utf8_lossy(text).into_owned();
            let recorded = parser.parse(text).unwrap_or_else(|bad| panic!("{bad}: {shown}"));
            let now = replay.play(&recorded);
            if recorded.tells != Tells::Request {
                let event: Value = serde_json::from_str(&shown).unwrap();
                *events.entry(event["event"].as_str().unwrap().to_owned()).or_default() += 1;
                continue;
            }
            let number = recorded.attributes.iter().find(|(name, _)| name == "number").unwrap();
            let number: usize = String::from_utf8_lossy(&number.1).parse().unwrap();
            assert_eq!(recorded.refused, Some(!live[number]), "the log tells otherwise: {shown}");
            assert_eq!(now.unwrap().now, live[number], "request {number} is decided otherwise: {shown}");
            seen.insert(number);
        }
        // A request that only gives back is no decision.
        assert!(seen.len() + 40 > live.len(), "{} of {} are in the log", seen.len(), live.len());
        let all = ["refunded", "released", "renewed", "reset"];
        assert_eq!(
            events.keys().map(String::as_str).collect::<Vec<_>>(),
            all,
            "too little happened: {events:?}"
        );
        assert!(refused_by.len() >= 12, "too little happened: {refused_by:?}");
        let report = command_agrees(&logs, RULES);
        let notes = report["notes"].to_string();
        assert!(!notes.contains("done at once") && notes.contains("time to live"), "{notes}");
    }
}

/// The command reads the same files, in any order, and counts nothing that is decided otherwise.
pub(crate) fn command_agrees(logs: &[String], rules: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    let names: Vec<String> = (0..logs.len()).rev().map(|number| format!("{number}.log")).collect();
    for (name, log) in names.iter().zip(logs.iter().rev()) {
        fs::write(dir.path().join(name), log).unwrap();
    }
    let args = ["replay"].into_iter().chain(names.iter().map(String::as_str));
    let args: Vec<&str> = args.chain(["--rules", "rules.yaml", "--output", "json"]).collect();
    let output = tidegate(&args).current_dir(dir.path()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["decided_otherwise"], json!({ "admitted_now": 0, "refused_now": 0 }), "{report}");
    assert_eq!(report["refused"]["now"], report["refused_in_log"]);
    assert!(report["refused"]["now"].as_u64().unwrap() > 100, "the traffic tells little: {report}");
    assert_eq!(report["lines"]["bad"], 0, "{report}");
    report
}

#[expect(clippy::disallowed_methods, reason = "it waits for the clock that the servers read")]
pub(crate) fn now() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap()
}

#[test]
fn a_server_on_memory_and_a_replay_of_its_log_agree_on_every_decision() {
    let mut traffic = Traffic::new(&["memory:"]);
    (0..1_000).for_each(|_| traffic.step());
    traffic.let_leases_end();
    (0..300).for_each(|_| traffic.step());
    traffic.check();
}

#[test]
fn two_servers_on_one_redis_and_a_replay_of_their_logs_agree_on_every_decision() {
    let redis = Redis::start();
    let store = redis.url();
    let mut traffic = Traffic::new(&[&store, &store]);
    for _ in 0..4 {
        (0..250).for_each(|_| traffic.step());
        traffic.give_back_in_peace();
    }
    traffic.let_leases_end();
    (0..300).for_each(|_| traffic.step());
    traffic.check();
}

#[test]
fn leases_that_the_proxy_holds_for_its_requests_are_told_when_they_end() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    for store in ["memory:", &redis.url()] {
        let dir = tempfile::tempdir().unwrap();
        let rule = "{ name: one, key: [], limits: [{ algorithm: concurrency, limit: 1, ttl: 1h }] }";
        fs::write(dir.path().join("rules.yaml"), format!("domain: api\nrules: [{rule}]\n")).unwrap();
        let config = format!(
            "listen: {{ http: '127.0.0.1:0', grpc: off, resp: off, admin: off }}\n\
             store: {{ url: '{store}', timeout: 5s }}\nrules: {{ paths: [rules.yaml] }}\n\
             proxy: {{ listen: '127.0.0.1:0', domain: api, upstreams: [{{ name: a, targets: ['http://{}'] }}] }}\n\
             decision_log: {{ admissions_one_in: 1, clear: ['*'], file: {{ path: decisions.log }} }}\n",
            upstream.addr()
        );
        let path = dir.path().join("tidegate.yaml");
        fs::write(&path, config).unwrap();
        let env = [("TIDEGATE_DRAIN__DELAY", "0s")];
        let mut server = TidegateServer::start_with_env(BINARY, &["--config", path.to_str().unwrap()], &env);
        let (proxy, http) = (server.addr("proxy"), server.addr("http"));
        eventually("the node is ready", PATIENCE, || http::get(http, "/readyz").text() == "ready\n");
        let is_free = || {
            let look = r#"{"domain":"api","attributes":{},"cost":0}"#;
            http::post_json(http, "/v1/check", look).json()["remaining"] == 1
        };
        for _ in 0..5 {
            assert_eq!(http::get(proxy, "/").status, 200);
            // On Redis nobody waits for the release.
            eventually("the lease is given back", PATIENCE, is_free);
        }
        assert!(server.terminate().success());
        let log = fs::read_to_string(dir.path().join("decisions.log")).unwrap();
        let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let marks = |fits: &dyn Fn(&Value) -> bool| -> Vec<&Value> {
            lines.iter().filter(|line| fits(line)).map(|line| &line["lease"]).collect()
        };
        let (taken, ended) =
            (marks(&|line| line["verdict"] == "admitted"), marks(&|line| line["event"] == "released"));
        assert_eq!((taken.len(), &taken), (5, &ended), "{store}: {log}");
    }
}
