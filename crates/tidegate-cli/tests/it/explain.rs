//! `tidegate explain`

use std::fs;

use insta::assert_snapshot;
use tempfile::TempDir;

use crate::run_in;

const RULES: &str = "\
domain: api
rules:
  - { name: per-user, key: [user], limits: [100/minute] }
  - { name: writes, match: { method: [POST, PUT] }, key: [user], limits: [{ algorithm: token_bucket, rate: 5/s, burst: 20 }] }
  - { name: per-tenant, key: [tenant], limits: [1000/minute] }
";

const ENVOY: &str = "\
domain: edge
descriptors:
  - key: path
    value: /login
    descriptors:
      - key: remote_address
        rate_limit: { unit: minute, requests_per_unit: 5 }
";

fn dir() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yaml"), RULES).unwrap();
    fs::create_dir(dir.path().join("envoy")).unwrap();
    fs::write(dir.path().join("envoy/edge.yaml"), ENVOY).unwrap();
    dir
}

#[test]
fn each_rule_says_why_it_counts_or_not() {
    let args = ["explain", "--rules", "rules.yaml", "--domain", "api", "user=42", "method=GET"];
    assert_snapshot!(run_in(dir().path(), &[&args[..], &["--all"]].concat()));
    let ran = run_in(dir().path(), &args);
    assert!(ran.contains("per-user: counts") && !ran.contains("writes"), "{ran}");
    assert!(ran.contains("1 other rule does not match: --all shows why"), "{ran}");
}

#[test]
fn the_rules_that_a_configuration_names_are_explained() {
    let dir = dir();
    fs::write(dir.path().join("tidegate.yml"), "rules: { paths: [rules.yaml] }").unwrap();
    let ran = run_in(dir.path(), &["explain", "--config", "tidegate.yml", "--domain", "api", "user=42"]);
    assert!(ran.starts_with("exit 0") && ran.contains("per-user: counts"), "{ran}");
}

#[test]
fn a_program_gets_the_same_as_json() {
    let args = ["explain", "--rules", "rules.yaml", "--domain", "api", "user=42", "--output", "json"];
    assert_snapshot!(run_in(dir().path(), &args));
}

#[test]
fn an_envoy_configuration_is_explained_as_it_is() {
    let args = [
        "explain",
        "--envoy-config",
        "envoy",
        "--domain",
        "edge",
        "path=/login",
        "remote_address=203.0.113.7",
    ];
    assert_snapshot!(run_in(dir().path(), &args));
}

#[test]
fn an_unknown_domain_names_the_known_ones() {
    assert_snapshot!(run_in(
        dir().path(),
        &["explain", "--rules", "rules.yaml", "--domain", "apo", "user=42"]
    ));
}

#[test]
fn rules_with_a_mistake_are_not_explained() {
    let dir = dir();
    fs::write(dir.path().join("rules.yaml"), "domain: api\nrule: []\n").unwrap();
    let ran = run_in(dir.path(), &["explain", "--rules", "rules.yaml", "--domain", "api"]);
    assert!(ran.starts_with("exit 1") && ran.contains("rules.yaml:2:1"), "{ran}");
}

#[test]
fn an_attribute_without_a_value_is_a_usage_error() {
    assert_snapshot!(run_in(dir().path(), &["explain", "--rules", "rules.yaml", "--domain", "api", "user"]));
}
