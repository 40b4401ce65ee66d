//! What two servers on one store know together of their decisions: a search, the busiest callers, suggested limits.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_testkit::{Memcached, Moto, Postgres, Redis, TidegateServer, eventually, http, poll};

use crate::control_world::{PATIENCE, TOKEN};
use crate::redis_world::BINARY;
use crate::tidegate;

const RULES: &str = "\
domain: api
rules:
  - { name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 40, window: 1d }] }
";

/// Four rules for one request, of which one refuses from the sixth on.
const FOUR_RULES: &str = "\
domain: api
rules:
  - { name: everybody, key: [], limits: [{ algorithm: fixed_window, limit: 100000, window: 1d }] }
  - { name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 5, window: 1d }] }
  - { name: trial, key: [user], shadow: true, limits: [{ algorithm: fixed_window, limit: 2, window: 1d }] }
  - { name: per-day, key: [user], limits: [{ algorithm: fixed_window, limit: 1000, window: 1d }] }
";

/// One server that keeps every decision.
struct Node {
    server: TidegateServer,
    http: SocketAddr,
    admin: SocketAddr,
    dir: TempDir,
}

impl Node {
    fn start(store: &str, name: &str, clear: &str, rules: &str) -> Node {
        Node::start_with(store, name, clear, rules, "")
    }

    fn start_with(store: &str, name: &str, clear: &str, rules: &str, more: &str) -> Node {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("rules.yaml"), rules).unwrap();
        let config = format!(
            "listen: {{ http: '127.0.0.1:0', grpc: off, resp: off, admin: '127.0.0.1:0' }}\n\
             store: {{ url: '{store}', timeout: 5s }}\nrules: {{ paths: [rules.yaml] }}\nadmin: {{ node: {name} }}\n\
             decision_log: {{ admissions_one_in: 1, refusals_per_second: 1000000, clear: {clear} }}\n{more}"
        );
        let path = dir.path().join("tidegate.yaml");
        fs::write(&path, config).unwrap();
        let env = [("TIDEGATE_DRAIN__DELAY", "0s"), ("TIDEGATE_ADMIN__TOKENS", TOKEN)];
        let mut server = TidegateServer::start_with_env(BINARY, &["--config", path.to_str().unwrap()], &env);
        let [http, admin] = ["http", "admin"].map(|what| server.addr(what));
        Node { server, http, admin, dir }
    }

    /// Two that know of each other.
    fn pair(store: &str, clear: &str) -> [Node; 2] {
        Node::pair_with(store, clear, RULES)
    }

    fn pair_with(store: &str, clear: &str, rules: &str) -> [Node; 2] {
        let nodes = ["one", "two"].map(|name| Node::start(store, name, clear, rules));
        for node in &nodes {
            eventually("both nodes are known", PATIENCE, || {
                node.get("/nodes")["nodes"].as_array().is_some_and(|nodes| nodes.len() == 2)
            });
        }
        nodes
    }

    fn get(&self, path: &str) -> Value {
        self.get_as(TOKEN, path)
    }

    /// What all nodes say; on a busy machine one may miss a question.
    #[track_caller]
    fn whole(&self, path: &str) -> Value {
        let whole = poll(PATIENCE, || Some(self.get(path)).filter(|told| told["missing"] == json!([])));
        whole.unwrap_or_else(|| panic!("{}", self.get(path)))
    }

    #[track_caller]
    fn get_as(&self, token: &str, path: &str) -> Value {
        let headers = [("authorization", &*format!("Bearer {token}"))];
        let answer = http::request(self.admin, "GET", &format!("/admin/v1{path}"), &headers, b"").unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    fn viewer(&self) -> String {
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("authorization", &*bearer), ("content-type", "application/json")];
        let body = json!({ "name": "v", "role": "viewer" }).to_string();
        let made = http::request(self.admin, "POST", "/admin/v1/tokens", &headers, body.as_bytes()).unwrap();
        made.json()["token"].as_str().unwrap_or_else(|| panic!("{}", made.text())).to_owned()
    }

    /// Asks for these users, one after the other.
    #[track_caller]
    fn ask(&self, users: &[String]) {
        self.ask_for(users.iter().map(|user| json!({ "user": user })).collect());
    }

    /// Asks with these attributes, one after the other.
    #[track_caller]
    fn ask_for(&self, asked: Vec<Value>) {
        for asked in asked.chunks(100) {
            let checks: Vec<Value> =
                asked.iter().map(|attributes| json!({ "domain": "api", "attributes": attributes })).collect();
            let answer =
                http::post_json(self.http, "/v1/check/batch", &json!({ "checks": checks }).to_string());
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }

    /// What these rules would have done to what both nodes decided.
    #[track_caller]
    fn preview(&self, rules: &str) -> Value {
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("authorization", &*bearer), ("content-type", "application/json")];
        let body = json!({ "documents": [{ "domain": "api", "text": rules }] }).to_string();
        let mut told = Value::Null;
        eventually("both nodes answer", PATIENCE, || {
            told = http::request(self.admin, "POST", "/admin/v1/replay", &headers, body.as_bytes())
                .unwrap()
                .json();
            told["missing"] == json!([])
        });
        told
    }
}

