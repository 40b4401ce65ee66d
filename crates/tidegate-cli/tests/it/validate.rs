//! `tidegate validate`

use std::fs;

use insta::assert_snapshot;
use tempfile::TempDir;

use crate::run_in;

fn files(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

const GOOD: &str = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [100/minute] }] }";
const BAD: &str = "\
domain: api
rules:
  - name: per-user
    kye: [user]
    limits: [100/minute, 0/fortnight]
";

#[test]
fn good_rules_are_counted() {
    let other = GOOD.replace("api", "jobs");
    let dir = files(&[("a.yaml", GOOD), ("b.yaml", &other)]);
    assert_snapshot!(run_in(dir.path(), &["validate", "a.yaml", "b.yaml"]));
    assert_snapshot!(run_in(dir.path(), &["validate", ".", "--output", "json"]));
}

#[test]
fn every_mistake_is_shown_with_its_place_and_a_way_out() {
    let dir = files(&[("a.yaml", BAD)]);
    assert_snapshot!(run_in(dir.path(), &["validate", "a.yaml"]));
}

#[test]
fn a_program_gets_the_same_as_json() {
    let dir = files(&[("a.yaml", BAD)]);
    assert_snapshot!(run_in(dir.path(), &["validate", "a.yaml", "--output", "json"]));
}

#[test]
fn a_file_that_is_not_there_is_an_error() {
    let dir = files(&[]);
    assert_snapshot!(run_in(dir.path(), &["validate", "a.yaml"]));
}

#[test]
fn a_directory_without_rules_is_an_error() {
    let dir = files(&[("notes.txt", "nothing")]);
    assert_snapshot!(run_in(dir.path(), &["validate", "."]));
}

#[test]
fn a_configuration_is_validated_with_the_rules_it_names() {
    let dir = files(&[("a.yaml", GOOD), ("bad.yaml", BAD)]);
    let validate = |config: &str| {
        fs::write(dir.path().join("tidegate.yml"), config).unwrap();
        run_in(dir.path(), &["validate", "--config", "tidegate.yml"])
    };
    assert!(validate("rules: { paths: [a.yaml] }").starts_with("exit 0\n--- stdout\nok: 1 rule in 1 file"));
    let bad_rules = validate("rules: { paths: [bad.yaml] }");
    assert!(bad_rules.starts_with("exit 1") && bad_rules.contains("bad.yaml:4:5"), "{bad_rules}");
    let bad_config = validate("rulse: { paths: [a.yaml] }");
    assert!(bad_config.starts_with("exit 1") && bad_config.contains("tidegate.yml:1:1"), "{bad_config}");
}

#[test]
fn nothing_to_validate_is_a_usage_error() {
    let dir = files(&[]);
    assert!(run_in(dir.path(), &["validate"]).starts_with("exit 2"));
}

#[test]
fn a_warning_fails_only_where_it_is_asked_to() {
    let suspect = GOOD.replace("key:", "match: { method: post }, key:");
    let dir = files(&[("a.yaml", &suspect)]);
    let ran = run_in(dir.path(), &["validate", "a.yaml"]);
    assert!(ran.starts_with("exit 0") && ran.contains("methods are upper case"), "{ran}");
    let ran = run_in(dir.path(), &["validate", "--strict", "a.yaml"]);
    assert!(ran.starts_with("exit 1") && ran.contains("write POST"), "{ran}");
}

#[test]
fn a_file_of_another_kind_is_told_where_it_belongs() {
    let envoy = "{ domain: edge, descriptors: [{ key: path }] }";
    let dir =
        files(&[("rules.yaml", GOOD), ("envoy.yaml", envoy), ("tidegate.yml", "listen: { http: off }")]);
    for (args, hint) in [
        (&["validate", "--config", "rules.yaml"][..], "tidegate validate rules.yaml"),
        (&["serve", "--config", "rules.yaml"], "give it to --rules"),
        (&["validate", "tidegate.yml"], "give it to `--config`"),
        (&["validate", "envoy.yaml"], "`--envoy-config`"),
        (&["serve", "--http", "28080"], "write 127.0.0.1:28080"),
    ] {
        let ran = run_in(dir.path(), args);
        assert!(!ran.starts_with("exit 0") && ran.contains(hint), "{args:?}: {ran}");
    }
}

