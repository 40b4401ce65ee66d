//! What a newcomer meets in the first minutes: mistakes on the command line, in requests and in rules, and what they are told.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;
use tidegate_server::rls::{Entry, RateLimitDescriptor, RateLimitRequest};
use tidegate_testkit::resp::Value;
use tidegate_testkit::{Redis, TidegateServer, eventually, http};

use crate::live_and_replay::grpc_client;
use crate::redis_world::{BINARY, Node, PATIENCE, PATIENT, check};
use crate::{ran, run_in, tidegate};

const RULES: &str = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [100/minute] }] }";
const FREE_PORTS: [&str; 8] =
    ["--http", "127.0.0.1:0", "--grpc", "off", "--resp", "off", "--admin", "127.0.0.1:0"];

/// A server with these rules and arguments.
fn serve(rules: &str, args: &[&str], env: &[(&str, &str)]) -> (TidegateServer, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rules.yaml");
    fs::write(&path, rules).unwrap();
    let args = [&FREE_PORTS[..], &["--rules", path.to_str().unwrap()], args].concat();
    (TidegateServer::start_with_env(BINARY, &args, env), dir)
}

#[test]
fn a_mistake_on_the_command_line_names_the_line_to_type() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yaml"), RULES).unwrap();
    fs::write(dir.path().join("tidegate.yaml"), "log: { level: info }").unwrap();
    for (args, told) in [
        (&["serve", "rules.yaml"][..], "hint: rules: tidegate serve --rules rules.yaml"),
        (&["explain", "rules.yaml", "--domain", "api"], "rules are given with --rules rules.yaml"),
        (&["explain", "--rules", "rules.yaml", "--domain", "api", "user"], "`user` has no `=`"),
        (
            &["validate", "--config", "tidegate.yaml", "rules.yaml"],
            "hint: check rules alone: tidegate validate rules.yaml",
        ),
        (
            &["validate", "rules.yaml", "--config", "tidegate.yaml"],
            "hint: check rules alone: tidegate validate rules.yaml",
        ),
        (&["validate", "--rules", "rules.yaml"], "hint: tidegate validate rules.yaml"),
        (&["check", "--domain", "api", "--cost", "two"], "write a whole number in digits, such as 5"),
        (&["serve", "--confg", "x"], "unexpected argument '--confg'"),
    ] {
        let ran = run_in(dir.path(), args);
        assert!(
            ran.starts_with("exit 2\n--- stdout\n--- stderr\n") && ran.contains(told),
            "{args:?} should say {told}:\n{ran}"
        );
        assert!(!ran.contains("invalid digit"), "{ran}");
    }
    assert!(run_in(dir.path(), &["--help"]).starts_with("exit 0\n--- stdout\n"));
}

#[test]
fn a_variable_that_is_not_valid_shows_how_to_write_it_and_not_what_it_holds() {
    for (name, value, told) in [
        (
            "TIDEGATE_IDENTITY",
            "{ api_key: Sup3rS }",
            "write it like this: identity: { api_key: { header: x-api-key }",
        ),
        ("TIDEGATE_IDENTITY", "Sup3rS", "write it like this: identity: { api_key: { header: x-api-key }"),
        (
            "TIDEGATE_TELEMETRY__STATSD",
            "127.0.0.1:8125",
            "write it like this: statsd: { address: 127.0.0.1:8125 }",
        ),
        ("TIDEGATE_LIMITS__MAX_CELLS", "two", "write it in digits, such as 10000"),
    ] {
        let ran = ran(&tidegate(&["serve"]).env(name, value).output().unwrap());
        assert!(ran.starts_with("exit 1") && ran.contains(told), "{name}={value} should say {told}:\n{ran}");
        assert!(ran.contains(name) && !ran.contains("Sup3rS"), "{ran}");
    }
}

