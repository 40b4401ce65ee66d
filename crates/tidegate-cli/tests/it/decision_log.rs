//! The decision log of the real server: what it writes, and that a replay of it decides as the server did.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_replay::{Format, Options, Parser, Replay};
use tidegate_rules::{Format as RuleFormat, RuleSet, Source};
use tidegate_testkit::{TidegateServer, http, poll};

use crate::control_world::{Node, TOKEN, rules_of, waited};
use crate::{run_in, tidegate};

const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");

/// Nothing of this comes back while the test runs, so that no decision depends on the microsecond it was made in.
const RULES: &str = "\
domain: api
rules:
  - { name: per-user, key: [user], limits: [{ algorithm: sliding_log, limit: 7, window: 12h }] }
  - { name: posts, match: { method: POST, path: '/v1/*' }, key: [user, path], limits: [{ algorithm: token_bucket, rate: 1/day, burst: 3 }] }
  - { name: tried, shadow: true, key: [ip], limits: [{ algorithm: sliding_log, limit: 2, window: 12h }] }
  - { name: everybody, limits: [{ algorithm: sliding_log, limit: 150, window: 12h }] }
";

/// The same of every other algorithm, of tiers and of keys with limits of their own.
const MORE_RULES: &str = "
  - { name: window, key: [ip, method], limits: [{ algorithm: sliding_window, limit: 25, window: 12h }] }
  - { name: leaky, match: { path: /v1/items/1 }, key: [user], limits: [{ algorithm: leaky_bucket, rate: 1/day, max_delay: 3d }] }
  - name: plans
    key: [user]
    tiers: { on: plan, default: free, free: [{ algorithm: sliding_log, limit: 3, window: 12h }], pro: [{ algorithm: sliding_log, limit: 6, window: 12h, count_refused: true }], internal: unlimited }
    key_overrides:
      - { when: { user: u3 }, limits: [{ algorithm: sliding_log, limit: 1, window: 12h }] }
      - { when: { user: u4 }, limits: [{ algorithm: token_bucket, rate: 1/day, burst: 9 }] }
  - { name: signed, match: { method: POST }, key: [token], on_missing_key: refuse, limits: [{ algorithm: sliding_log, limit: 50, window: 12h }] }
  - { name: banned, match: { path: /v1/items/0 }, key: [ip], penalty: 12h, limits: [{ algorithm: sliding_log, limit: 18, window: 12h }] }
";

fn serve(section: &str) -> (TidegateServer, TempDir) {
    serve_rules(RULES, section)
}

fn serve_rules(rules: &str, section: &str) -> (TidegateServer, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    let config = dir.path().join("tidegate.yaml");
    let listen = "{ http: '127.0.0.1:0', grpc: off, resp: off, admin: '127.0.0.1:0' }";
    fs::write(
        &config,
        format!("listen: {listen}\nrules: {{ paths: [rules.yaml] }}\ndecision_log: {section}\n"),
    )
    .unwrap();
    let env = [("TIDEGATE_ADMIN__TOKENS", TOKEN)];
    (TidegateServer::start_with_env(BINARY, &["--config", config.to_str().unwrap()], &env), dir)
}

