//! `tidegate import`

use std::fs;

use insta::assert_snapshot;
use tempfile::TempDir;

use crate::{run_in, tidegate};

const ENVOY: &str = "\
domain: edge
descriptors:
  - key: path
    value: /login
    detailed_metric: true
    descriptors:
      - key: remote_address
        rate_limit: { unit: minute, requests_per_unit: 5 }
";

const LIMITADOR: &str = "\
- namespace: shop
  max_value: 100
  seconds: 60
  conditions: [\"method == 'POST'\"]
  variables: [user_id]
- namespace: shop
  max_value: 1
  seconds: 1
  conditions: [\"size(path) > 3\"]
  variables: []
";

fn dir() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("envoy")).unwrap();
    fs::write(dir.path().join("envoy/edge.yaml"), ENVOY).unwrap();
    fs::write(dir.path().join("limits.yaml"), LIMITADOR).unwrap();
    dir
}

#[test]
fn an_envoy_directory_becomes_rules() {
    assert_snapshot!(run_in(dir().path(), &["import", "envoy", "envoy"]));
}

#[test]
fn a_limitador_file_becomes_rules_and_a_note_for_what_did_not_map() {
    assert_snapshot!(run_in(dir().path(), &["import", "limitador", "limits.yaml"]));
}

#[test]
fn a_limit_that_was_left_out_fails_unless_that_is_accepted() {
    let dir = dir();
    let import =
        |more: &[&str]| run_in(dir.path(), &[&["import", "limitador", "limits.yaml"], more].concat());
    let (refused, accepted) = (import(&[]), import(&["--lossy"]));
    assert!(refused.starts_with("exit 1") && refused.contains("`--lossy` accepts that"), "{refused}");
    assert!(accepted.starts_with("exit 0") && accepted.contains("limit 2 is left out"), "{accepted}");
    let json = import(&["--output", "json"]);
    assert!(json.starts_with("exit 1") && json.contains("\"kind\": \"dropped\""), "{json}");
}

