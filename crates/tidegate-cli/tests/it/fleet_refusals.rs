//! What nodes cannot tell each other, and what they must not believe: who asked is told, and nothing panics.

use std::fmt::Write as _;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use tidegate_testkit::{Postgres, Redis, eventually, http, resp};

use crate::control_cli::says;
use crate::control_world::{Node, PATIENCE, rules_of};

const NOTES: &str = "tidegate:fleet{members}notes";
const QUESTIONS: &str = "tidegate:fleet{members}questions";

/// Rules of more than a MiB, the least that Redis can be set to refuse.
fn large(limit: u64) -> String {
    let (mut text, filler) = (rules_of(limit), "x".repeat(8_000));
    for number in 0..150 {
        let _ =
            writeln!(text, "  - {{ name: r{number}, description: '{filler}', limits: [{}/s] }}", number + 9);
    }
    text
}

#[test]
fn publication_that_redis_refuses_is_pending() {
    let redis = Redis::start();
    let store = format!("store: {{ url: '{}' }}", redis.url());
    let leader = Node::start(&format!("{store}\nadmin: {{ node: leader }}"));
    let follower = Node::start(&format!("{store}\nadmin: {{ node: follower, database: none }}"));
    let fits = leader.publish(&rules_of(9));
    let told = fits.json()["distribution"].clone();
    assert_eq!(told["state"], "published", "{told}");
    assert_eq!(told["running"][0], "leader", "{told}");
    follower.runs(9);
    // A node is known by its heartbeat, and says with the next one what it runs.
    eventually("the answer names both nodes", PATIENCE, || {
        let ban = json!({ "domain": "api", "when": { "user": "9" }, "action": "ban" });
        let told = leader.post("/keys/overrides", &ban).json()["distribution"].clone();
        let names = |list: &str| told[list].as_array().unwrap().iter().any(|one| one == "follower");
        assert!(!(names("running") && names("not_yet")), "{told}");
        names("running") || names("not_yet")
    });

    redis.cmd(&["CONFIG", "SET", "proto-max-bulk-len", "1048576"]);
    let refused = leader.publish(&large(8));
    assert_eq!((refused.status, leader.limit()), (200, Some(8)), "it is in force here: {}", refused.text());
    let distribution = refused.json()["distribution"].clone();
    assert_eq!(distribution["state"], "pending", "{distribution}");
    assert!(distribution["why"].is_string() && distribution["hint"].is_string(), "{distribution}");
    eventually("the log says so", PATIENCE, || {
        leader.server.stderr().contains("the other nodes do not learn of the newest rules and bans")
    });
    eventually("and so does an alert", PATIENCE, || {
        let alerts = leader.get("/alerts");
        alerts["active"].as_array().unwrap().iter().any(|alert| alert["kind"] == "publish_failed")
    });
    assert_eq!(follower.limit(), Some(9));
    let ban = json!({ "domain": "api", "when": { "user": "6" }, "action": "ban" });
    let told = leader.post("/keys/overrides", &ban).json()["distribution"].clone();
    assert_eq!((&told["state"], told["why"].is_string()), (&json!("pending"), true), "{told}");
    assert!(!leader.allows("6") && follower.allows("6"));
    // The commands say so, too.
    let file = leader.dir.path().join("large.yaml");
    fs::write(&file, large(7)).unwrap();
    for words in [
        &["rules", "import", file.to_str().unwrap()][..],
        &["keys", "ban", "--domain", "api", "user=5", "--reason", "abuse"],
    ] {
        let told = says(&leader, words);
        assert!(told.contains("\n  warning: not yet on the other nodes: "), "{told}");
        assert!(told.contains("\n  hint: "), "{told}");
    }

    redis.cmd(&["CONFIG", "SET", "proto-max-bulk-len", "536870912"]);
    follower.runs(7);
    eventually("the bans come with them", PATIENCE, || !follower.allows("6") && !follower.allows("5"));
    eventually("the log says so", PATIENCE, || {
        leader.server.stderr().contains("the rules are published to the other nodes again")
    });
    let ban = json!({ "domain": "api", "when": { "user": "7" }, "action": "ban" });
    assert_eq!(leader.post("/keys/overrides", &ban).json()["distribution"]["state"], "published");
}