/// The lines of the log, once there are so many.
fn lines(path: &Path, count: usize) -> Vec<String> {
    let read = || fs::read_to_string(path).unwrap_or_default();
    let found = poll(Duration::from_secs(30), || (read().lines().count() >= count).then(read));
    found
        .unwrap_or_else(|| panic!("{} lines, not {count}", read().lines().count()))
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_replay_of_the_log_decides_as_the_server_did() {
    let all = format!("{RULES}{MORE_RULES}");
    let (mut server, dir) = serve_rules(
        &all,
        "{ admissions_one_in: 1, refusals_per_second: 100000, clear: ['*'], file: { path: decisions.log } }",
    );
    let (listener, mut live, mut rules_that_refused) = (server.addr("http"), Vec::new(), BTreeSet::new());
    for n in 0..600u64 {
        // Some users ask far more than others, of a few paths, by two methods, with a cost now and then.
        let mix = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let mut attributes = json!({
            "user": format!("u{}", (mix % 97).min(mix % 31)),
            "ip": format!("10.0.0.{}", mix % 5),
            "method": if mix % 3 == 0 { "POST" } else { "GET" },
            "path": format!("/v1/items/{}", mix % 2),
        });
        if mix % 7 < 4 {
            attributes["plan"] = ["free", "pro", "internal", "unknown"][(mix % 4) as usize].into();
        }
        if mix % 11 < 9 {
            attributes["token"] = "t".into();
        }
        let body = json!({ "domain": "api", "attributes": attributes, "cost": 1 + mix % 2 }).to_string();
        let headers = [("content-type", "application/json")];
        let answer = http::request(listener, "POST", "/v1/check", &headers, body.as_bytes()).unwrap();
        let answer = answer.json();
        live.push(answer["allowed"].as_bool().unwrap());
        if answer["allowed"] == false {
            rules_that_refused.insert(answer["rule"].as_str().unwrap().to_owned());
        }
    }
    let refused = live.iter().filter(|allowed| !**allowed).count();
    assert!((20..580).contains(&refused), "{refused} refused: the traffic tells nothing");
    assert!(rules_that_refused.len() >= 6, "{rules_that_refused:?}: the traffic tells little");
    assert!(server.terminate().success());
    let log = fs::read_to_string(dir.path().join("decisions.log")).unwrap();
    let rules = RuleSet::compile(&[Source::new("rules.yaml", &all)], RuleFormat::Native).unwrap();
    let (mut replay, mut parser) =
        (Replay::new(rules, None, Options::new("api")), Parser::new(Format::Tidegate).unwrap());
    let mut number = 0;
    for line in log.lines() {
        let recorded = parser.parse(line.as_bytes()).unwrap();
        // A penalty that begins is a line of its own, and no decision.
        let Some(replayed) = replay.play(&recorded) else { continue };
        let passed = live[number];
        assert_eq!((replayed.now, recorded.refused), (passed, Some(!passed)), "request {number}: {line}");
        number += 1;
    }
    assert_eq!(number, live.len());
    // The command reads the same file, and counts the same.
    let args = ["replay", "decisions.log", "--rules", "rules.yaml", "--output", "json"];
    let output = tidegate(&args).current_dir(dir.path()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["refused"]["now"], refused as u64, "{report}");
    assert_eq!(report["refused_in_log"], refused as u64);
}

#[test]
fn callers_are_hidden_unless_the_configuration_lists_them() {
    let (mut server, dir) = serve(
        "{ admissions_one_in: 1, secret: 0123456789abcdef0123, clear: [path], file: { path: decisions.log } }",
    );
    let attributes = json!({ "user": "alice@example.com", "path": "/v1/items" });
    let body = json!({ "domain": "api", "attributes": attributes }).to_string();
    http::request(
        server.addr("http"),
        "POST",
        "/v1/check",
        &[("content-type", "application/json")],
        body.as_bytes(),
    )
    .unwrap();
    let line = lines(&dir.path().join("decisions.log"), 1).remove(0);
    let read: Value = serde_json::from_str(&line).unwrap();
    assert!(!line.contains("alice"), "{line}");
    assert_eq!((&read["attributes"]["path"], &read["verdict"]), (&json!("/v1/items"), &json!("admitted")));
    assert!(read["attributes"]["user"].as_str().unwrap().starts_with('#'));
    assert!(read["node"].as_str().is_some_and(|node| !node.is_empty()), "{line}");
}

#[test]
fn a_decision_names_the_version_of_the_rules_as_it_was_published() {
    let node = Node::start("decision_log: { admissions_one_in: 1, file: { path: decisions.log } }");
    assert_eq!(node.publish(&rules_of(3)).status, 200);
    node.runs(3);
    // Takes the rules into use once more, without a new version.
    node.ban("somebody else");
    waited("the ban", || !node.allows("somebody else"));
    let published = node.publish(&rules_of(5));
    assert_eq!(published.status, 200, "{}", published.text());
    node.runs(5);
    let asked = http::post_json(node.http, "/v1/check", r#"{"domain":"api","attributes":{"user":"alice"}}"#);
    assert_eq!(asked.status, 200, "{}", asked.text());
    let line: Value = serde_json::from_str(&lines(&node.dir.path().join("decisions.log"), 1)[0]).unwrap();
    assert_eq!(line["version"], published.json()["version"], "{line}");
}

#[test]
fn a_section_that_makes_no_sense_stops_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let told = |section: &str| {
        fs::write(dir.path().join("a.yaml"), format!("decision_log: {section}\n")).unwrap();
        run_in(dir.path(), &["serve", "--config", "a.yaml", "--http", "127.0.0.1:0"])
    };
    assert!(told("{ memory: 10 }").contains("decision_log.memory: 10 bytes"), "{}", told("{ memory: 10 }"));
    let folder = told("{ file: { path: no/such/folder/x.log } }");
    assert!(folder.starts_with("exit 1") && folder.contains("x.log"), "{folder}");
    assert!(told("{ colour: red }").contains("colour"), "{}", told("{ colour: red }"));
}

#[test]
fn why_answers_from_a_file() {
    let (mut server, dir) = serve("{ admissions_one_in: 1, clear: ['*'], file: { path: decisions.log } }");
    let body = json!({ "domain": "api", "attributes": { "user": "alice" }, "cost": 8 }).to_string();
    let headers = [("content-type", "application/json")];
    let refused = http::request(server.addr("http"), "POST", "/v1/check", &headers, body.as_bytes()).unwrap();
    assert_eq!(refused.status, 429);
    lines(&dir.path().join("decisions.log"), 1);
    let told = run_in(dir.path(), &["why", "user=alice", "--log", "decisions.log"]);
    assert!(told.starts_with("exit 0") && told.contains("refused by api/per-user: 7 of 7 left"), "{told}");
    assert!(told.contains("Z  refused"), "a person reads when: {told}");
    let nobody = run_in(dir.path(), &["why", "user=bob", "--log", "decisions.log"]);
    assert!(nobody.contains("nothing that fits was kept"), "{nobody}");
}

#[test]
fn why_was_somebody_refused_at_three_past_two_is_answered_from_a_file_and_by_a_server() {
    let dir = tempfile::tempdir().unwrap();
    // 2027-01-16T14:02:59.999999Z, 14:03:00, 14:03:59.999999 and 14:04:00.
    let line = |time_us: u64, user: &str| {
        format!(
            "{{\"time_us\":{time_us},\"domain\":\"api\",\"rule\":\"r\",\"verdict\":\"refused\",\"attributes\":{{\"user\":\"{user}\"}}}}\n"
        )
    };
    let three_past = 1_800_108_180_000_000u64;
    let times = [three_past - 1, three_past, three_past + 59_999_999, three_past + 60_000_000];
    let log: String = times.iter().flat_map(|at| ["alice", "bob"].map(|user| line(*at, user))).collect();
    fs::write(dir.path().join("a.log"), log).unwrap();
    let at = |from: &str, to: &str| {
        run_in(dir.path(), &["why", "user=alice", "--log", "a.log", "--from", from, "--to", to])
    };
    let told = at("2027-01-16T14:03Z", "2027-01-16T15:04+01:00");
    assert_eq!(told.matches("refused by api/r").count(), 2, "{told}");
    assert!(told.contains("2027-01-16T14:03:00Z") && told.contains("2027-01-16T14:03:59.999999Z"), "{told}");
    assert!(at("5m", "1m").contains("nothing that fits was kept"), "spans go back from now");
    let wrong = at("1m", "5m");
    assert!(wrong.starts_with("exit 1") && wrong.contains("--from must be before --to"), "{wrong}");
    let wrong = at("14:03", "1m");
    assert!(wrong.starts_with("exit 1") && wrong.contains("--from 2027-01-01T14:03Z"), "{wrong}");

    let (mut server, dir) = serve("{ admissions_one_in: 1, clear: ['*'] }");
    let admin = server.addr("admin");
    let body = json!({ "domain": "api", "attributes": { "user": "alice" }, "cost": 8 }).to_string();
    assert_eq!(http::post_json(server.addr("http"), "/v1/check", &body).status, 429);
    let why = |more: &[&str]| {
        let told = tidegate(&[&["why", "user=alice"], more].concat())
            .env("TIDEGATE_ADMIN", format!("http://{admin}"))
            .env("TIDEGATE_TOKEN", TOKEN)
            .env("HOME", dir.path())
            .output()
            .unwrap();
        String::from_utf8_lossy(&told.stdout).into_owned()
    };
    // When it happened, by the line itself.
    let kept = why(&[]);
    let moment = kept.split_whitespace().next().unwrap();
    assert!(why(&["--from", moment]).contains("refused by api/per-user"), "{kept}");
    assert!(
        why(&["--from", "1h", "--to", moment]).contains("nothing that fits"),
        "what is asked for ends before it"
    );
}

#[test]
fn why_reads_on_behind_what_is_no_line_and_says_that_callers_are_hashed() {
    let dir = tempfile::tempdir().unwrap();
    let line = r##"{"time_us":1800057600000000,"domain":"api","rule":"r","verdict":"refused","attributes":{"user":"#b1f3c0de9a417d22"}}"##;
    let mut log = b"\xff\xfe no text\n[1]\n".to_vec();
    log.extend(vec![b'x'; 3 << 20]);
    log.extend(format!("\n{line}\n{{\"time_us\":18000576").bytes());
    fs::write(dir.path().join("a.log"), log).unwrap();
    let told = run_in(dir.path(), &["why", "user=#b1f3c0de9a417d22", "--log", "a.log"]);
    assert!(told.contains("2027-01-16T00:00:00Z  refused by api/r"), "{told}");
    assert!(told.contains("4 lines could not be read"), "{told}");
    let told = run_in(dir.path(), &["why", "user=42", "--log", "a.log"]);
    assert!(told.contains("the values of user are hashed in this file"), "{told}");
}

#[test]
fn why_finds_a_caller_whose_key_holds_commas_and_equals_signs() {
    let (mut server, dir) = serve("{ admissions_one_in: 1, clear: ['*'] }");
    let (http, admin) = (server.addr("http"), server.addr("admin"));
    for user in ["a,b", "a,b=c"] {
        let body = json!({ "domain": "api", "attributes": { "user": user }, "cost": 8 }).to_string();
        assert_eq!(http::post_json(http, "/v1/check", &body).status, 429);
        let told = tidegate(&["why", &format!("user={user}")])
            .env("TIDEGATE_ADMIN", format!("http://{admin}"))
            .env("TIDEGATE_TOKEN", TOKEN)
            .env("HOME", dir.path())
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(told.contains(&format!("user={user}  (")) && told.lines().count() == 1, "{told}");
    }
}

#[test]
fn lines_go_to_stdout_where_the_configuration_says_so() {
    let (mut server, dir) = serve("{ admissions_one_in: 1, clear: [user], stdout: true }");
    let body = json!({ "domain": "api", "attributes": { "user": "a\nb" }, "cost": 8 }).to_string();
    assert_eq!(http::post_json(server.addr("http"), "/v1/check", &body).status, 429);
    let line = poll(Duration::from_secs(30), || {
        let told = server.stdout();
        told.lines().find_map(|line| serde_json::from_str::<Value>(line).ok())
    });
    let line = line.unwrap_or_else(|| panic!("{}", server.stdout()));
    assert_eq!(
        (&line["verdict"], &line["attributes"]["user"]),
        (&json!("refused"), &json!("a\nb")),
        "{line}"
    );
    drop(dir);
}

#[test]
fn a_server_that_is_told_to_stop_writes_every_line_first() {
    let (mut server, dir) =
        serve("{ admissions_one_in: 1, refusals_per_second: 1000000, file: { path: decisions.log } }");
    let checks: Vec<Value> = (0..100)
        .map(|user| json!({ "domain": "api", "attributes": { "user": format!("u{user}") } }))
        .collect();
    let body = json!({ "checks": checks }).to_string();
    let address = server.addr("http");
    for _ in 0..20 {
        assert_eq!(http::post_json(address, "/v1/check/batch", &body).status, 200);
    }
    assert!(server.terminate().success());
    let text = fs::read_to_string(dir.path().join("decisions.log")).unwrap();
    let stand_for: u64 =
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["n"].as_u64().unwrap()).sum();
    assert_eq!(stand_for, 2_000);
}

