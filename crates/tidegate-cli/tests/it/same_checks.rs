//! What `serve` refuses, `validate --config` refuses, in the same words.

use std::fs;
use std::path::Path;
use std::process::Command;

const RULES: &str = "{ domain: api, rules: [{ name: a, key: [user], limits: [5/s] }] }";

/// Configurations with one mistake each; where they name no rules, they name good ones.
const MISTAKES: &[&str] = &[
    "rulse: {}",
    "listen: { http: 8080 }",
    "listen: { http: off, grpc: off, resp: off }",
    "listen: { admin: 0.0.0.0:0 }",
    "log: { level: inof }",
    "rules: { paths: [absent.yaml] }",
    "rules: { paths: [bad.yaml] }",
    "rules: { paths: [tidegate.yml] }",
    "store: { url: 'etcd://127.0.0.1' }",
    "store: { url: 'redis+sentinel://127.0.0.1' }",
    "store: { url: 'redis://127.0.0.1', key_prefix: '{braces}' }",
    "store: { url: 'rediss://127.0.0.1', tls: { ca: absent.pem } }",
    "tls: { http: { certificate: absent.pem, key: absent.pem } }",
    "tls: { grpc: { certificate: bad.yaml, key: bad.yaml } }",
    "tls: { admin: { certificate: absent.pem, key: absent.pem } }",
    "access: { tokens: [short] }",
    "access: { tokens_file: absent }",
    "admin: { tokens_file: absent }",
    "resp: { users: [{ name: a, passwords: [] }] }",
    "identity: { trusted_proxies: [nowhere] }",
    "shedding: { workers: 0 }",
    "proxy: { listen: 127.0.0.1:0, domain: nowhere, upstreams: [{ name: a, targets: ['http://127.0.0.1:1'] }] }",
    "proxy: { listen: 127.0.0.1:0, domain: api, upstreams: [{ name: a, targets: ['ftp://127.0.0.1:1'] }] }",
    "proxy: { listen: 127.0.0.1:0, domain: api, upstreams: [{ name: a, targets: ['http://127.0.0.1:1'] }], tls: { certificate: absent.pem, key: absent.pem } }",
];

/// Exit code and stderr. A server that starts after all is ended.
fn told(dir: &Path, command: &str) -> (Option<i32>, String) {
    let ran = Command::new("timeout")
        .args(["--kill-after=5", "30", env!("CARGO_BIN_EXE_tidegate"), command, "--config", "tidegate.yml"])
        .env_clear()
        .current_dir(dir)
        .output()
        .unwrap();
    (ran.status.code(), String::from_utf8(ran.stderr).unwrap())
}

#[test]
fn what_stops_serve_from_starting_is_told_by_validate_in_the_same_words() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yaml"), RULES).unwrap();
    fs::write(dir.path().join("bad.yaml"), RULES.replace("key", "kye")).unwrap();
    let mut wrong = Vec::new();
    for mistake in MISTAKES {
        let rules = if mistake.starts_with("rules:") { "" } else { "rules: { paths: [rules.yaml] }\n" };
        fs::write(dir.path().join("tidegate.yml"), format!("{rules}{mistake}\n")).unwrap();
        let (validated, served) = (told(dir.path(), "validate"), told(dir.path(), "serve"));
        if validated.0 != Some(1) || validated != served {
            wrong.push(format!("{mistake}\nvalidate: {validated:?}\nserve: {served:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