const READS_USERS: &str = "identity: { jwt: { secret: 0123456789abcdef, claims: { user: sub } } }";

#[test]
fn rules_alone_are_not_warned_of_for_what_callers_send() {
    let dir = files(&[("a.yaml", GOOD), ("tidegate.yml", "rules: { paths: [a.yaml] }")]);
    for args in [&["a.yaml"][..], &["--config", "tidegate.yml"]] {
        let ran = run_in(dir.path(), &[&["validate", "--strict"], args].concat());
        assert!(ran.starts_with("exit 0") && !ran.contains("warning"), "{ran}");
    }
}

#[test]
fn a_key_that_the_proxy_does_not_read_is_warned_of_with_its_place_and_the_line_to_add() {
    let dir = files(&[("a.yaml", GOOD)]);
    for (identity, exit) in [("", "exit 1"), (READS_USERS, "exit 0")] {
        let proxy = "proxy: { listen: 127.0.0.1:0, domain: api, upstreams: [{ name: a, targets: ['http://127.0.0.1:9'] }], routes: [{ path: /, upstream: a }] }";
        fs::write(
            dir.path().join("tidegate.yml"),
            format!("rules: {{ paths: [a.yaml] }}\n{proxy}\n{identity}\n"),
        )
        .unwrap();
        let ran = run_in(dir.path(), &["validate", "--strict", "--config", "tidegate.yml"]);
        assert!(ran.starts_with(exit), "{identity}: {ran}");
        let place =
            "a.yaml:1: rule `per-user` of `api` counts by `user`, which the proxy is not configured to read";
        assert_eq!(ran.contains(place), exit == "exit 1", "{identity}: {ran}");
        assert_eq!(ran.contains("claims: { user: sub }"), exit == "exit 1", "{identity}: {ran}");
    }
}

#[test]
fn where_identity_reads_for_gateways_what_it_leaves_out_is_warned_of_unless_callers_send_it() {
    let dir = files(&[("a.yaml", GOOD)]);
    let reads = "identity: { api_key: { header: x-api-key }";
    for (rest, exit) in [(" }", "exit 1"), (", sent_by_callers: [user] }", "exit 0")] {
        fs::write(dir.path().join("tidegate.yml"), format!("rules: {{ paths: [a.yaml] }}\n{reads}{rest}\n"))
            .unwrap();
        let ran = run_in(dir.path(), &["validate", "--strict", "--config", "tidegate.yml"]);
        assert!(ran.starts_with(exit), "{rest}: {ran}");
        assert_eq!(
            ran.contains("which /v1/auth is not configured to read"),
            exit == "exit 1",
            "{rest}: {ran}"
        );
    }
}

#[test]
fn counters_that_would_start_empty_are_said_beforehand() {
    let other = GOOD.replace("100/minute", "{ algorithm: fixed_window, limit: 200, window: 1m }");
    let kept = GOOD.replace("100/minute", "200/minute");
    let dir = files(&[("old.yaml", GOOD), ("other.yaml", &other), ("kept.yaml", &kept)]);
    let said = run_in(dir.path(), &["validate", "other.yaml", "--against", "old.yaml", "--strict"]);
    for part in [
        "counters of `per-user` start empty: sliding_log 100/1m becomes fixed_window 200/1m",
        "hint: to keep them, write { algorithm: sliding_log, limit: 200, window: 1m }",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!said.contains("ok: "), "strict fails on a warning: {said}");
    let said = run_in(dir.path(), &["validate", "kept.yaml", "--against", "old.yaml", "--strict"]);
    assert!(said.contains("ok: 1 rule in 1 file") && !said.contains("start empty"), "{said}");
}