#[test]
fn a_replay_says_what_it_cannot_repeat() {
    let node = Node::start(
        "decision_log: { admissions_one_in: 1, clear: [user], file: { path: decisions.log } }\nstore: { url: 'memory:' }",
    );
    let ask = |user: &str| {
        let body =
            json!({ "domain": "api", "attributes": { "user": user, "path": "/v1/items" } }).to_string();
        http::post_json(node.http, "/v1/check", &body).status
    };
    assert_eq!(node.publish(&rules_of(3)).status, 200);
    node.runs(3);
    assert_eq!(ask("alice"), 200);
    assert_eq!(node.publish(&rules_of(5)).status, 200);
    node.runs(5);
    assert_eq!(ask("alice"), 200);
    node.ban("alice");
    waited("the ban", || !node.allows("alice"));
    assert_ne!(ask("alice"), 200);
    lines(&node.dir.path().join("decisions.log"), 3);
    let played = tidegate(&["replay", "decisions.log", "--rules", "rules.yaml", "--output", "json"])
        .current_dir(node.dir.path())
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&played.stdout).unwrap();
    assert_eq!(report["decided_otherwise"], json!({ "admitted_now": 1, "refused_now": 0 }), "{report}");
    let notes = report["notes"].to_string();
    for told in ["1 requests were refused by a ban", "under 2 versions of rules"] {
        assert!(notes.contains(told), "{notes}");
    }
    // No rule asks for the path: nobody needs to know that it is hidden.
    assert!(!notes.contains("hashed"), "{notes}");
}

