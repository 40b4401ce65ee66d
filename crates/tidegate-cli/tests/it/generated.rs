//! What is made from the command line's own description.

use std::fs;

use crate::{run, tidegate};

#[test]
fn every_shell_gets_a_script_that_names_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]);
        assert!(script.starts_with("exit 0"), "{shell}: {script}");
        assert!(script.contains("validate"), "{shell}: {script}");
    }
}

#[test]
fn the_bash_script_is_valid_bash() {
    let script = tidegate(&["completions", "bash"]).output().unwrap().stdout;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), script).unwrap();
    let checked = std::process::Command::new("bash").arg("-n").arg(file.path()).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn the_manual_is_roff() {
    let page = run(&["man"]);
    assert!(page.contains(".TH tidegate 1"), "{page}");
    assert!(page.contains(".SH SUBCOMMANDS"), "{page}");
}

#[test]
fn every_command_has_a_page_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    let ran = run(&["man", "--dir", pages.to_str().unwrap()]);
    assert_eq!(ran, "exit 0\n--- stdout\n--- stderr\n");
    for page in ["tidegate.1", "tidegate-check.1", "tidegate-bench.1"] {
        assert!(fs::read_to_string(pages.join(page)).unwrap().contains(".SH NAME"), "{page}");
    }
}

#[test]
fn a_directory_that_cannot_be_made_is_an_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let ran = run(&["man", "--dir", file.path().to_str().unwrap()]);
    assert!(ran.starts_with("exit 1") && ran.contains("hint: "), "{ran}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let tidegate = env!("CARGO_BIN_EXE_tidegate");
    let pipeline = format!("set -o pipefail; '{tidegate}' completions bash | true; echo $?");
    let ran = std::process::Command::new("bash").args(["-c", &pipeline]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout).trim(), "0", "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn the_schemas_are_json_and_know_our_fields() {
    for (of, field) in [("rules", "domain"), ("config", "listen")] {
        let output = tidegate(&["schema", of]).output().unwrap();
        let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(schema.to_string().contains(&format!("\"{field}\"")), "{schema:#}");
        assert!(schema["$schema"].is_string(), "{schema:#}");
    }
}
