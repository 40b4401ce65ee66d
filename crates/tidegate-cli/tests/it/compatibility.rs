//! What `tidegate serve --config` switches on for those who come from envoyproxy/ratelimit and Limitador.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_testkit::{TidegateServer, eventually, http};

use crate::redis_world::{BINARY, PATIENCE};

const RULES: &str = "domain: api\nrules: [{ name: per-user, key: [user], limits: [3/minute] }]\n";

fn serve(sections: &str, env: &[(&str, &str)]) -> (TidegateServer, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "listen: {{ http: '127.0.0.1:0', grpc: off, resp: off, admin: '127.0.0.1:0' }}\n\
         drain: {{ delay: 0s }}\nrules: {{ paths: [rules.yaml] }}\n{sections}\n"
    );
    fs::write(dir.path().join("rules.yaml"), RULES).unwrap();
    fs::write(dir.path().join("tidegate.yaml"), config).unwrap();
    let file = dir.path().join("tidegate.yaml");
    (TidegateServer::start_with_env(BINARY, &["--config", file.to_str().unwrap()], env), dir)
}

/// The answer of `/json`, which is that of Envoy's gRPC.
fn ask(server: &mut TidegateServer, user: &str) -> Value {
    let entry = json!({ "key": "user", "value": user });
    let body = json!({ "domain": "api", "descriptors": [{ "entries": [entry] }] });
    http::post_json(server.addr("http"), "/json", &body.to_string()).json()
}

#[test]
fn configuration_switches_on_what_other_limiters_have() {
    let sections = "x_ratelimit: { reset: delta }\nlimitador: { http_api: true }\n\
                    rls: { header_names: { limit: X-Own-Limit, remaining: X-Own-Left, reset: X-Own-Reset }, dynamic_metadata: true }";
    let (mut server, _dir) = serve(sections, &[]);
    let answer = ask(&mut server, "7");
    let headers = answer["responseHeadersToAdd"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let header = |name: &str| {
        let found = headers.iter().find(|one| one["key"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {answer}"))["value"].as_str().unwrap()
    };
    assert_eq!([header("x-own-limit"), header("x-own-left")], ["3", "2"]);
    assert!(header("x-own-reset").parse::<u64>().unwrap() <= 120, "seconds left: {answer}");
    assert_eq!(
        [&answer["dynamicMetadata"]["rule"], &answer["dynamicMetadata"]["source"]],
        [&json!("per-user"), &json!("store")],
        "{answer}"
    );
    let body = json!({ "domain": "api", "attributes": { "user": "8" } }).to_string();
    let check = http::post_json(server.addr("http"), "/v1/check", &body);
    let reset = check.header("x-ratelimit-reset").unwrap().parse::<u64>().unwrap();
    assert!(reset <= 120, "seconds from now, not since 1970: {reset}");
    let body = json!({ "namespace": "api", "values": { "user": "9" }, "delta": 3 }).to_string();
    let limitador = [(); 2].map(|()| http::post_json(server.addr("http"), "/check_and_report", &body).status);
    assert_eq!(limitador, [200, 429]);
}

#[test]
fn without_those_settings_none_of_it_is_there() {
    let (mut server, _dir) = serve("", &[]);
    let answer = ask(&mut server, "7");
    let absent = ["responseHeadersToAdd", "dynamicMetadata"].map(|field| answer.get(field).cloned());
    assert_eq!(absent, [None, None], "{answer}");
    let body = json!({ "domain": "api", "attributes": { "user": "8" } }).to_string();
    let check = http::post_json(server.addr("http"), "/v1/check", &body);
    let reset = check.header("x-ratelimit-reset").unwrap().parse::<u64>().unwrap();
    assert!(Duration::from_secs(reset) > Duration::from_secs(1_000_000_000), "Unix time: {reset}");
    assert_eq!(http::post_json(server.addr("http"), "/check_and_report", "{}").status, 404);
}

#[test]
fn partition_keys_are_sent_where_they_have_a_secret() {
    let keys = |sections: &str| {
        let (mut server, _dir) = serve(sections, &[]);
        let body = json!({ "domain": "api", "attributes": { "user": "dana" } }).to_string();
        let check = http::post_json(server.addr("http"), "/v1/check", &body);
        ["ratelimit-policy", "ratelimit"]
            .map(|field| Some(check.header(field).unwrap().split_once(";pk=")?.1.to_owned()))
    };
    let secret = "ietf: { partition_secret: 'a secret of the fleet' }";
    let [of_policy, of_limit] = keys(secret);
    assert!(of_policy.is_some() && of_policy == of_limit, "{of_policy:?} {of_limit:?}");
    assert_eq!(keys(secret), [of_policy, of_limit], "every node sends the same");
    assert_eq!(keys(""), [None, None]);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("short.yaml"), "ietf: { partition_secret: hunter2 }\n").unwrap();
    let short = crate::run_in(dir.path(), &["validate", "--config", "short.yaml"]);
    assert!(short.contains("ietf.partition_secret: it has 7 bytes") && !short.contains("hunter2"), "{short}");
}

#[test]
fn variables_of_envoys_service_are_named_as_ignored() {
    let warning = "variables of envoyproxy/ratelimit are not read";
    let theirs = [("RUNTIME_ROOT", "/data"), ("REDIS_URL", "redis:6379"), ("LOG_FORMAT", "json")];
    let (server, _dir) = serve("", &theirs);
    eventually("they are named", PATIENCE, || server.stderr().contains(warning));
    let log = server.stderr();
    let line = log.lines().find(|line| line.contains(warning)).unwrap();
    assert!(line.contains("LOG_FORMAT REDIS_URL RUNTIME_ROOT"), "each, and no other: {line}");
    assert!(line.contains("tidegate import envoy-env"), "{line}");
    // Names that any program may have say nothing about whose environment it is.
    let (mut other, _dir) = serve("", &[("REDIS_URL", "redis:6379"), ("LOG_LEVEL", "debug")]);
    let _ = other.addr("http");
    assert!(!other.stderr().contains(warning), "{}", other.stderr());
}