#[test]
fn a_rule_that_was_skipped_is_named_with_what_the_request_lacks_counted_and_warned_of() {
    let (mut server, _dir) = serve(RULES, &[], &[]);
    let (http, admin) = (server.addr("http"), server.addr("admin"));
    let check = |attributes: &serde_json::Value| {
        let body = json!({ "domain": "api", "attributes": attributes }).to_string();
        http::post_json(http, "/v1/check", &body).json()
    };
    assert_eq!(check(&json!({ "user": "42" })).get("skipped"), None);
    let answer = check(&json!({ "usr": "42" }));
    assert_eq!((&answer["allowed"], &answer["rule"]), (&json!(true), &json!(null)), "{answer}");
    assert_eq!(answer["skipped"], json!([{ "rule": "per-user", "missing": ["user"] }]));
    let batch = json!({ "checks": [{ "domain": "api", "attributes": {} }] }).to_string();
    let batch = http::post_json(http, "/v1/check/batch", &batch).json();
    assert_eq!(batch["decisions"][0]["skipped"][0]["missing"], json!(["user"]));
    eventually("it is counted", PATIENCE, || {
        let metrics = http::get(admin, "/metrics").text();
        metrics.lines().any(|line| line.contains("result=\"key_missing_skipped\"") && line.ends_with(" 2"))
    });
    eventually("it is warned of", PATIENCE, || {
        let log = server.stderr();
        log.contains("is its name mistyped?") && log.contains("usr") && log.contains("per-user")
    });
}

/// The log of a server with this rule, after one question.
fn log_after(rules: &str, ask: impl FnOnce(&mut Node)) -> String {
    let mut node = Node::start("memory:", PATIENT, rules);
    ask(&mut node);
    node.server.terminate();
    node.server.stderr()
}

/// Envoy's question with these descriptors.
fn ask_grpc(node: &mut Node, descriptors: &[(&str, &str)]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut client = grpc_client(node.server.addr("grpc"), &runtime);
    let descriptor = |(key, value): &(&str, &str)| RateLimitDescriptor {
        entries: vec![Entry { key: (*key).to_owned(), value: value.as_bytes().to_vec().into() }],
        ..RateLimitDescriptor::default()
    };
    let descriptors = descriptors.iter().map(descriptor).collect();
    let request = RateLimitRequest { domain: "api".to_owned(), descriptors, ..RateLimitRequest::default() };
    runtime.block_on(client.should_rate_limit(request)).unwrap();
}

#[test]
fn a_mistyped_attribute_is_warned_of_over_every_transport() {
    const RULES: &str = "- { name: per-user, key: [user], limits: [5/s] }\n";
    type Ask = fn(&mut Node);
    let asks: [(&str, Ask); 4] = [
        ("gRPC", |node| ask_grpc(node, &[("usr", "42")])),
        ("RESP", |node| drop(node.client().cmd(&["TG.CHECK", "api", "usr", "42"]))),
        ("HTTP", |node| {
            let body = r#"{"domain":"api","attributes":{"usr":"42"}}"#;
            assert_eq!(http::post_json(node.http, "/v1/check", body).status, 200);
        }),
        ("a batch", |node| {
            let body = r#"{"checks":[{"domain":"api","attributes":{"usr":"42"}}]}"#;
            assert_eq!(http::post_json(node.http, "/v1/check/batch", body).status, 200);
        }),
    ];
    for (transport, ask) in asks {
        let log = log_after(RULES, ask);
        let line = log.lines().find(|line| line.contains("is its name mistyped?"));
        let line = line.unwrap_or_else(|| panic!("{transport}: {log}"));
        for part in ["rule=\"per-user\"", "attribute=\"usr\"", "missing=[\"user\"]"] {
            assert!(line.contains(part), "{transport}: {line}");
        }
    }
    // A gateway reads what it was told to read, so here the rule's own name is at fault.
    let log = log_after(RULES, |node| drop(http::get(node.http, "/v1/auth?domain=api")));
    assert!(log.contains("a rule counts by what /v1/auth is not configured to read"), "{log}");
    assert!(!log.contains("mistyped"), "{log}");
}

#[test]
fn a_descriptor_for_other_rules_is_not_taken_for_a_mistyped_one() {
    let rules = "- { name: per-user, key: [user], limits: [5/s] }\n";
    let log = log_after(rules, |node| ask_grpc(node, &[("remote_address", "192.0.2.7"), ("user", "42")]));
    assert!(!log.contains("mistyped"), "{log}");
}