/// Users drawn by Zipf's law, from a seed.
pub(crate) fn zipf(users: usize, draws: usize) -> Vec<usize> {
    let mut sum = 0.0;
    let cumulated: Vec<f64> = (1..=users)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    (0..draws)
        .map(|_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let point = (random >> 11) as f64 / (1u64 << 53) as f64 * sum;
            cumulated.partition_point(|edge| *edge < point).min(users - 1)
        })
        .collect()
}

fn named(caller: &Value) -> usize {
    caller["key"][0][1].as_str().unwrap()[1..].parse().unwrap()
}

#[test]
fn overview_and_metrics_count_requests_as_a_client_does() {
    let redis = Redis::start();
    overview_counts_as_a_client_does(&redis.url());
}

#[test]
fn overview_and_callers_on_postgres_are_of_all_nodes() {
    overview_counts_as_a_client_does(&Postgres::shared().new_database());
}

#[test]
fn overview_and_callers_on_memcached_are_of_all_nodes() {
    let servers = [(); 2].map(|()| Memcached::start());
    overview_counts_as_a_client_does(&Memcached::url_of(&servers.each_ref()));
}

#[test]
fn overview_and_callers_on_dynamodb_are_of_all_nodes() {
    overview_counts_as_a_client_does(&Moto::start().url("limits"));
}

fn overview_counts_as_a_client_does(store: &str) {
    let nodes = Node::pair_with(store, "[user]", FOUR_RULES);
    let mut counted = [0.0, 0.0];
    for number in 0..120 {
        let user = format!("u{}", number % 10);
        let body = json!({ "domain": "api", "attributes": { "user": user } }).to_string();
        let headers = [("content-type", "application/json")];
        let node = &nodes[number % 3 % 2];
        let answer = http::request(node.http, "POST", "/v1/check", &headers, body.as_bytes()).unwrap();
        counted[usize::from(answer.status != 200)] += 1.0;
    }
    assert_eq!(counted, [50.0, 70.0], "five for each of ten users");
    let metric = |result: &str| -> f64 {
        let of = |node: &Node| {
            let text = http::request(node.admin, "GET", "/metrics", &[], b"").unwrap().text();
            let is_wanted = |line: &&str| {
                line.starts_with("tidegate_requests_total{") && line.contains(&format!("result=\"{result}\""))
            };
            let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
            text.lines().filter(is_wanted).map(count).sum::<f64>()
        };
        nodes.iter().map(of).sum()
    };
    assert_eq!(["allowed", "refused"].map(metric), counted);
    let shown = || {
        let stats = nodes[0].get("/stats?from=2m&step=1s");
        let sum = |column: &str| {
            let rates = stats["total"][column].as_array().unwrap();
            rates.iter().filter_map(Value::as_f64).sum::<f64>()
        };
        ["allowed", "refused"].map(sum)
    };
    eventually("the fleet's chart has each request once", PATIENCE, || shown() == counted);
    let top = nodes[1].whole("/keys/top?by=used&limit=100");
    assert_eq!(top["nodes"].as_array().unwrap().len(), 2, "both answered: {top}");
}