#[test]
fn a_search_shows_decisions_and_not_what_became_of_their_leases() {
    let rules = "domain: api\nrules:\n  - { name: slots, key: [user], limits: [{ algorithm: concurrency, limit: 1, ttl: 1h }] }\n";
    let (mut server, dir) =
        serve_rules(rules, "{ admissions_one_in: 1, clear: ['*'], file: { path: decisions.log } }");
    let (address, admin) = (server.addr("http"), server.addr("admin"));
    let body = json!({ "domain": "api", "attributes": { "user": "alice" } }).to_string();
    let lease = http::post_json(address, "/v1/check", &body).json()["lease"].clone();
    assert_eq!(http::post_json(address, "/v1/check", &body).status, 429);
    for path in ["/v1/renew", "/v1/release"] {
        assert_eq!(http::post_json(address, path, &json!({ "lease": lease }).to_string()).status, 200);
    }
    assert_eq!(http::post_json(address, "/v1/check", &body).status, 200);
    let kept = lines(&dir.path().join("decisions.log"), 5);
    // What is written there is not the lease.
    assert!(kept.iter().all(|line| !line.contains(lease.as_str().unwrap())), "{kept:?}");
    let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
    let found = http::request(admin, "GET", "/admin/v1/decisions", &headers, b"").unwrap().json();
    assert_eq!((&found["matched"], &found["represents"]), (&json!(3), &json!(3)), "{found}");
    let told = run_in(dir.path(), &["why", "--all", "--log", "decisions.log"]);
    assert!(told.matches("user=alice").count() == 3 && !told.contains("could not be read"), "{told}");
    // The sample that the dashboard plays before rules are published knows how long the lease was held.
    let proposed = json!({ "documents": [{ "domain": "api", "text": rules }] }).to_string();
    let headers = [headers[0], ("content-type", "application/json")];
    let report = http::request(admin, "POST", "/admin/v1/replay", &headers, proposed.as_bytes()).unwrap();
    let report = report.json();
    assert_eq!((&report["requests"], &report["refused"]["now"]), (&json!(3), &json!(1)), "{report}");
    assert_eq!(report["decided_otherwise"], json!({ "admitted_now": 0, "refused_now": 0 }), "{report}");
}

