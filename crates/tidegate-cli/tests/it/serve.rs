//! `tidegate serve`: the real process, asked over its sockets and by signals.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tidegate_testkit::{Process, Signal, TidegateServer, eventually, http};

use crate::run;

const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");
const FREE_PORTS: [&str; 8] =
    ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
/// Far longer than any of this takes, for machines that are busy.
const PATIENCE: Duration = Duration::from_secs(20);

fn start(args: &[&str]) -> TidegateServer {
    TidegateServer::start(BINARY, &[&FREE_PORTS[..], args].concat())
}

/// Rules that let each user pass `limit` times a day.
fn rules(limit: u32) -> String {
    let limit = format!("{{ algorithm: fixed_window, limit: {limit}, window: 1d }}");
    format!("domain: api\nrules:\n  - name: per-user\n    key: [user]\n    limits: [{limit}]\n")
}

fn rule_file(limit: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yaml"), rules(limit)).unwrap();
    dir
}

fn check(http: SocketAddr, user: &str) -> Value {
    let body = format!(r#"{{"domain":"api","attributes":{{"user":"{user}"}}}}"#);
    http::post_json(http, "/v1/check", &body).json()
}

/// The limit that the server goes by now, asked without spending.
fn limit_now(http: SocketAddr) -> Option<u64> {
    let body = r#"{"domain":"api","attributes":{"user":"somebody"},"cost":0}"#;
    http::post_json(http, "/v1/check", body).json()["limit"].as_u64()
}

fn metric(admin: SocketAddr, name: &str) -> f64 {
    let text = http::get(admin, "/metrics").text();
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
}

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}

#[test]
fn with_no_arguments_it_serves_the_starter_rules_and_its_curl_line_works() {
    let mut server = start(&[]);
    let http = server.addr("http");
    eventually("the curl line is printed", PATIENCE, || server.stdout().contains("curl "));
    let stdout = server.stdout();
    let line = stdout.lines().find(|line| line.trim_start().starts_with("curl ")).unwrap();
    assert!(line.contains(&http.to_string()), "{line}");
    let ran = Command::new("bash").args(["-c", line]).output().unwrap();
    let reply: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!((&reply["allowed"], &reply["rule"]), (&true.into(), &"per-user".into()));
}

#[test]
fn it_says_where_it_listens_one_line_each() {
    let mut server = start(&[]);
    let lines =
        ["http", "grpc", "resp", "admin"].map(|name| format!("listening {name} {}", server.addr(name)));
    assert_eq!(server.stdout().lines().take(4).collect::<Vec<_>>(), lines);
}

#[test]
fn a_listener_that_is_off_is_not_opened() {
    let off = ["--http", "127.0.0.1:0", "--grpc", "off", "--resp", "off", "--admin", "off"];
    let server = TidegateServer::start(BINARY, &off);
    assert_eq!(server.stdout().matches("listening ").count(), 1);
}

#[test]
fn sigterm_and_sigint_end_it_with_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = start(&[]);
        server.process().signal(signal);
        let status = server.process().wait_exit(PATIENCE).expect("it ends");
        assert_eq!(status.code(), Some(0), "{signal:?}: {}", server.stderr());
    }
}

/// A connection that has sent all of a request but the last byte.
fn begin_request(http: SocketAddr) -> TcpStream {
    let body = r#"{"domain":"api","attributes":{"user":"late"}}"#;
    let mut stream = TcpStream::connect(http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json";
    let unfinished = &body[..body.len() - 1];
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{unfinished}", body.len()).unwrap();
    stream
}

fn wait_for_connection(admin: SocketAddr) {
    let open = "tidegate_connections{listener=\"http\"}";
    eventually("the connection is there", PATIENCE, || metric(admin, open) == 1.0);
}

#[test]
fn a_request_in_flight_is_answered_before_it_ends() {
    let mut server = start(&[]);
    let (http, admin) = (server.addr("http"), server.addr("admin"));
    let mut late = begin_request(http);
    wait_for_connection(admin);
    server.process().signal(Signal::TERM);
    eventually("it stops accepting", PATIENCE, || TcpStream::connect(http).is_err());
    late.write_all(b"}").unwrap();
    let mut reply = String::new();
    late.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
    assert_eq!(server.process().wait_exit(PATIENCE).unwrap().code(), Some(0));
}

#[test]
fn a_second_signal_ends_the_wait_for_a_request_in_flight() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tidegate.yaml"), "drain: { timeout: 10m }").unwrap();
    let mut server = start(&["--config", &path(dir.path(), "tidegate.yaml")]);
    let _never_finished = begin_request(server.addr("http"));
    wait_for_connection(server.addr("admin"));
    server.process().signal(Signal::TERM);
    eventually("it stops", PATIENCE, || server.stderr().contains("requests in flight may finish"));
    server.process().signal(Signal::INT);
    // After 10 s the server gives the request up by itself.
    let status = server.process().wait_exit(Duration::from_secs(6)).expect("it ends at once");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn an_envoy_configuration_is_served_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let limit = "rate_limit: { unit: day, requests_per_unit: 2 }";
    fs::write(dir.path().join("edge.yaml"), format!("domain: edge\ndescriptors: [{{ key: ip, {limit} }}]\n"))
        .unwrap();
    let mut server = start(&["--envoy-config", dir.path().to_str().unwrap()]);
    let http = server.addr("http");
    let body = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"ip","value":"203.0.113.7"}]}]}"#;
    let codes = [0; 3].map(|_| http::post_json(http, "/json", body).json()["overallCode"].clone());
    assert_eq!(codes, ["OK", "OK", "OVER_LIMIT"]);
}

