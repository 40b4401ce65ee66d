//! `tidegate serve` on real Redis: how it is told where that is, what it says while it is not there, and what it shows.

use std::fs;
use std::process::Command;
use std::time::Duration;

use tidegate_testkit::{Process, Redis, ShardedRedis, TidegateServer, eventually, find_tool, http};

use crate::redis_world::{BINARY, DEFAULT, Node, PATIENCE, PATIENT, POLICY_RULES, check};

const ONE: &str = "- { name: a, key: [user], limits: [{ algorithm: fixed_window, limit: 5, window: 1d }] }";
const FREE_PORTS: [&str; 8] =
    ["--http", "127.0.0.1:0", "--grpc", "off", "--resp", "127.0.0.1:0", "--admin", "127.0.0.1:0"];

#[test]
fn a_server_starts_without_its_redis_serves_by_policy_and_recovers() {
    let redis = Redis::start();
    redis.kill();
    // A server that is gone is noticed at once, whatever the deadline; one that starts on a busy machine may be slow.
    let node = Node::start(&redis.url(), PATIENT, POLICY_RULES);
    let mut client = node.client();
    for (policy, allowed) in [("open", true), ("closed", false), ("local", true)] {
        let answer = check(&mut client, &[("policy", policy), ("user", "u")], 1);
        assert_eq!((answer.source, answer.allowed), (format!("fallback_{policy}"), allowed));
    }
    let body = r#"{"domain":"api","attributes":{"policy":"closed","user":"u"}}"#;
    assert_eq!(http::post_json(node.http, "/v1/check", body).status, 503);
    eventually("it says that it is degraded", PATIENCE, || node.readyz().starts_with("degraded\n"));
    assert_eq!(http::get(node.http, "/readyz").status, 200);
    for _ in 0..100 {
        check(&mut client, &[("policy", "open"), ("user", "u")], 1);
    }
    redis.restart();
    eventually("the store decides", PATIENCE, || {
        check(&mut client, &[("policy", "closed"), ("user", "u")], 1).source == "store"
    });
    eventually("it says that it is well", PATIENCE, || node.readyz() == "ready\n");
    // One line for each change, and none for each request: once one worker has found the store, none finds it gone.
    let stderr = node.server.stderr();
    let lines = |text: &str| stderr.matches(text).count();
    assert_eq!(lines("the store does not answer: rules"), 1, "{stderr}");
    assert_eq!(lines("the store answers again"), 1, "{stderr}");
    assert!(stderr.lines().count() < 30, "{stderr}");
}

#[test]
fn a_server_without_requests_tells_that_its_redis_is_gone() {
    let redis = Redis::start();
    let node = Node::ready(&redis.url(), DEFAULT, ONE);
    let up = format!("tidegate_store_up{{node=\"{}\"}}", redis.addr());
    assert_eq!(node.metric(&up), 1.0);
    redis.kill();
    eventually("metrics tell it", PATIENCE, || node.metric(&up) == 0.0);
    assert!(node.readyz().starts_with("degraded\n"));
    redis.restart();
    eventually("metrics tell that it is back", PATIENCE, || node.metric(&up) == 1.0);
}

#[test]
fn metrics_tell_what_redis_holds() {
    let redis = Redis::start();
    let node = Node::ready(&redis.url(), PATIENT, ONE);
    let mut client = node.client();
    (0..7).for_each(|user| drop(check(&mut client, &[("user", &user.to_string())], 1)));
    eventually("the keys are counted", PATIENCE, || {
        let keys = redis.cmd(&["DBSIZE"]).int() as f64;
        keys >= 7.0 && node.metric("tidegate_store_keys") == keys
    });
    assert!(node.metric("tidegate_store_memory_bytes") > 100_000.0);
}