#[test]
fn the_busiest_callers_of_two_nodes_are_exact_within_the_stated_error() {
    let redis = Redis::start();
    let [one, two] = Node::pair(&redis.url(), "['*']");
    let drawn = zipf(3_000, 8_000);
    let mut exact = vec![0u64; 3_000];
    drawn.iter().for_each(|user| exact[*user] += 1);
    for (turn, users) in drawn.chunks(500).enumerate() {
        let users: Vec<String> = users.iter().map(|user| format!("u{user}")).collect();
        if turn % 2 == 0 { one.ask(&users) } else { two.ask(&users) }
    }
    let top = two.whole("/keys/top?by=used&limit=100");
    assert_eq!((&top["missing"], top["nodes"].as_array().unwrap().len()), (&json!([]), 2), "{top}");
    let rule = &top["rules"][0];
    assert_eq!(rule["total"], 8_000, "both nodes are counted");
    let most_error = rule["most_error"].as_u64().unwrap();
    // Each node keeps 256 callers: an error is at most what it counted divided by that.
    assert!(most_error <= 8_000 / 256 + 2, "{most_error}");
    let callers = rule["callers"].as_array().unwrap();
    assert_eq!(callers.len(), 100);
    for caller in callers {
        let (count, error) = (caller["count"].as_u64().unwrap(), caller["error"].as_u64().unwrap());
        let truth = exact[named(caller)];
        assert!(count >= truth && count - error <= truth && error <= most_error, "{caller}: {truth}");
    }
    assert_eq!([0, 1, 2].map(|place| named(&callers[place])), [0, 1, 2]);
    // Whoever was refused was refused beyond forty, wherever it asked.
    let refused = one.whole("/keys/top?by=refused&limit=100");
    for caller in refused["rules"][0]["callers"].as_array().unwrap() {
        let truth = exact[named(caller)] - 40;
        let (count, error) = (caller["count"].as_u64().unwrap(), caller["error"].as_u64().unwrap());
        assert!(count >= truth && count - error <= truth, "{caller}: {truth}");
    }
    assert!(one.get_as(&one.viewer(), "/keys/top?by=used").to_string().contains("\"#"));
}

#[test]
fn who_is_at_its_limit_on_one_node_is_nearest_to_it_wherever_it_was_seen_before() {
    let redis = Redis::start();
    let [one, two] = Node::pair(&redis.url(), "['*']");
    // Node one sees alice with all but one left, and bob with half; on node two alice spends the rest.
    one.ask(&["alice".to_owned()]);
    one.ask(&vec!["bob".to_owned(); 20]);
    two.ask(&vec!["alice".to_owned(); 39]);
    for node in [&one, &two] {
        let near = node.whole("/keys/top?by=near&limit=2");
        let callers = near["rules"][0]["callers"].as_array().unwrap();
        let told = [0, 1].map(|place| {
            let caller = &callers[place];
            (&caller["key"][0][1], &caller["left_permille"], &caller["count"], &caller["error"])
        });
        let expected = [("alice", 0, 40), ("bob", 500, 20)];
        let expected = expected.map(|(name, left, count)| [json!(name), json!(left), json!(count), json!(0)]);
        for ((name, left, count, error), expected) in told.into_iter().zip(&expected) {
            assert_eq!([name, left, count, error], expected.each_ref(), "{near}");
        }
    }
}

#[test]
fn a_search_finds_what_the_other_node_refused_and_a_viewer_sees_no_key() {
    let redis = Redis::start();
    // Callers are hashed with the secret that the fleet keeps in its store.
    let [one, two] = Node::pair(&redis.url(), "[]");
    two.ask(&vec!["alice@example.com".to_owned(); 42]);
    one.ask(&["alice@example.com".to_owned()]);
    let found = one.whole("/decisions?key=user=alice@example.com&verdict=refused");
    assert_eq!((&found["matched"], &found["missing"]), (&json!(3), &json!([])), "{found}");
    let by_node =
        |name: &str| found["decisions"].as_array().unwrap().iter().filter(|one| one["node"] == name).count();
    assert_eq!((by_node("one"), by_node("two")), (1, 2));
    assert!(!found.to_string().contains("alice"), "{found}");
    let mut told = String::new();
    eventually("both nodes answer", PATIENCE, || {
        let why = tidegate(&["why", "user=alice@example.com"])
            .env("TIDEGATE_ADMIN", format!("http://{}", one.admin))
            .env("TIDEGATE_TOKEN", TOKEN)
            .env("HOME", one.dir.path())
            .output()
            .unwrap();
        told = String::from_utf8_lossy(&why.stdout).into_owned();
        !told.contains("without two")
    });
    assert_eq!(told.matches("refused by api/per-user: 0 of 40 left").count(), 3, "{told}");
    assert!(told.contains("node two") && told.contains("node one"), "{told}");
}

