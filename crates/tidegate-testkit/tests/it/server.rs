//! Running `tidegate serve`: here with a script in its place, since the binary's crate builds on this one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tidegate_testkit::{TidegateServer, eventually};

const SOON: Duration = Duration::from_secs(10);

/// Prints what the binary promises to print, a little later for each line, and obeys its signals. A shell cannot trap a signal
/// that was ignored when it started, as SIGHUP is under `nohup`: so `env` first restores the defaults.
const STAND_IN: &str = r#"#!/usr/bin/env -S --default-signal=HUP,TERM sh
trap 'echo drained >&2; exit 0' TERM
trap 'echo reloaded >&2' HUP
echo "started with $*" >&2
printf 'listening http 127.0.0.1:'; sleep 0.05; echo 1080
sleep 0.05; echo 'listening grpc 127.0.0.1:1081'
while true; do sleep 0.02; done
"#;

fn stand_in(script: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tidegate");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    (dir, path)
}

#[test]
fn listeners_are_read_from_what_the_server_prints() {
    let (_dir, binary) = stand_in(STAND_IN);
    let mut server = TidegateServer::start(binary, &["--http", "127.0.0.1:0"]);
    assert_eq!(server.addr("grpc"), ([127, 0, 0, 1], 1081).into());
    assert_eq!(server.addr("http"), ([127, 0, 0, 1], 1080).into());
    assert!(server.stderr().contains("started with serve --http 127.0.0.1:0\n"), "{}", server.stderr());
}

#[test]
fn a_server_reloads_and_drains_on_its_signals() {
    let (_dir, binary) = stand_in(STAND_IN);
    let mut server = TidegateServer::start(binary, &[]);
    server.reload();
    eventually("it reloads", SOON, || server.stderr().contains("reloaded\n"));
    assert!(server.terminate().success());
    assert!(server.stderr().ends_with("drained\n"), "{}", server.stderr());
}

#[test]
fn a_restarted_server_is_another_process_with_the_same_arguments() {
    let (_dir, binary) = stand_in(STAND_IN);
    let mut server = TidegateServer::start(binary, &["--store", "memory:"]);
    let first = server.process().pid();
    server.restart();
    assert_ne!(server.process().pid(), first);
    let stderr = server.stderr();
    assert_eq!(stderr.matches("started with serve --store memory:").count(), 1, "{stderr}");
}

#[test]
#[should_panic(expected = "error: no such rules file")]
fn a_server_that_refuses_to_start_shows_why() {
    let (_dir, binary) = stand_in("#!/bin/sh\necho 'error: no such rules file' >&2; exit 1\n");
    let _ = TidegateServer::start(binary, &[]);
}