#[test]
fn a_password_comes_from_a_file_and_is_shown_nowhere() {
    let redis = Redis::builder().user("limiter", "hunter2", "~mine:* &* +@all").start();
    let dir = tempfile::tempdir().unwrap();
    let (secret, rules) = (dir.path().join("url"), dir.path().join("rules.yaml"));
    fs::write(&secret, format!("{}\n", redis.url())).unwrap();
    fs::write(&rules, format!("domain: api\nrules:\n{ONE}")).unwrap();
    let mut command = Command::new(BINARY);
    command.arg("serve").args(FREE_PORTS).arg("--rules").arg(rules);
    command.env("TIDEGATE_DATA", dir.path().join("data"));
    command.env("TIDEGATE_STORE__URL_FILE", secret).env("TIDEGATE_STORE__KEY_PREFIX", "mine");
    let mut process = Process::spawn("tidegate", &command, dir.path());
    let listening = |process: &Process, what: &str| {
        let stdout = process.stdout();
        stdout.lines().find_map(|line| line.strip_prefix(&format!("listening {what} "))?.parse().ok())
    };
    let addr: std::net::SocketAddr =
        process.ready(PATIENCE, |process| listening(process, "resp")).unwrap_or_else(|why| panic!("{why}"));
    let mut client = tidegate_testkit::resp::Client::connect(addr);
    eventually("the store decides", PATIENCE, || check(&mut client, &[("user", "u")], 1).source == "store");
    let keys = redis.cmd(&["KEYS", "*"]);
    assert!(keys.array().iter().all(|key| key.text().starts_with("mine:")), "{keys:?}");
    redis.kill();
    eventually("it tells", PATIENCE, || process.stderr().contains("the store does not answer"));
    assert!(!process.stderr().contains("hunter2") && !process.stdout().contains("hunter2"));
}

#[test]
fn a_wrong_password_is_told_without_showing_it() {
    let redis = Redis::builder().user("limiter", "right", "~* &* +@all").start();
    let node = Node::start(&redis.url().replace("right", "hunter2"), DEFAULT, ONE);
    eventually("it says what is wrong", PATIENCE, || {
        node.server.stderr().contains("Password authentication failed")
    });
    let stderr = node.server.stderr();
    assert!(!stderr.contains("hunter2"), "{stderr}");
    assert_eq!(check(&mut node.client(), &[("user", "u")], 1).source, "fallback_local");
}

#[test]
fn redis_over_tls_is_trusted_by_the_authority_that_is_named() {
    let redis = Redis::builder().tls().start();
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "store: {{ url: '{}', timeout: 5s, tls: {{ ca: '{}' }} }}\n",
        redis.tls_url(),
        redis.certificates().ca.display()
    );
    fs::write(dir.path().join("tidegate.yaml"), config).unwrap();
    let config = dir.path().join("tidegate.yaml");
    let args = [&FREE_PORTS[..], &["--config", config.to_str().unwrap()]].concat();
    let mut server = TidegateServer::start(BINARY, &args);
    let mut client = tidegate_testkit::resp::Client::connect(server.addr("resp"));
    eventually("the store decides", PATIENCE, || check(&mut client, &[("user", "u")], 1).source == "store");
}

#[test]
fn of_five_sharded_servers_the_loss_of_one_touches_only_its_own_callers() {
    let shards = ShardedRedis::start(5);
    let closed = ONE.replace("key: [user],", "key: [user], on_store_failure: closed,");
    let node = Node::ready(&shards.url(), PATIENT, &closed);
    let mut client = node.client();
    let users: Vec<String> = (0..200).map(|user| user.to_string()).collect();
    let mut away = || {
        let decided = |user: &&String| check(&mut client, &[("user", user)], 0).source == "fallback_closed";
        users.iter().filter(decided).count()
    };
    assert_eq!(away(), 0);
    shards.nodes()[2].kill();
    eventually("its breaker is open", PATIENCE, || {
        away();
        node.metric_sum("tidegate_breaker_state{") == 2.0
    });
    let lost = away();
    assert!((15..=75).contains(&lost), "{lost} of 200 callers have lost their server");
    shards.nodes()[2].restart();
    eventually("all are decided again", PATIENCE, || away() == 0);
}