/// A user that may decide and not write hashes, which carry the rules, as an operator may well grant.
#[test]
fn node_that_may_not_publish_decides_without_a_warning_once_it_has_no_database() {
    let redis = Redis::builder().user("limiter", "right", "~* &* +@all -hset").start();
    let store = format!("store: {{ url: 'redis://limiter:right@{}' }}", redis.addr());
    let files = |database: &str| {
        Node::start(&format!("rules: {{ paths: [rules.yaml] }}\n{store}\nadmin: {{ node: one{database} }}"))
    };
    let warning = "because they cannot be published";
    let refused = files("");
    eventually("it is warned of, with the way out", PATIENCE, || {
        let said = refused.server.stderr();
        said.lines().any(|line| line.contains(warning) && line.contains("admin.database: none"))
    });
    assert_eq!(refused.limit(), Some(3));
    drop(refused);
    let mut follower = files(", database: none");
    eventually("it is in touch with its store", PATIENCE, || {
        http::get(follower.http, "/readyz").text() == "ready\n"
    });
    assert_eq!(follower.limit(), Some(3));
    follower.server.terminate();
    assert!(!follower.server.stderr().contains(warning), "{}", follower.server.stderr());
}

#[test]
fn node_alone_has_nothing_to_distribute() {
    let node = Node::start("");
    assert_eq!(node.publish(&rules_of(9)).json()["distribution"], Value::Null);
}

#[test]
fn reset_without_its_audit_entry_does_not_happen() {
    let mut postgres = Postgres::start();
    let node = Node::start(&format!("admin: {{ database: '{}' }}", postgres.new_database()));
    assert_eq!(node.publish(&rules_of(3)).status, 200);
    let key = json!({ "domain": "api", "attributes": { "user": "7" } });
    let body = key.to_string();
    let used = || {
        let usage = http::post_json(node.http, "/v1/usage", &body).json();
        usage["limits"][0]["used"].as_u64().unwrap()
    };
    assert_eq!(http::post_json(node.http, "/v1/check", &body).status, 200);
    postgres.kill();
    assert_eq!(node.post("/keys/reset", &key).status, 503);
    assert_eq!(used(), 1, "what was answered is true");

    postgres.start_again();
    eventually("it heals", PATIENCE, || node.post("/keys/reset", &key).status == 200);
    assert_eq!(used(), 0);
    let audit = node.get("/audit");
    let resets = audit["entries"].as_array().unwrap().iter().filter(|entry| entry["action"] == "key.reset");
    assert!(resets.count() >= 1, "{audit}");
}

/// Answers every question with this, as the node `mallory` that started at 5, until told to stop.
fn answer(redis: &Redis, answer: &str, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let resp::Value::Array(ids) = redis.cmd(&["HKEYS", QUESTIONS]) else { continue };
        for id in ids {
            let resp::Value::Bulk(id) = id else { continue };
            let id = u64::from_le_bytes(id.try_into().unwrap());
            redis.cmd(&["HSET", &format!("tidegate:fleet{{members}}answers{id:016x}"), "mallory 5", answer]);
        }
        thread::yield_now();
    }
}

