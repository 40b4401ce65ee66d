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
    assert!(ran.starts_with("exit 0") && ran.contains("methods are in capitals"), "{ran}");
    let ran = run_in(dir.path(), &["validate", "--strict", "a.yaml"]);
    assert!(ran.starts_with("exit 1") && ran.contains("write POST"), "{ran}");
}

#[test]
fn a_file_of_another_kind_is_told_where_it_belongs() {
    let envoy = "{ domain: edge, descriptors: [{ key: path }] }";
    let dir =
        files(&[("rules.yaml", GOOD), ("envoy.yaml", envoy), ("tidegate.yml", "listen: { http: off }")]);
    for (args, hint) in [
        (&["validate", "--config", "rules.yaml"][..], "give it to --rules"),
        (&["validate", "tidegate.yml"], "give it to `--config`"),
        (&["validate", "envoy.yaml"], "`--envoy-config`"),
        (&["serve", "--http", "28080"], "write 127.0.0.1:28080"),
    ] {
        let ran = run_in(dir.path(), args);
        assert!(!ran.starts_with("exit 0") && ran.contains(hint), "{args:?}: {ran}");
    }
}

const READS_USERS: &str = "identity: { jwt: { secret: 0123456789abcdef, claims: { user: sub } } }";
const SAYS_IT_IS_SENT: &str = "identity: { sent_by_callers: [user] }";

#[test]
fn a_key_that_nothing_reads_is_warned_of_with_its_place_and_the_line_to_add() {
    let dir = files(&[("a.yaml", GOOD)]);
    let ran = run_in(dir.path(), &["validate", "a.yaml"]);
    assert!(ran.starts_with("exit 0"), "{ran}");
    assert_eq!(ran.matches("a.yaml:1: rule `per-user` of `api` counts by `user`").count(), 1, "{ran}");
    assert!(ran.contains("claims: { user: sub }") && ran.contains("send `user` in /v1/check"), "{ran}");
    let json = run_in(dir.path(), &["validate", "a.yaml", "--output", "json"]);
    assert!(json.contains(r#""file": "a.yaml""#) && json.contains(r#""line": 1"#), "{json}");
}

#[test]
fn strict_fails_on_a_key_that_nothing_reads_where_a_configuration_could_say_who_does() {
    let dir = files(&[("a.yaml", GOOD)]);
    let ran = run_in(dir.path(), &["validate", "--strict", "a.yaml"]);
    assert!(ran.starts_with("exit 0") && ran.contains("warning: a.yaml:1"), "rules alone cannot tell: {ran}");
    for (identity, exit) in [("", "exit 1"), (READS_USERS, "exit 0"), (SAYS_IT_IS_SENT, "exit 0")] {
        fs::write(dir.path().join("tidegate.yml"), format!("rules: {{ paths: [a.yaml] }}\n{identity}\n"))
            .unwrap();
        let ran = run_in(dir.path(), &["validate", "--strict", "--config", "tidegate.yml"]);
        assert!(ran.starts_with(exit), "{identity}: {ran}");
        assert_eq!(ran.contains("counts by `user`"), exit == "exit 1", "{identity}: {ran}");
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