#[test]
fn every_answer_is_of_all_nodes_whichever_of_them_hears_the_question_first() {
    let redis = Redis::start();
    let [one, two] = Node::pair(&redis.url(), "['*']");
    one.ask(&["alice".to_owned()]);
    two.ask(&["alice".to_owned()]);
    // Eight in a row: the one that asks is now before the other with its heartbeat, now behind it.
    for _ in 0..8 {
        let found = one.get("/decisions?key=user=alice");
        assert!(found["missing"] == json!([]) && found["matched"] == 2, "{found}");
    }
}

#[test]
fn a_node_that_does_not_answer_is_named() {
    let redis = Redis::start();
    let [one, mut two] = Node::pair(&redis.url(), "['*']");
    one.ask(&["alice".to_owned()]);
    // It counts as alive for five seconds after its last heartbeat.
    two.server.process().pause();
    let found = one.get("/decisions?key=user=alice");
    two.server.process().resume();
    assert_eq!(found["matched"], 1, "what is known is answered: {found}");
    assert_eq!(found["missing"][0]["node"], "two", "{found}");
}

#[test]
fn a_frozen_node_is_missed_until_it_comes_back_and_one_that_takes_leave_is_not() {
    let redis = Redis::start();
    let [one, mut two] = Node::pair(&redis.url(), "['*']");
    two.server.process().pause();
    let is_lost = |one: &Node| {
        let nodes = one.get("/nodes");
        let two = nodes["nodes"].as_array().unwrap().iter().find(|node| node["name"] == "two").cloned();
        two.is_some_and(|two| {
            two["lost"] == true && two["health"].as_str().unwrap().starts_with("not heard for ")
        })
    };
    eventually("it does not count as alive any more", PATIENCE, || is_lost(&one));
    for _ in 0..2 {
        let found = one.get("/decisions?key=user=alice");
        assert_eq!(found["missing"][0]["node"], "two", "every answer says so: {found}");
        assert!(found["missing"][0]["why"].as_str().unwrap().contains("was not heard for"), "{found}");
    }
    assert!(is_lost(&one), "{}", one.get("/nodes"));
    two.server.process().resume();
    eventually("it is back", PATIENCE, || one.get("/decisions?key=user=alice")["missing"] == json!([]));
    two.server.terminate();
    let nodes = one.get("/nodes");
    assert_eq!(nodes["nodes"].as_array().unwrap().len(), 1, "{nodes}");
    assert_eq!(one.get("/decisions?key=user=alice")["missing"], json!([]));
}

/// A tenth of the callers may do more.
const EXPERIMENT: &str = "\
domain: api
rules:
  - { name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 40, window: 1d }],
      experiment: { split: 10%, limits: [{ algorithm: fixed_window, limit: 50, window: 1d }] } }
";