#[test]
fn an_anonymous_request_is_not_taken_for_a_mistyped_one() {
    let rules = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [5/s] }, { name: ip, key: [ip], limits: [5/s] }] }";
    let (mut server, _dir) = serve(rules, &[], &[]);
    let body = json!({ "domain": "api", "attributes": { "ip": "192.0.2.7" } }).to_string();
    let answer = http::post_json(server.addr("http"), "/v1/check", &body).json();
    assert_eq!(answer["skipped"], json!([{ "rule": "per-user", "missing": ["user"] }]));
    server.terminate();
    assert!(!server.stderr().contains("mistyped"), "{}", server.stderr());
}

#[test]
fn a_mistake_in_a_request_names_where_the_value_belongs() {
    let (mut server, _dir) = serve(RULES, &[], &[]);
    let http = server.addr("http");
    for (body, detail, hint) in [
        (
            "{}",
            "domain: it is missing",
            r#"name the rules to apply: {"domain":"api","attributes":{"user":"42"}}"#,
        ),
        (
            r#"{"domain":"api","user":"42"}"#,
            "user: unknown field",
            r#"put it into attributes: {"attributes":{"user":"…"}}"#,
        ),
        (
            r#"{"domain":"api","attributes":["user"]}"#,
            "attributes: expected an object of strings, found an array",
            r#"write {"user":"42"}"#,
        ),
        (r#"{"domain":"api","atributes":{}}"#, "atributes: unknown field", "did you mean `attributes`?"),
    ] {
        let problem = http::post_json(http, "/v1/check", body).json();
        assert_eq!(
            (&problem["detail"], &problem["hint"]),
            (&json!(detail), &json!(hint)),
            "{body}: {problem}"
        );
    }
    for path in ["/", "/admin/v1/rules", "/metrics"] {
        let lost = http::get(http, path).text();
        assert!(lost.contains("on the admin listener, by default 127.0.0.1:8082"), "{path}: {lost}");
    }
    let lost = http::get(server.addr("admin"), "/v1/check").text();
    assert!(lost.contains("this is the admin listener") && lost.contains("127.0.0.1:8080"), "{lost}");
}

#[test]
fn an_api_key_is_never_in_clear_in_redis_or_a_log_whichever_way_it_comes() {
    const SECRET: &str = "sk-live-4f9a8b7c6d5e";
    const TENANT: &str = "tenant-1b2c3d4e5f60";
    let redis = Redis::start();
    let logs = tempfile::tempdir().unwrap();
    let log = logs.path().join("decisions.log");
    // A log that was told to keep all values as they are keeps no secret.
    let config = format!(
        "decision_log: {{ admissions_one_in: 1, clear: ['*'], file: {{ path: '{}' }} }}\n",
        log.display()
    );
    let node = Node::start_with(
        &redis.url(),
        PATIENT,
        "- { name: a, key: [api_key], limits: [{ algorithm: fixed_window, limit: 5, window: 1d }] }\n\
         - { name: b, key: [tenant, user], hash: [tenant], colocate: tenant, limits: [5/h] }\n",
        &config,
    );
    eventually("the node is in touch with its store", PATIENCE, || node.readyz() == "ready\n");
    let mut client = node.client();
    let body = json!({ "domain": "api", "attributes": { "api_key": SECRET, "tenant": TENANT, "user": "u" }, "request_id": "r1" });
    let answer = http::post_json(node.http, "/v1/check", &body.to_string()).json();
    assert_eq!(answer["remaining"], 4, "{answer}");
    let answer = check(&mut client, &[("api_key", SECRET), ("tenant", TENANT), ("user", "u")], 1);
    assert_eq!(answer.remaining, 3, "both count in one cell: {answer:?}");
    let keys: Vec<Vec<u8>> = redis
        .cmd(&["KEYS", "*"])
        .array()
        .iter()
        .map(|key| match key {
            Value::Bulk(bytes) => bytes.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    let holds = |bytes: &[u8]| has(bytes, SECRET) || has(bytes, TENANT);
    assert!(keys.iter().any(|key| key.contains(&b'#')), "{keys:?}");
    for key in &keys {
        let shown = key.escape_ascii();
        assert!(!holds(key), "{shown}");
        assert!(
            !matches!(redis.cmd(&[&b"DUMP"[..], key]), Value::Bulk(dump) if holds(&dump)),
            "the value of {shown}"
        );
    }
    assert!(
        !http::get(node.admin, "/metrics").text().contains(SECRET) && !node.server.stderr().contains(SECRET)
    );
    let mut written = String::new();
    eventually("both requests are in the decision log", PATIENCE, || {
        written = fs::read_to_string(&log).unwrap_or_default();
        written.lines().filter(|line| line.contains("api_key")).count() == 2
    });
    assert!(written.contains("\"u\"") && !written.contains(SECRET), "{written}");
}

#[test]
fn a_log_in_link_is_not_written_to_a_log() {
    for format in ["text", "json"] {
        let mut server =
            TidegateServer::start_with_env(BINARY, &FREE_PORTS, &[("TIDEGATE_LOG__FORMAT", format)]);
        server.addr("admin");
        eventually("it says how to sign in", PATIENCE, || {
            server.stdout().contains("Sign-in link: tidegate login")
        });
        assert!(!server.stdout().contains("/#/login?code="), "{format}");
    }
}

#[test]
fn a_listener_that_others_reach_and_anybody_may_use_is_warned_of() {
    let any = ["--http", "0.0.0.0:0", "--grpc", "0.0.0.0:0", "--resp", "0.0.0.0:0", "--admin", "127.0.0.1:0"];
    let guarded =
        [("TIDEGATE_ACCESS__TOKENS", "[a-token-of-the-gateways]"), ("TIDEGATE_RESP__PASSWORD", "a-password")];
    for (args, env, warned) in [
        (any, &[][..], &["http", "grpc", "resp"][..]),
        (any, &guarded[..1], &["resp"]),
        (any, &guarded, &[]),
        (FREE_PORTS, &[], &[]),
    ] {
        let server = TidegateServer::start_with_env(BINARY, &args, env);
        let log = server.stderr();
        let lines = log.lines().filter(|line| line.contains("everybody who reaches this listener"));
        let named: Vec<&str> =
            lines.filter_map(|line| line.split("listener=\"").nth(1)?.split('"').next()).collect();
        assert_eq!(named, warned, "{env:?}: {log}");
    }
}

#[test]
fn few_open_files_are_warned_of_and_a_shells_usual_number_is_not() {
    for (files, level) in [(1_024, "WARN"), (8_192, "INFO")] {
        let dir = tempfile::tempdir().unwrap();
        let limited = dir.path().join("limited");
        fs::write(&limited, format!("#!/bin/sh\nulimit -n {files} && exec {BINARY} \"$@\"\n")).unwrap();
        fs::set_permissions(&limited, fs::Permissions::from_mode(0o755)).unwrap();
        let server = TidegateServer::start(&limited, &FREE_PORTS);
        let log = server.stderr();
        let said = log.lines().find(|line| line.contains("open files")).unwrap_or_else(|| panic!("{log}"));
        assert!(said.contains(level), "{said}");
    }
}

#[test]
fn replay_reads_json_of_any_shape_and_puts_a_log_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "{ domain: web, rules: [{ name: r, key: [user], limits: [{ algorithm: sliding_log, limit: 1, window: 5s }] }] }";
    fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    // Every request is 5 s after the one before it; the first line of each pair is written late.
    let line = |second: u64| {
        format!("{{\"ts\":{},\"account\":{{\"id\":\"42\"}},\"msg\":\"done\"}}\n", 1_800_057_600 + second)
    };
    let log: String = [10, 5, 20, 15, 30, 25].into_iter().map(line).collect();
    fs::write(dir.path().join("app.log"), &log).unwrap();
    let map = ["--map", "time=ts", "--map", "user=account.id", "--rules", "rules.yaml"];
    for how in [&["--format", "json"][..], &["--sort"]] {
        let ran = run_in(dir.path(), &[&["replay", "app.log"], how, &map].concat());
        assert!(
            ran.starts_with("exit 0") && ran.contains("requests refused: 0 (0 % of 6)"),
            "{how:?}: {ran}"
        );
        assert!(ran.contains("3 lines are earlier than one before them, by up to 5.000 s"), "{how:?}: {ran}");
    }
    let ran = run_in(dir.path(), &["replay", "app.log", "--format", "json", "--rules", "rules.yaml"]);
    assert!(ran.starts_with("exit 1") && ran.contains("--map time=FIELD"), "{ran}");
}
