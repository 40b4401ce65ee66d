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
fn nothing_to_validate_is_a_usage_error() {
    let dir = files(&[]);
    assert!(run_in(dir.path(), &["validate"]).starts_with("exit 2"));
}