#[test]
fn files_of_a_server_stay_within_their_bound_and_hold_the_latest_decisions_line_by_line() {
    const BOUND: u64 = 16 << 10;
    const CHECKS: usize = 2_000;
    let section = "{ admissions_one_in: 1, refusals_per_second: 1000000, clear: ['*'], \
                   file: { path: decisions.log, max_bytes: 16384, keep: 2 } }";
    let (mut server, dir) = serve(section);
    let address = server.addr("http");
    for first in (0..CHECKS).step_by(100) {
        let checks: Vec<Value> = (first..first + 100)
            .map(|n| json!({ "domain": "api", "attributes": { "user": n.to_string() } }))
            .collect();
        let body = json!({ "checks": checks }).to_string();
        assert_eq!(http::post_json(address, "/v1/check/batch", &body).status, 200);
    }
    assert!(server.terminate().success());
    let mut names: Vec<String> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("decisions.log"))
        .collect();
    names.sort();
    assert_eq!(names, ["decisions.log", "decisions.log.1", "decisions.log.2"], "the oldest are removed");
    // The oldest first, as somebody reads them who wants to know what happened.
    let texts: Vec<String> =
        names.iter().rev().map(|name| fs::read_to_string(dir.path().join(name)).unwrap()).collect();
    assert!(texts.iter().all(|text| text.len() as u64 <= BOUND), "a file is longer than {BOUND} bytes");
    let users: Vec<usize> = texts
        .iter()
        .flat_map(|text| text.lines())
        .map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .map(|line| line["attributes"]["user"].as_str().unwrap().parse().unwrap())
        .collect();
    let expected: Vec<usize> = (CHECKS - users.len()..CHECKS).collect();
    assert_eq!(users, expected, "no line is missing where a file was put aside");
    // Each but the last was put aside because another line would not have fitted.
    assert!(texts[..2].iter().all(|text| text.len() as u64 > BOUND - 1_000), "files are filled");
}
