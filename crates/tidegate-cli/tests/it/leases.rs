//! Concurrency limits end to end: whatever was taken and neither given back nor over is in use, over every transport, on
//! every store, and through crashes.

use std::net::SocketAddr;

use serde_json::{Value as Json, json};
use tidegate_testkit::resp::{Client, Value};
use tidegate_testkit::{Redis, eventually, http};

use crate::redis_world::{Node, PATIENCE, PATIENT};

const LIMIT: usize = 8;
const RULES: &str = "
  - { name: slots, key: [user], limits: [{ algorithm: concurrency, limit: 8, ttl: 1h }] }
  - { name: brief, key: [job], limits: [{ algorithm: concurrency, limit: 8, ttl: 1s }] }
";

#[test]
fn in_use_is_what_was_acquired_and_not_released_on_redis_whichever_node_dies() {
    let redis = Redis::start();
    let store = format!("redis://{}", redis.addr());
    let nodes = [0, 1].map(|_| Node::ready(&store, PATIENT, RULES));
    // What Redis holds outlives the node through which it was taken.
    Fleet { nodes: nodes.into(), crash_frees_all: false, held: Vec::new(), random: 7 }.live(400);
}

#[test]
fn in_use_is_what_was_acquired_and_not_released_in_memory_until_the_node_dies() {
    let node = Node::ready("memory:", PATIENT, RULES);
    Fleet { nodes: vec![node], crash_frees_all: true, held: Vec::new(), random: 11 }.live(400);
}

#[test]
fn what_a_killed_client_and_a_killed_node_held_ends_by_its_time_to_live() {
    let redis = Redis::start();
    let store = format!("redis://{}", redis.addr());
    let [mut first, second] = [0, 1].map(|_| Node::ready(&store, PATIENT, RULES));
    for _ in 0..LIMIT / 2 {
        assert!(take_by_resp(first.resp, "job").is_some() && take_by_http(second.http, "job").is_some());
    }
    first.server.process().kill();
    eventually("all is free again", PATIENCE, || in_use(second.resp, "job") == 0);
}

/// Promise 6: its layout, signature, identity, time to live and cell. Each letter of the text is six bits of one of them.
#[test]
fn a_lease_that_was_altered_in_any_letter_is_refused_and_ends_nothing() {
    const HELD: usize = 3;
    let redis = Redis::start();
    let nodes = [0, 1].map(|_| Node::ready(&redis.url(), PATIENT, RULES));
    let held: Vec<String> = (0..HELD).map(|_| take_by_http(nodes[0].http, "user").unwrap()).collect();
    let lives_ms = || {
        let keys = redis.cmd(&["KEYS", "*slots*"]);
        keys.array().iter().map(|key| redis.cmd(&["PTTL", &key.text()]).int()).max().unwrap()
    };
    let before_ms = lives_ms();
    let mut resp = nodes[1].client();
    for place in 0..held[0].len() {
        let mut altered = held[0].clone().into_bytes();
        altered[place] = if altered[place] == b'A' { b'B' } else { b'A' };
        let altered = String::from_utf8(altered).unwrap();
        for path in ["/v1/release", "/v1/renew"] {
            let (status, problem) = post(nodes[1].http, path, &json!({ "lease": altered }));
            assert_eq!(
                (status, &problem["field"]),
                (422, &json!("lease")),
                "{path}, letter {place}: {problem}"
            );
            assert!(problem["detail"].as_str().unwrap().starts_with("not a lease"), "{problem}");
        }
        let refused = resp.cmd(&["TG.RELEASE", &altered]);
        assert!(refused.is_error() && refused.text().contains("not a lease"), "letter {place}: {refused:?}");
    }
    assert_eq!(nodes.each_ref().map(|node| in_use(node.resp, "user")), [HELD; 2]);
    assert!(lives_ms() > before_ms - 60_000, "they live for an hour all the same");
    for (released, lease) in held.iter().enumerate() {
        assert_eq!(resp.cmd(&["TG.RELEASE", lease]), Value::Int(1), "each is its holder's to end");
        assert_eq!(in_use(nodes[0].resp, "user"), HELD - 1 - released);
    }
}

/// Nodes, and what their clients believe to hold.
struct Fleet {
    nodes: Vec<Node>,
    crash_frees_all: bool,
    held: Vec<String>,
    random: u64,
}

impl Fleet {
    /// Takes, renews, gives back and crashes at random, and counts after every step.
    fn live(mut self, steps: usize) {
        let (mut taken, mut refused) = (0, 0);
        for step in 0..steps {
            let node = self.pick(self.nodes.len());
            match self.pick(100) {
                0..50 => {
                    let by_http = self.pick(2) == 0;
                    let Node { http, resp, .. } = self.nodes[node];
                    let lease = if by_http { take_by_http(http, "user") } else { take_by_resp(resp, "user") };
                    assert_eq!(lease.is_some(), self.held.len() < LIMIT, "step {step}");
                    *(if lease.is_some() { &mut taken } else { &mut refused }) += 1;
                    self.held.extend(lease);
                }
                50..90 if !self.held.is_empty() => {
                    let lease = self.pick(self.held.len());
                    let lease = self.held.swap_remove(lease);
                    let Node { http, resp, .. } = self.nodes[node];
                    if self.pick(2) == 0 {
                        assert_eq!(post(http, "/v1/release", &json!({ "lease": lease })).0, 200);
                    } else {
                        assert_eq!(Client::connect(resp).cmd(&["TG.RELEASE", &lease]), Value::Int(1));
                    }
                }
                90..98 if !self.held.is_empty() => {
                    let lease = &self.held[0];
                    assert_eq!(post(self.nodes[node].http, "/v1/renew", &json!({ "lease": lease })).0, 200);
                }
                98.. => self.crash(node),
                _ => {}
            }
            let asked = self.nodes[self.random as usize % self.nodes.len()].resp;
            assert_eq!(in_use(asked, "user"), self.held.len(), "step {step}");
        }
        assert!(taken > 50 && refused > 10, "too little happened: {taken} taken, {refused} refused");
    }

    fn crash(&mut self, node: usize) {
        self.nodes[node].come_back();
        if self.crash_frees_all {
            self.held.clear();
        }
    }

    fn pick(&mut self, of: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % of
    }
}

fn take_by_http(node: SocketAddr, attribute: &str) -> Option<String> {
    let check = json!({ "domain": "api", "attributes": { attribute: "a" } });
    post(node, "/v1/check", &check).1["lease"].as_str().map(str::to_owned)
}

fn take_by_resp(node: SocketAddr, attribute: &str) -> Option<String> {
    let Value::Array(answer) = Client::connect(node).cmd(&["TG.CHECK", "api", attribute, "a"]) else {
        panic!("a check is answered with a list")
    };
    (answer[0].int() == 1).then(|| answer[7].text())
}

fn in_use(node: SocketAddr, attribute: &str) -> usize {
    let Value::Array(answer) = Client::connect(node).cmd(&["TG.CHECK", "api", "COST", "0", attribute, "a"])
    else {
        panic!("a check is answered with a list")
    };
    LIMIT - usize::try_from(answer[2].int()).unwrap()
}

fn post(node: SocketAddr, path: &str, body: &Json) -> (u16, Json) {
    let headers = [("content-type", "application/json")];
    let response = http::request(node, "POST", path, &headers, body.to_string().as_bytes()).unwrap();
    (response.status, response.json())
}