#[test]
fn callers_on_the_sides_of_an_experiment_are_counted_once_whichever_node_they_ask() {
    let redis = Redis::start();
    let [one, two] = Node::pair_with(&redis.url(), "['*']", EXPERIMENT);
    let users: Vec<String> = (0..1_000).map(|n| format!("u{n}")).collect();
    one.ask(&users);
    two.ask(&users[500..]);
    // Of which side a caller is shows in what it may do.
    let more_on = |users: &[String]| {
        let checks: Vec<Value> =
            users.iter().map(|user| json!({ "domain": "api", "attributes": { "user": user } })).collect();
        let answer = http::post_json(one.http, "/v1/check/batch", &json!({ "checks": checks }).to_string());
        answer.text().matches(r#""limit":50"#).count()
    };
    let more: usize = users.chunks(100).map(more_on).sum();
    assert!((50..200).contains(&more), "{more} of 1,000");
    let told = one.whole("/rules/api/per-user/experiment");
    assert_eq!((&told["nodes"], &told["error_percent"]), (&json!(["one", "two"]), &json!(4.6)), "{told}");
    for (place, (variant, truth)) in [("control", 1_000 - more), ("experiment", more)].into_iter().enumerate()
    {
        let side = &told["sides"][place];
        let callers = side["callers"].as_u64().unwrap();
        let off = callers.abs_diff(truth as u64) as f64 / truth as f64;
        assert!(side["variant"] == variant && off <= 0.07, "{callers} where {truth} are: {told}");
    }
}

/// How often pages ask, in seconds.
const ASKED: [(&str, u64); 4] = [
    ("/decisions?verdict=refused&from=15m&limit=1000", 10),
    ("/keys/top?by=used", 5),
    ("/stats?from=15m&step=5s", 2),
    ("/nodes", 3),
];

#[test]
#[expect(clippy::disallowed_methods, reason = "screens ask at times of their own")]
fn ten_screens_cost_the_fleet_one_question() {
    let redis = Redis::start();
    // Who watches for alerts reads nodes and history as well.
    let [one, two] = ["one", "two"]
        .map(|name| Node::start_with(&redis.url(), name, "['*']", RULES, "alerts: { enabled: false }\n"));
    for node in [&one, &two] {
        eventually("both nodes are known", PATIENCE, || {
            node.get("/nodes")["nodes"].as_array().unwrap().len() == 2
        });
    }
    two.ask(&["alice".to_owned()]);
    // Twenty times in the longest interval, as ten screens do, and those that ask more often.
    let (times, apart) = (20, Duration::from_millis(500));
    let began = Instant::now();
    let commands = redis.commands_during(|| {
        for time in 0..times {
            std::thread::sleep((began + time * apart).saturating_duration_since(Instant::now()));
            for (path, seconds) in ASKED {
                let (bearer, age) = (format!("Bearer {TOKEN}"), format!("max-age={seconds}"));
                let headers = [("authorization", &*bearer), ("cache-control", &*age)];
                let path = format!("/admin/v1{path}");
                assert_eq!(
                    http::request(one.admin, "GET", &path, &headers, b"").unwrap().status,
                    200,
                    "{path}"
                );
            }
        }
    });
    let took_s = began.elapsed().as_secs();
    let all = |text: &str| commands.iter().filter(|line| line.contains(text)).count() as u64;
    let questions = [all(r#"ask\":\"decisions"#), all(r#"ask\":\"top"#), all(&seconds_of(&commands))];
    let notes = commands
        .iter()
        .filter(|line| line.contains("EVALSHA") && line.contains(r#"" "1" ""#) && line.contains("notes"));
    // A question to all nodes reads who they are, too.
    let lists = (notes.count() as u64).saturating_sub(questions[0] + questions[1]);
    let asked = [questions[0], questions[1], questions[2], lists];
    for ((path, seconds), asked) in ASKED.into_iter().zip(asked) {
        // One at either end, and one where the clock of a busy machine is corrected meanwhile.
        let most = took_s / seconds + 3;
        assert!(
            (1..=most).contains(&asked),
            "{path}: {asked} times in {took_s} s, for one every {seconds} s"
        );
    }
    assert_eq!(
        one.whole("/decisions?from=1h&limit=10")["decisions"][0]["node"],
        "two",
        "and all are answered"
    );
}

/// The part of the history of seconds that is read most often.
fn seconds_of(commands: &[String]) -> String {
    let reads = commands.iter().filter(|line| line.contains("HGETALL") && line.contains("seconds"));
    let keys: Vec<&str> = reads.filter_map(|line| line.split("HGETALL").nth(1)).collect();
    let most = keys.iter().max_by_key(|key| keys.iter().filter(|other| other == key).count());
    most.map_or_else(|| "no history was read".to_owned(), |key| format!("HGETALL{key}"))
}

#[test]
fn peaks_are_what_a_caller_used_on_all_nodes_and_each_limit_says_whom_it_would_touch() {
    let redis = Redis::start();
    let [one, two] = Node::pair(&redis.url(), "['*']");
    for _ in 0..5 {
        one.ask(&["alice".to_owned(), "bob".to_owned()]);
        two.ask(&["alice".to_owned()]);
    }
    let suggested = two.whole("/suggestions?rule=per-user");
    assert_eq!(suggested["missing"], json!([]), "{suggested}");
    let limit = &suggested["rules"][0]["limits"][0];
    assert_eq!((&limit["callers"], &limit["requests"]), (&json!(2), &json!(15)));
    assert_eq!(limit["peaks"], json!([{ "value": 5, "count": 1 }, { "value": 10, "count": 1 }]));
    let touched = limit["touched"].as_array().unwrap();
    let at_five = touched.iter().find(|point| point["limit"] == 5).unwrap();
    assert_eq!((&at_five["callers"], &at_five["requests"]), (&json!(1), &json!(5)));
    assert_eq!(
        (&limit["suggestion"], &limit["none_because"]),
        (&json!(null), &json!("the suggestion is only 0 % sure"))
    );
    // The preview plays what both nodes decided.
    let preview = one.preview(&RULES.replace("limit: 40", "limit: 7"));
    assert_eq!((&preview["requests"], &preview["refused"]["now"]), (&json!(15), &json!(3)), "{preview}");
    assert_eq!(preview["rules"][0]["hit_most"][0]["caller"], "user=alice");
}

#[test]
fn a_preview_plays_four_thousand_decisions_of_the_other_node() {
    let redis = Redis::start();
    let [one, two] = Node::pair(&redis.url(), "['*']");
    let users: Vec<String> = (0..4_000).map(|n| format!("u{}", n % 100)).collect();
    two.ask(&users);
    let preview = one.preview(&RULES.replace("limit: 40", "limit: 30"));
    let played = (&preview["requests"], &preview["refused"]["now"]);
    assert_eq!(played, (&json!(4_000), &json!(1_000)), "{preview}");
}

/// Forty rules, one for each path.
fn forty_rules() -> String {
    let rule = |n: usize| {
        format!(
            "  - {{ name: r{n:02}, match: {{ path: /p{n} }}, key: [user], \
             limits: [{{ algorithm: fixed_window, limit: 1000, window: 1d }}] }}\n"
        )
    };
    format!("domain: api\nrules:\n{}", (0..40).map(rule).collect::<String>())
}

#[test]
fn among_forty_rules_each_is_suggested_what_it_is_when_asked_for_alone() {
    let redis = Redis::start();
    let [one, two] = Node::pair_with(&redis.url(), "['*']", &forty_rules());
    // Of the first rule 5,000 callers, one request each on either node; of the others twenty.
    let asks = |path: usize, callers: usize| {
        (0..callers).map(move |user| json!({ "user": format!("caller-{user}"), "path": format!("/p{path}") }))
    };
    for node in [&one, &two] {
        node.ask_for(asks(0, 5_000).chain((1..40).flat_map(|path| asks(path, 20))).collect());
    }
    let suggested = one.whole("/suggestions");
    let rules = suggested["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 40);
    for (place, rule) in rules.iter().enumerate() {
        let (limit, callers) = (&rule["limits"][0], if place == 0 { 5_000 } else { 20 });
        let [told, one_in, requests] =
            ["callers", "sampled_one_in", "requests"].map(|name| limit[name].as_u64().unwrap());
        assert_eq!((one_in, requests), (1, 2 * callers), "{}", rule["rule"]);
        // Callers are told apart by 32 bits of a hash: one time in 350 two of 5,000 are taken for one.
        assert!((callers - callers / 2_000..=callers).contains(&told), "{}: {told}", rule["rule"]);
        let suggested = if place == 0 { json!(2) } else { json!(null) };
        assert_eq!(limit["suggestion"]["limit"], suggested, "{}", rule["rule"]);
    }
    assert_eq!(one.whole("/suggestions?rule=r00")["rules"][0], rules[0]);
}
