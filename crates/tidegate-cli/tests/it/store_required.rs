//! A store that cannot be used: whether the server starts, and what it says; with a real Redis that wants a password.

use std::process::Output;

use tidegate_testkit::{Redis, eventually};

use crate::access::{FREE, PATIENCE, serve};
use crate::{ran, tidegate};

const RIGHT: &str = "the-right-password";
const WRONG: &str = "hunter2-is-wrong";

fn redis() -> Redis {
    Redis::builder().user("limiter", RIGHT, "~* &* +@all").start()
}

/// Starts a server that must have this store, with a password from the environment.
fn start_with(url: &str, password: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let args = [&["serve", "--store", url][..], &FREE].concat();
    let mut command = tidegate(&args);
    command.env("TIDEGATE_STORE__REQUIRED", "true").env("TIDEGATE_STORE__PASSWORD", password);
    command.current_dir(dir.path()).output().unwrap()
}

#[test]
fn a_store_that_is_required_and_cannot_be_used_fails_the_start_without_its_password() {
    let redis = redis();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let unknown = "no-such-host.invalid:6379";
    for (what, at, because) in [
        ("a wrong password", redis.addr().to_string(), "Password authentication failed"),
        ("an unknown host", unknown.to_owned(), "lookup"),
        ("a port where nothing listens", free.to_string(), "refused"),
    ] {
        let told = ran(&start_with(&format!("redis://limiter@{at}"), WRONG));
        assert!(told.contains("exit 1"), "{what}: {told}");
        assert!(told.contains(&format!("the store redis://{at}/0 cannot be used")), "{what}: {told}");
        assert!(told.contains(because), "{what}: {told}");
        assert!(told.contains("store.required"), "{what} has a way out: {told}");
        assert!(!told.contains(WRONG), "{what}: {told}");
    }
}

#[test]
fn a_store_that_is_required_and_can_be_used_is_no_reason_not_to_start() {
    let (dir, redis) = (tempfile::tempdir().unwrap(), redis());
    let config = format!("store: {{ url: 'redis://limiter@{}', required: true }}", redis.addr());
    let server = serve(dir.path(), &config, &[("TIDEGATE_STORE__PASSWORD", RIGHT)]);
    eventually("it says which store it uses", PATIENCE, || {
        server.stderr().contains(&format!("store=\"redis://{}/0\"", redis.addr()))
    });
}

#[test]
fn a_store_that_is_not_required_and_cannot_be_used_is_told_of_in_one_line() {
    let redis = redis();
    for (at, because) in [
        (redis.addr().to_string(), "Password authentication failed"),
        ("no-such-host.invalid:6379".to_owned(), "lookup"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        // Without a secret, another line would speak of the store.
        let config =
            format!("store: {{ url: 'redis://limiter@{at}', fleet_secret: 'a secret of this fleet alone' }}");
        let mut server = serve(dir.path(), &config, &[("TIDEGATE_STORE__PASSWORD", WRONG)]);
        eventually("it says so", PATIENCE, || {
            server.stderr().contains("rules decide by their failure policy")
        });
        // After a whole stop there is nothing more to come.
        assert!(server.terminate().success());
        let log = server.stderr();
        let is_about =
            |line: &&str| (line.contains(" WARN ") || line.contains(" ERROR ")) && line.contains("store");
        let about: Vec<&str> = log.lines().filter(is_about).collect();
        assert_eq!(about.len(), 1, "{log}");
        assert!(about[0].contains(&at) && about[0].contains(because), "{log}");
        assert!(!log.contains(WRONG), "{log}");
    }
}

#[test]
fn a_password_on_the_command_line_is_warned_of_with_the_way_out() {
    let redis = redis();
    let url = format!("redis://limiter:{RIGHT}@{}", redis.addr());
    let args = [&["--store", &url][..], &FREE].concat();
    let server = tidegate_testkit::TidegateServer::start(crate::access::BINARY, &args);
    let log = server.stderr();
    assert!(log.contains("`ps` shows") && log.contains("TIDEGATE_STORE__PASSWORD_FILE"), "{log}");
    assert!(!log.contains(RIGHT), "{log}");
    let without = format!("redis://limiter@{}", redis.addr());
    let args = [&["--store", &without][..], &FREE].concat();
    let env = [("TIDEGATE_STORE__PASSWORD", RIGHT), ("TIDEGATE_DRAIN__DELAY", "0s")];
    let server = tidegate_testkit::TidegateServer::start_with_env(crate::access::BINARY, &args, &env);
    assert!(!server.stderr().contains("`ps` shows"), "{}", server.stderr());
}