#[test]
fn strange_records_in_redis_panic_no_handler() {
    let redis = Redis::start();
    let node = Node::start(&format!(
        "store: {{ url: '{}', timeout: 5s }}\nadmin: {{ node: one }}\ndecision_log: {{ admissions_one_in: 1 }}",
        redis.url()
    ));
    eventually("it serves", PATIENCE, || node.limit() == Some(100));
    let body = r#"{"domain":"api","attributes":{"user":"7"}}"#;
    assert_eq!(http::post_json(node.http, "/v1/check", body).status, 200);
    let note = json!({
        "name": "mallory", "started_us": 5, "version": u64::MAX, "overrides": u64::MAX, "clock_us": u64::MAX,
        "allowed_per_s": -1e300, "format": u32::MAX, "serial": u64::MAX, "signals": { "version": u64::MAX },
    });
    let long = "9".repeat(400);
    for (name, told) in [
        ("8 bytes.", format!("99999999999999999 99999999999 {note}")),
        ("8 bytes,", format!("{long} {long} {{}}")),
        ("8 bytes;", "no note at all".to_owned()),
        ("nine bytes", format!("99999999999999999 99999999999 {note}")),
        ("8 bytes:", "99999999999999999 99999999999 [1, 2".to_owned()),
    ] {
        redis.cmd(&["HSET", NOTES, name, &told]);
    }
    let most = u64::MAX;
    let demand = json!({ "domain": "api", "rule": "r", "limit": "l", "algorithm": "x", "quota": most, "window_us": 0,
        "since_us": most, "halvings": 4_000_000_000_u32, "places": [[most, most], [1, most]], "left_out": most,
        "runs": [{ "window": most, "caller": 1, "used": most, "hits": most, "requests": most }],
        "callers": [{ "caller": 0, "used": most, "refused": most }], "named": [] });
    let caller = json!({ "key": [], "count": 0, "error": 0 });
    let strange = [
        json!({ "told": "decisions", "decisions": [1, "text", [], null, true], "fit": most, "stand_for": most, "cut": true }),
        json!({ "told": "decisions", "decisions": [{ "time_us": most, "attributes": 5 }], "fit": most, "stand_for": most,
            "oldest_us": most, "cut": true }),
        json!({ "told": "top", "rules": [{ "domain": "api", "rule": "r", "top": { "callers": [caller, caller],
            "total": most, "most_error": most } }] }),
        json!({ "told": "demand", "limits": [demand, demand] }),
        json!({ "told": "sample", "lines": ["", "{", "[]", "5"], "since_us": most }),
        json!([1, 2, 3]),
    ];
    for strange in &strange {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| answer(&redis, &strange.to_string(), &stop));
            for path in ["/decisions", "/keys/top", "/suggestions", "/nodes", "/stores", "/stats"] {
                let answer = node.ask("GET", path, &[], &Value::Null);
                assert!(answer.status < 500, "{path} with {strange}: {} {}", answer.status, answer.text());
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
    let stderr = node.server.stderr();
    assert!(!stderr.contains("panicked"), "{stderr}");
    let rules = "tidegate:fleet{members}rules";
    redis.cmd(&["DEL", rules]);
    redis.cmd(&["SET", rules, "not a hash"]);
    let published = || node.publish(&rules_of(9)).json()["distribution"]["state"] == "published";
    eventually("a key of another type is replaced", PATIENCE, published);
}

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }

    /// What may stand anywhere in a record.
    fn value(&mut self) -> Value {
        let values = [
            json!(null),
            json!(true),
            json!(0),
            json!(-1),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(1e308),
            json!(-0.5),
            json!(""),
            json!("x".repeat(5_000)),
            json!("\u{0}\u{feff}é"),
            json!([]),
            json!({}),
            json!([[[]]]),
            json!(u32::MAX),
        ];
        values[self.below(values.len())].clone()
    }

    /// The record with one thing changed, or some bytes of it.
    fn mutated(&mut self, record: &[u8]) -> Vec<u8> {
        let read = serde_json::from_slice::<Value>(record);
        match read {
            Ok(mut value) if self.below(8) > 0 => {
                (0..=self.below(3)).for_each(|_| self.change(&mut value));
                value.to_string().into_bytes()
            }
            _ => {
                let mut bytes = record.to_vec();
                (0..=self.below(4)).for_each(|_| {
                    if !bytes.is_empty() {
                        let at = self.below(bytes.len());
                        bytes[at] = u8::try_from(self.below(256)).unwrap();
                    }
                });
                bytes.truncate(bytes.len() - self.below(bytes.len() + 1) / 2);
                bytes
            }
        }
    }

    fn change(&mut self, value: &mut Value) {
        let inner = match value {
            Value::Array(list) if !list.is_empty() => {
                let at = self.below(list.len());
                list.get_mut(at)
            }
            Value::Object(map) if !map.is_empty() => {
                let at = self.below(map.len());
                map.values_mut().nth(at)
            }
            _ => None,
        };
        match inner {
            Some(inner) if self.below(6) > 0 => self.change(inner),
            _ => *value = self.value(),
        }
    }
}