#[test]
fn what_decides_nothing_in_an_envoy_configuration_is_named_at_the_start_as_import_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let fields = ["detailed_metric: true", "value_to_metric: true", "metadata: { team: web }"];
    let descriptors = ["a", "b", "c"].iter().zip(fields).map(|(key, field)| {
        format!("  - {{ key: {key}, {field}, rate_limit: {{ unit: day, requests_per_unit: 2 }} }}\n")
    });
    let text = format!("domain: edge\ndescriptors:\n{}", descriptors.collect::<String>());
    fs::write(dir.path().join("edge.yaml"), text).unwrap();
    let folder = dir.path().to_str().unwrap();
    let mut server = start(&["--envoy-config", folder]);
    server.addr("http");
    let log = server.stderr();
    let imported = run(&["import", "envoy", folder]);
    for (line, named) in
        [(3, "`detailed_metric` of `a`"), (4, "`value_to_metric` of `b`"), (5, "`metadata` of `c`")]
    {
        let warned = log.lines().find(|line| line.contains(named));
        let warned = warned.unwrap_or_else(|| panic!("nothing says {named}: {log}"));
        assert!(warned.contains("WARN") && warned.contains(&format!("edge.yaml:{line}")), "{warned}");
        assert!(imported.contains(named), "{imported}");
    }
}

#[test]
fn check_and_bench_agree_with_the_server() {
    let dir = rule_file(2);
    let mut server = start(&["--rules", &path(dir.path(), "rules.yaml")]);
    let (http, grpc) = (server.addr("http").to_string(), server.addr("grpc").to_string());
    let check = || run(&["check", "--server", &http, "--domain", "api", "user=42"]);
    let codes: Vec<String> = (0..3).map(|_| check().lines().next().unwrap().to_owned()).collect();
    assert_eq!(codes, ["exit 0", "exit 0", "exit 1"]);
    let short =
        ["--rate", "200", "--duration", "100ms", "--warm-up", "0s", "--keys", "1", "--output", "json"];
    for (protocol, address, allowed) in [("http", &http, 2), ("grpc", &grpc, 0)] {
        let args = ["bench", "--protocol", protocol, "--address", address];
        let ran = crate::tidegate(&[&args[..], &short].concat()).output().unwrap();
        let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
        let counts = (&report["allowed"], &report["refused"], &report["errors"]);
        assert_eq!(counts, (&allowed.into(), &(20 - allowed).into(), &0.into()), "{protocol}: {report:#}");
    }
}

#[test]
fn a_key_that_identity_leaves_out_is_warned_of_at_start_and_not_again_by_every_reload() {
    let dir = rule_file(5);
    fs::write(dir.path().join("tidegate.yaml"), "identity: { api_key: { header: x-api-key } }\n").unwrap();
    let (config, rules_file) = (path(dir.path(), "tidegate.yaml"), path(dir.path(), "rules.yaml"));
    let mut server = start(&["--config", &config, "--rules", &rules_file]);
    let http = server.addr("http");
    let times_warned = |server: &TidegateServer| server.stderr().matches("counts by `user`").count();
    assert_eq!(limit_now(http), Some(5));
    assert_eq!(times_warned(&server), 1, "{}", server.stderr());
    assert!(server.stderr().contains("rules.yaml:3: rule `per-user` of `api`"), "{}", server.stderr());
    assert!(server.stderr().contains("claims: { user: sub }"), "{}", server.stderr());
    fs::write(dir.path().join("rules.yaml"), rules(7)).unwrap();
    server.reload();
    eventually("the new rules are in use", PATIENCE, || limit_now(http) == Some(7));
    eventually("the reload is logged", PATIENCE, || server.stderr().contains("rules reloaded"));
    assert_eq!(times_warned(&server), 1, "{}", server.stderr());
    let mut quiet = start(&["--rules", &rules_file]);
    assert_eq!(limit_now(quiet.addr("http")), Some(7));
    assert!(!quiet.stderr().contains("counts by"), "callers send it: {}", quiet.stderr());
}