#[test]
fn a_program_gets_rules_and_notes_as_json() {
    let output = tidegate(&["import", "limitador", "limits.yaml", "--output", "json"])
        .current_dir(dir().path())
        .output();
    let json: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    assert!(json["rules"].as_str().unwrap().contains("domain: shop"), "{json:#}");
    let notes = json["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note["file"] == "limits.yaml" && note["line"] == 6), "{json:#}");
}

#[test]
fn what_was_imported_is_valid() {
    for (format, path) in [("envoy", "envoy"), ("limitador", "limits.yaml")] {
        let dir = dir();
        let output = tidegate(&["import", format, path]).current_dir(dir.path()).output().unwrap();
        fs::write(dir.path().join("imported.yaml"), &output.stdout).unwrap();
        let ran = run_in(dir.path(), &["validate", "imported.yaml"]);
        assert!(ran.starts_with("exit 0"), "{format}: {ran}");
    }
}

#[test]
fn what_the_other_limiter_would_refuse_is_an_error() {
    let dir = dir();
    fs::write(dir.path().join("envoy/edge.yaml"), "domain: edge\ndescriptors: [{ kye: path }]\n").unwrap();
    let ran = run_in(dir.path(), &["import", "envoy", "envoy"]);
    assert!(ran.starts_with("exit 1") && ran.contains("envoy/edge.yaml:2:"), "{ran}");
}

#[test]
fn an_unknown_format_names_the_known_ones() {
    let ran = run_in(dir().path(), &["import", "kong", "limits.yaml"]);
    assert!(
        ran.starts_with("exit 2") && ran.contains("[possible values: envoy, envoy-env, limitador]"),
        "{ran}"
    );
}

/// As in envoyproxy/ratelimit's own docker-compose example, and more.
const ENVIRONMENT: &str = "\
# a deployment
USE_STATSD=true
STATSD_HOST=statsd
LOG_LEVEL=debug
REDIS_SOCKET_TYPE=tcp
REDIS_TYPE=sentinel
REDIS_URL=main,s1:26379,s2:26379
REDIS_AUTH='secret'
RUNTIME_ROOT=/data
RUNTIME_SUBDIRECTORY=ratelimit
RUNTIME_WATCH_ROOT=false
LIMIT_RESPONSE_HEADERS_ENABLED=true
LIMIT_RESET_HEADER=X-Reset
SHADOW_MODE=true
NEAR_LIMIT_RATIO=0.8
PATH=/bin
";

#[test]
fn environment_of_envoys_service_becomes_a_configuration() {
    let dir = dir();
    fs::write(dir.path().join("env"), ENVIRONMENT).unwrap();
    let ran = run_in(dir.path(), &["import", "envoy-env", "env"]);
    assert_snapshot!(ran);
    // What it prints is a configuration, as far as this machine can check it.
    let output =
        tidegate(&["import", "envoy-env", "env", "--lossy"]).current_dir(dir.path()).output().unwrap();
    assert!(output.status.success());
    let config = String::from_utf8(output.stdout).unwrap().replace("/data/ratelimit/config", "envoy");
    fs::write(dir.path().join("tidegate.yaml"), config.replace("'statsd:8125'", "'127.0.0.1:8125'")).unwrap();
    let valid = run_in(dir.path(), &["validate", "--config", "tidegate.yaml"]);
    assert!(valid.starts_with("exit 0"), "{valid}");
}

#[test]
fn environment_with_xds_names_the_server_of_limits() {
    let dir = dir();
    let env = "export CONFIG_TYPE=GRPC_XDS_SOTW\nCONFIG_GRPC_XDS_NODE_ID=eg\nCONFIG_GRPC_XDS_SERVER_URL=localhost:18001\n";
    fs::write(dir.path().join("env"), env).unwrap();
    let ran = run_in(dir.path(), &["import", "envoy-env", "env"]);
    assert!(ran.contains("xds:\n    address: 'localhost:18001'\n    node_id: 'eg'"), "{ran}");
    fs::write(dir.path().join("env"), "PATH=/bin\n").unwrap();
    let nothing = run_in(dir.path(), &["import", "envoy-env", "env"]);
    assert!(nothing.contains("has no variable of envoyproxy/ratelimit"), "{nothing}");
}

#[test]
fn memcached_servers_of_the_environment_become_a_store() {
    let dir = dir();
    let import = |env: &str| {
        fs::write(dir.path().join("env"), env).unwrap();
        run_in(dir.path(), &["import", "envoy-env", "env"])
    };
    let list = "BACKEND_TYPE=memcache\nMEMCACHE_HOST_PORT=127.0.0.1:11211, 127.0.0.1:11212\nRUNTIME_ROOT=/data\n\
                CACHE_KEY_PREFIX=edge\nREDIS_URL=unused:6379\nMEMCACHE_MAX_IDLE_CONNS=2\n";
    let ran = import(list);
    let section =
        "store:\n  url: 'memcached://127.0.0.1:11211,127.0.0.1:11212'\n  key_prefix: 'edge'\nrules:";
    assert!(ran.starts_with("exit 0") && ran.contains(section), "{ran}");
    let output = tidegate(&["import", "envoy-env", "env"]).current_dir(dir.path()).output().unwrap();
    let config = String::from_utf8(output.stdout).unwrap().replace("/data/config", "envoy");
    fs::write(dir.path().join("tidegate.yaml"), config).unwrap();
    let valid = run_in(dir.path(), &["validate", "--config", "tidegate.yaml"]);
    assert!(valid.starts_with("exit 0"), "{valid}");
    // What it cannot do is named, and is none of it while the backend is Redis.
    for (env, named) in [
        ("MEMCACHE_SRV=_memcache._tcp.example.com", "MEMCACHE_SRV: SRV records are not looked up"),
        ("MEMCACHE_HOST_PORT=a:1\nMEMCACHE_TLS=true", "MEMCACHE_TLS: connections are not encrypted"),
        ("MEMCACHE_HOST_PORT=", "MEMCACHE_HOST_PORT: it is not set"),
    ] {
        let ran = import(&format!("BACKEND_TYPE=memcache\nRUNTIME_ROOT=/data\n{env}\n"));
        assert!(ran.starts_with("exit 1") && ran.contains(&format!("not in it: {named}")), "{ran}");
        let redis = import(&format!("REDIS_URL=redis:6379\nRUNTIME_ROOT=/data\n{env}\n"));
        assert!(redis.starts_with("exit 0") && !redis.contains(named), "{redis}");
    }
}

#[test]
fn statsd_and_the_debug_address_are_as_the_environment_says_and_what_it_leaves_out_is_named() {
    let dir = dir();
    let import = |env: &str| {
        fs::write(dir.path().join("env"), format!("RUNTIME_ROOT=/data\n{env}\n")).unwrap();
        run_in(dir.path(), &["import", "envoy-env", "env"])
    };
    for (env, has_section, is_named) in [
        ("USE_STATSD=true", true, false),
        ("USE_STATSD=true\nSTATSD_HOST=localhost", true, false),
        ("STATSD_HOST=localhost", true, false),
        ("USE_STATSD=false\nSTATSD_HOST=localhost", false, false),
        ("USE_STATSD=false\nUSE_DOG_STATSD=true", true, false),
        ("LOG_LEVEL=info", false, true),
        ("DISABLE_STATS=true", false, false),
    ] {
        let ran = import(env);
        assert_eq!(ran.contains("statsd:\n    address: 'localhost:8125'"), has_section, "{env}: {ran}");
        assert_eq!(ran.contains("not by default here: USE_STATSD: theirs sends"), is_named, "{env}: {ran}");
        assert!(ran.starts_with("exit 0"), "{env}: {ran}");
    }
    let ran = import("DEBUG_HOST=0.0.0.0\nDEBUG_PORT=6071");
    assert!(
        ran.starts_with("exit 1") && ran.contains("not in it: DEBUG_HOST: the admin listener stays"),
        "{ran}"
    );
    assert!(ran.contains("admin: '127.0.0.1:6071'"), "{ran}");
    assert!(import("DEBUG_HOST=127.0.0.1").starts_with("exit 0"));
}