/// The fields of a hash.
fn fields(redis: &Redis, key: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let bytes = |value: &resp::Value| match value {
        resp::Value::Bulk(bytes) => bytes.clone(),
        other => panic!("{other:?}"),
    };
    match redis.cmd(&["HGETALL", key]) {
        resp::Value::Array(all) => all.chunks(2).map(|pair| (bytes(&pair[0]), bytes(&pair[1]))).collect(),
        _ => Vec::new(),
    }
}

/// What two real nodes wrote, changed at random: notes, questions and answers, rules and bans.
#[test]
fn mutated_records_in_redis_panic_no_handler() {
    let redis = Redis::start();
    let config = |name: &str, admin: &str| {
        format!(
            "store: {{ url: '{}', timeout: 5s }}\nadmin: {{ node: {name}{admin} }}\ndecision_log: {{ admissions_one_in: 1 }}",
            redis.url()
        )
    };
    let (one, two) = (Node::start(&config("one", "")), Node::start(&config("two", ", database: none")));
    assert_eq!(one.publish(&rules_of(9)).status, 200);
    one.ban("3");
    two.runs(9);
    for user in ["7", "8", "9"] {
        let body = format!(r#"{{"domain":"api","attributes":{{"user":"{user}"}}}}"#);
        assert_eq!(http::post_json(two.http, "/v1/check", &body).status, 200);
    }
    let (stop, mut random) = (AtomicBool::new(false), Random(0x9e37_79b9_7f4a_7c15));
    let members = "tidegate:fleet{members}";
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            for _ in 0..3 {
                for path in [
                    "/decisions",
                    "/keys/top",
                    "/suggestions",
                    "/nodes",
                    "/stores",
                    "/stats",
                    "/alerts",
                    "/rules",
                ] {
                    let answer = one.ask("GET", path, &[], &Value::Null);
                    assert!(
                        answer.status < 500 || answer.status == 503,
                        "{path}: {} {}",
                        answer.status,
                        answer.text()
                    );
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) && !asking.is_finished() {
            for (name, note) in fields(&redis, &format!("{members}notes")).into_iter().take(4) {
                // Two numbers, then the note.
                let at = note
                    .iter()
                    .enumerate()
                    .filter(|(_, byte)| **byte == b' ')
                    .nth(1)
                    .map_or(0, |(at, _)| at + 1);
                let changed = [&note[..at], &random.mutated(&note[at..])[..]].concat();
                let other = [&name[..name.len() - 1], &[u8::try_from(random.below(8)).unwrap()]].concat();
                redis.cmd::<&[u8]>(&[b"HSET", format!("{members}notes").as_bytes(), &other, &changed]);
            }
            for (id, question) in fields(&redis, QUESTIONS).into_iter().take(4) {
                let Ok(number) = <[u8; 8]>::try_from(&id[..]) else { continue };
                let answers = format!("{members}answers{:016x}", u64::from_le_bytes(number));
                for (_, answer) in fields(&redis, &answers).into_iter().take(2) {
                    let answer = random.mutated(&answer);
                    redis.cmd::<&[u8]>(&[b"HSET", answers.as_bytes(), b"two 5", &answer]);
                }
                let other = u64::try_from(random.below(1 << 20)).unwrap().to_le_bytes();
                redis.cmd::<&[u8]>(&[b"HSET", QUESTIONS.as_bytes(), &other, &random.mutated(&question)]);
            }
            for (name, value) in fields(&redis, &format!("{members}rules")) {
                if random.below(20) == 0 {
                    let changed = random.mutated(&value);
                    redis.cmd::<&[u8]>(&[b"HSET", format!("{members}rules").as_bytes(), &name, &changed]);
                }
            }
        }
        asking.join().unwrap();
    });
    for node in [&one, &two] {
        let stderr = node.server.stderr();
        assert!(!stderr.contains("panicked"), "{stderr}");
        assert_eq!(http::get(node.http, "/healthz").status, 200);
    }
}