#[test]
fn sighup_reloads_and_keeps_the_counters() {
    let dir = rule_file(1);
    let mut server = start(&["--rules", &path(dir.path(), "rules.yaml")]);
    let (http, admin) = (server.addr("http"), server.addr("admin"));
    assert_eq!(check(http, "42")["allowed"], true);
    assert_eq!(check(http, "42")["allowed"], false);
    fs::write(dir.path().join("rules.yaml"), rules(3)).unwrap();
    server.reload();
    eventually("the new limit applies", PATIENCE, || limit_now(http) == Some(3));
    let again: Vec<Value> = (0..3).map(|_| check(http, "42")["allowed"].clone()).collect();
    assert_eq!(again, [true, true, false], "one of three was spent before the reload");
    assert_eq!(metric(admin, "tidegate_config_last_reload_success"), 1.0);
}

#[test]
fn a_changed_file_is_noticed_without_a_signal() {
    let dir = rule_file(1);
    let mut server = start(&["--rules", dir.path().to_str().unwrap()]);
    let http = server.addr("http");
    fs::write(dir.path().join("rules.yaml"), rules(7)).unwrap();
    eventually("a rewrite applies", PATIENCE, || limit_now(http) == Some(7));
    fs::write(dir.path().join(".new"), rules(8)).unwrap();
    fs::rename(dir.path().join(".new"), dir.path().join("rules.yaml")).unwrap();
    eventually("a rename applies", PATIENCE, || limit_now(http) == Some(8));
}

#[test]
fn the_symlink_swap_of_kubernetes_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for (generation, limit) in [("..1", 1), ("..2", 2)] {
        fs::create_dir(at(generation)).unwrap();
        fs::write(at(generation).join("rules.yaml"), rules(limit)).unwrap();
    }
    symlink("..1", at("..data")).unwrap();
    symlink("..data/rules.yaml", at("rules.yaml")).unwrap();
    let mut server = start(&["--rules", dir.path().to_str().unwrap()]);
    let http = server.addr("http");
    assert_eq!(limit_now(http), Some(1));
    symlink("..2", at("..data_tmp")).unwrap();
    fs::rename(at("..data_tmp"), at("..data")).unwrap();
    fs::remove_dir_all(at("..1")).unwrap();
    eventually("the new limit applies", PATIENCE, || limit_now(http) == Some(2));
}

#[test]
fn a_mistake_in_a_changed_file_keeps_the_old_rules_and_says_why() {
    let dir = rule_file(5);
    let file = path(dir.path(), "rules.yaml");
    let mut server = start(&["--rules", &file]);
    let (http, admin) = (server.addr("http"), server.addr("admin"));
    fs::write(&file, rules(6).replace("limits", "limtis")).unwrap();
    eventually("it complains", PATIENCE, || server.stderr().contains("did you mean"));
    assert!(server.stderr().contains(&format!("{file}:5:5: ")), "{}", server.stderr());
    assert_eq!(limit_now(http), Some(5));
    assert_eq!(metric(admin, "tidegate_config_last_reload_success"), 0.0);
    fs::write(&file, rules(6)).unwrap();
    eventually("the corrected file applies", PATIENCE, || limit_now(http) == Some(6));
    assert_eq!(metric(admin, "tidegate_config_last_reload_success"), 1.0);
}

#[test]
fn a_flag_wins_over_the_environment_over_the_file() {
    let dir = rule_file(1);
    fs::write(dir.path().join("more.yaml"), rules(2)).unwrap();
    fs::write(dir.path().join("most.yaml"), rules(3)).unwrap();
    let config = "rules: { paths: [rules.yaml] }\nlisten: { grpc: 'off', resp: 'off', admin: 'off' }\n";
    fs::write(dir.path().join("tidegate.yaml"), config).unwrap();
    let limit_with = |flag: Option<&str>, variable: Option<&str>| {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--config", &path(dir.path(), "tidegate.yaml"), "--http", "127.0.0.1:0"]);
        command.env("TIDEGATE_DATA", dir.path().join("data"));
        if let Some(file) = flag {
            command.args(["--rules", &path(dir.path(), file)]);
        }
        if let Some(file) = variable {
            command.env("TIDEGATE_RULES__PATHS", path(dir.path(), file));
        }
        let logs = tempfile::tempdir().unwrap();
        let mut process = Process::spawn("tidegate", &command, logs.path());
        let http = process.ready(PATIENCE, |process| {
            let stdout = process.stdout();
            let line = stdout.split_inclusive('\n').find(|line| line.ends_with('\n'))?;
            line.trim_end().strip_prefix("listening http ")?.parse().ok()
        });
        limit_now(http.unwrap())
    };
    assert_eq!(limit_with(Some("most.yaml"), Some("more.yaml")), Some(3));
    assert_eq!(limit_with(None, Some("more.yaml")), Some(2));
    assert_eq!(limit_with(None, None), Some(1), "the file's path is relative to the file");
}