#[test]
fn redis_cli_asks_it_as_if_it_were_redis() {
    let redis = Redis::start();
    let node = Node::ready(&redis.url(), PATIENT, ONE);
    let ask = |words: &[&str]| {
        let mut command = Command::new(find_tool("redis-cli"));
        command.args(["-p", &node.resp.port().to_string(), "--no-raw"]).args(words);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(ask(&["PING"]), "PONG\n");
    let throttle = ["CL.THROTTLE", "key", "1", "30", "60"];
    assert_eq!(
        ask(&throttle),
        "1) (integer) 0\n2) (integer) 2\n3) (integer) 1\n4) (integer) -1\n5) (integer) 2\n"
    );
    ask(&throttle);
    assert!(ask(&throttle).starts_with("1) (integer) 1\n"), "two in two seconds");
    let checked = ask(&["TG.CHECK", "api", "user", "42"]);
    assert!(checked.starts_with("1) (integer) 1\n2) (integer) 5\n3) (integer) 4\n"), "{checked}");
    assert!(checked.contains("\"a\"\n") && checked.contains("\"store\"\n"), "{checked}");
    assert!(ask(&["GET", "key"]).contains("unknown command"));
}

#[test]
fn a_client_of_the_redis_protocol_must_know_the_password() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tidegate.yaml"), "resp: { password: hunter2 }\n").unwrap();
    let config = dir.path().join("tidegate.yaml");
    let args = [&FREE_PORTS[..], &["--config", config.to_str().unwrap()]].concat();
    let mut server = TidegateServer::start(BINARY, &args);
    let mut client = tidegate_testkit::resp::Client::connect(server.addr("resp"));
    assert!(client.cmd(&["TG.CHECK", "api", "user", "42"]).text().starts_with("NOAUTH"));
    assert!(client.cmd(&["AUTH", "hunter1"]).text().starts_with("WRONGPASS"));
    assert_eq!(client.cmd(&["AUTH", "hunter2"]).text(), "OK");
    assert_eq!(client.cmd(&["TG.CHECK", "api", "user", "42"]).array()[0].int(), 1);
}

#[test]
fn what_is_promised_of_a_store_over_a_network_is_measured() {
    let redis = Redis::start();
    let node = Node::ready(&redis.url(), PATIENT, ONE);
    let mut client = node.client();
    (0..10).for_each(|_| drop(check(&mut client, &[("user", "u")], 1)));
    eventually("the workers were looked at twice", Duration::from_secs(10), || {
        node.metric("tidegate_worker_busy_ratio") > 0.0
    });
    let text = http::get(node.admin, "/metrics").text();
    for name in [
        "tidegate_store_duration_seconds_bucket{le=\"0.01\",op=\"decide\"}",
        "tidegate_store_duration_seconds_count{op=\"heartbeat\"}",
        "tidegate_store_errors_total{reason=\"timed_out\"}",
        "tidegate_store_calls_total",
        "tidegate_coalesced_batch_size_count",
        "tidegate_deny_cache_hits_total",
        "tidegate_queue_depth",
        "tidegate_cells",
        "tidegate_fleet_size",
        "tidegate_decision_duration_seconds_count{transport=\"resp\"}",
    ] {
        assert!(text.lines().any(|line| line.starts_with(&format!("{name} "))), "no {name} in {text}");
    }
    let decided = "tidegate_decisions_total{domain=\"api\",rule=\"a\",result=\"allowed\",source=\"store\"}";
    assert_eq!(node.metric(decided), 5.0);
    assert_eq!(node.metric("tidegate_deny_cache_hits_total"), 4.0, "the sixth was refused by the store");
}

#[test]
fn each_worker_asks_over_a_connection_of_its_own() {
    let redis = Redis::start();
    let node = Node::ready(&redis.url(), PATIENT, ONE);
    let workers = std::thread::available_parallelism().unwrap().get();
    // Connections are dealt out evenly, so each worker has two of these.
    let mut clients: Vec<_> = (0..2 * workers).map(|_| node.client()).collect();
    for (user, client) in clients.iter_mut().enumerate() {
        assert!(check(client, &[("user", &user.to_string())], 1).allowed);
    }
    // All but the one that asks. Beside the workers, the background work and the prober have one each.
    let connections = || {
        let list = redis.cmd(&["CLIENT", "LIST", "TYPE", "normal"]).text();
        list.lines().filter(|line| !line.contains("cmd=client|list")).count()
    };
    eventually("there is a connection for each", PATIENCE, || connections() == workers + 2);
}