#[test]
fn node_whose_database_is_the_wrong_one_can_be_made_to_lead() {
    let redis = Redis::start();
    // Rules from files, and each node's own database for bans, which is the default.
    let files = |name: &str| {
        let store = format!("store: {{ url: '{}' }}", redis.url());
        Node::start(&format!("rules: {{ paths: [rules.yaml] }}\n{store}\nadmin: {{ node: {name} }}"))
    };
    let mut first = files("first");
    first.ban("1");
    eventually("it is published", PATIENCE, || {
        matches!(redis.cmd(&["EXISTS", "tidegate:fleet{members}rules"]), resp::Value::Int(1))
    });
    let second = files("second");
    eventually("it follows", PATIENCE, || !second.allows("1"));
    let ban = json!({ "domain": "api", "when": { "user": "2" }, "action": "ban" });
    let refused = second.post("/keys/overrides", &ban);
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(
        refused.json()["hint"].as_str().unwrap().contains("POST /admin/v1/nodes/lead"),
        "{}",
        refused.text()
    );
    // The first node, and its database, are gone for good.
    first.server.process().kill();
    let led = second.post("/nodes/lead", &json!({ "reason": "the first one is gone" }));
    assert_eq!(led.status, 200, "{}", led.text());
    eventually("bans are made here", PATIENCE, || second.post("/keys/overrides", &ban).status == 201);
    assert!(!second.allows("2") && second.allows("1"));
    let third = files("third");
    eventually("and followed by others", PATIENCE, || !third.allows("2"));
    let audit = second.get("/audit");
    assert!(
        audit["entries"].as_array().unwrap().iter().any(|entry| entry["action"] == "nodes.lead"),
        "{audit}"
    );
}

/// The other way out that the message names: nobody has to empty Redis.
#[test]
fn node_without_a_database_follows_the_fleet_without_a_warning() {
    let redis = Redis::start();
    let files = |name: &str, database: &str| {
        let store = format!("store: {{ url: '{}' }}", redis.url());
        let admin = format!("admin: {{ node: {name}{database} }}");
        Node::start(&format!("rules: {{ paths: [rules.yaml] }}\n{store}\n{admin}"))
    };
    let first = files("first", "");
    first.ban("1");
    let second = files("second", "");
    let warning = "To follow without this warning: `admin.database: none`";
    eventually("it is warned of", PATIENCE, || second.server.stderr().contains(warning));
    drop(second);

    let second = files("second", ", database: none");
    eventually("it follows", PATIENCE, || !second.allows("1"));
    first.ban("2");
    eventually("and goes on to", PATIENCE, || !second.allows("2"));
    let stderr = second.server.stderr();
    assert!(!stderr.contains("WARN") || !stderr.contains("another database"), "{stderr}");
    let ban = json!({ "domain": "api", "when": { "user": "3" }, "action": "ban" });
    let refused = second.post("/keys/overrides", &ban);
    assert!((400..500).contains(&refused.status), "{}: {}", refused.status, refused.text());
    assert!(refused.json()["hint"].is_string(), "{}", refused.text());
}

#[test]
fn an_alert_says_that_a_store_wants_more_replicas() {
    let redis = Redis::start();
    let node = Node::start(&format!("store: {{ url: '{}' }}\nadmin: {{ node: one }}", redis.url()));
    redis.cmd(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let summary = || {
        let alerts = node.get("/alerts");
        let active = alerts["active"].as_array().unwrap();
        let down = active.iter().find(|alert| alert["kind"] == "store_down")?;
        Some(down["summary"].as_str().unwrap().to_owned())
    };
    eventually("an alert names it", PATIENCE, || summary().is_some_and(|told| told.contains("NOREPLICAS")));
    let reason = format!("tidegate_store_last_failure{{node=\"{}\",reason=\"no_replicas\"}} 1", redis.addr());
    let metrics = http::get(node.admin, "/metrics").text();
    assert!(metrics.lines().any(|line| line == reason), "{metrics}");
}