/// Starts with this configuration beside rules that let everybody pass.
fn start_with(config: &str) -> (TidegateServer, tempfile::TempDir) {
    let dir = rule_file(1_000_000);
    fs::write(dir.path().join("tidegate.yaml"), format!("rules: {{ paths: [rules.yaml] }}\n{config}\n"))
        .unwrap();
    (start(&["--config", &path(dir.path(), "tidegate.yaml")]), dir)
}

#[test]
fn the_configuration_chooses_the_headers() {
    let names = |config: &str| {
        let (mut server, _dir) = start_with(config);
        let http = server.addr("http");
        let reply = http::post_json(http, "/v1/check", r#"{"domain":"api","attributes":{"user":"42"}}"#);
        let names = reply.headers.into_iter().map(|(name, _)| name);
        names.filter(|name| name.contains("ratelimit")).collect::<Vec<_>>()
    };
    let x = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    let ietf = ["ratelimit-policy", "ratelimit"];
    assert_eq!(names(""), [&x[..], &ietf].concat());
    assert_eq!(names("headers: [ietf]"), ietf);
    assert_eq!(names("headers: [x-ratelimit]"), x);
    assert_eq!(names("headers: []"), [""; 0]);
}

#[test]
fn the_configuration_chooses_the_headers_that_envoy_adds() {
    let added = |config: &str| {
        let (mut server, _dir) = start_with(config);
        let http = server.addr("http");
        let body = r#"{"domain":"api","descriptors":[{"entries":[{"key":"user","value":"42"}]}]}"#;
        http::post_json(http, "/json", body).json()["responseHeadersToAdd"].to_string().to_lowercase()
    };
    assert_eq!(added(""), "null");
    assert!(added("rls: { response_headers: x-ratelimit }").contains("x-ratelimit-remaining"));
    assert!(added("rls: { response_headers: ietf }").contains("ratelimit-policy"));
}

#[test]
fn the_configuration_bounds_bodies_and_cells() {
    let (mut server, _dir) = start_with("limits: { max_body: 100, max_cells: 10 }");
    let (http, admin) = (server.addr("http"), server.addr("admin"));
    let too_long = format!(r#"{{"domain":"api","attributes":{{"user":"{}"}}}}"#, "x".repeat(100));
    assert_eq!(http::post_json(http, "/v1/check", &too_long).status, 413);
    for user in 0..100 {
        check(http, &user.to_string());
    }
    let cells = metric(admin, "tidegate_cells");
    assert!((1.0..=10.0).contains(&cells), "{cells}");
}

#[test]
fn the_configuration_bounds_connections() {
    let (mut server, _dir) = start_with("limits: { max_connections: 1 }");
    let (http, admin) = (server.addr("http"), server.addr("admin"));
    let _only_one = begin_request(http);
    wait_for_connection(admin);
    let further = http::request(http, "GET", "/healthz", &[], b"");
    assert!(further.is_err(), "{further:?}");
}

#[test]
fn the_configuration_bounds_the_wait_for_requests_in_flight() {
    let (mut server, _dir) = start_with("drain: { timeout: 100ms }");
    let _never_finished = begin_request(server.addr("http"));
    wait_for_connection(server.addr("admin"));
    server.process().signal(Signal::TERM);
    // By default it would wait for 10 s.
    let status = server.process().wait_exit(Duration::from_secs(6)).expect("it ends soon");
    assert_eq!(status.code(), Some(0));
    assert!(server.stderr().contains("connections were cut"), "{}", server.stderr());
}

#[test]
fn json_logs_are_one_document_a_line() {
    let dir = rule_file(1);
    let file = path(dir.path(), "rules.yaml");
    let mut server = start(&["--rules", &file, "--log-format", "json"]);
    server.reload();
    eventually("it logs", PATIENCE, || server.stderr().contains("rules reloaded"));
    for line in server.stderr().lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
}
