//! Third-party clients.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tidegate_access::SecretDigest;
use tidegate_server::resp::{RespSettings, Users};
use tidegate_testkit::{find_node_package, find_python_with, find_tool};

use super::world::{World, ask};

fn redis_cli(world: &World, arguments: &[&str]) -> Command {
    let mut command = Command::new(find_tool("redis-cli"));
    command.args(["-h", "127.0.0.1", "-p", &world.addr.port().to_string()]).args(arguments);
    command
}

/// What `command` prints, given `input` on stdin.
#[track_caller]
fn printed(command: &mut Command, input: &str) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/resp/clients").join(name)
}

/// The default user with this password; no users without one.
fn users(secret: &str) -> Users {
    match secret {
        "" => Users::default(),
        secret => Users::default().with("default", vec![SecretDigest::of(secret.as_bytes())]),
    }
}

/// Runs a script that checks all answers itself, without a password and with one.
#[track_caller]
fn check_script(program: &Path, first: &[&OsStr]) {
    for secret in ["", "s3cret"] {
        let world = World::with_settings(RespSettings { users: users(secret), ..RespSettings::default() });
        let mut command = Command::new(program);
        command.args(first).args(["127.0.0.1", &world.addr.port().to_string(), secret]);
        assert_eq!(printed(&mut command, ""), "all answers are right\n");
    }
}

#[test]
fn redis_cli_shows_what_redis_cell_would_answer() {
    let world = World::new();
    let throttle = ["--no-raw", "CL.THROTTLE", "user123", "15", "30", "60"];
    let shown = printed(&mut redis_cli(&world, &throttle), "");
    assert_eq!(shown, "1) (integer) 0\n2) (integer) 16\n3) (integer) 15\n4) (integer) -1\n5) (integer) 2\n");
    let typed = "CL.THROTTLE k 0 1 60\nCL.THROTTLE k 0 1 60\nGET k\nPING \"a b\"\n";
    let shown = printed(&mut redis_cli(&world, &[]), typed);
    let error = "ERR unknown command 'GET', COMMAND LIST names the known ones";
    assert_eq!(shown, format!("0\n1\n0\n-1\n60\n1\n1\n0\n60\n60\n{error}\n\na b\n"));
}

#[test]
fn redis_cli_speaks_the_newer_version_and_gives_a_password() {
    let settings = RespSettings { users: users("s3cret"), ..RespSettings::default() };
    let world = World::with_settings(settings);
    let quiet = ["-3", "--no-auth-warning", "-a", "s3cret", "--json", "HELLO"];
    let shown = printed(&mut redis_cli(&world, &quiet), "");
    assert!(shown.contains(r#""server":"tidegate""#) && shown.contains(r#""proto":3"#), "{shown}");
}

#[test]
fn redis_cli_pipes_thousands_of_commands() {
    let world = World::new();
    let commands = "CL.THROTTLE k 99 1 3600\r\n".repeat(5_000);
    let shown = printed(&mut redis_cli(&world, &["--pipe"]), &commands);
    assert!(shown.contains("errors: 0, replies: 5000"), "{shown}");
}

#[test]
fn redis_benchmark_runs_to_its_end_without_an_error() {
    let world = World::new();
    for pipeline in ["1", "16", "64"] {
        let mut command = Command::new(find_tool("redis-benchmark"));
        command.args(["-h", "127.0.0.1", "-p", &world.addr.port().to_string()]);
        command.args(["-n", "6400", "-c", "20", "-P", pipeline, "-r", "1000", "-q"]);
        command.args(["CL.THROTTLE", "key:__rand_int__", "15", "30", "60"]);
        let shown = printed(&mut command, "");
        assert!(shown.contains("requests per second"), "{shown}");
    }
    let stats = ask(&mut world.client(), "INFO stats").text();
    let counted = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:")).unwrap();
    assert!(counted.parse::<u64>().unwrap() >= 3 * 6_400, "{stats}");
}

#[test]
fn redis_py_gets_the_right_answers() {
    check_script(&find_python_with("redis-py"), &[script("redis_py.py").as_os_str()]);
}

#[test]
fn ioredis_gets_the_right_answers() {
    let folder = find_node_package("ioredis");
    check_script(&find_tool("node"), &[script("ioredis.js").as_os_str(), folder.as_os_str()]);
}
