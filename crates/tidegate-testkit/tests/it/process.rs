//! Children die with their handle, with a panic, and with the test process.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::panic;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tidegate_testkit::{Process, eventually};

/// Where the helper below may write; it cannot clean up after itself.
const HELPER_DIR: &str = "TIDEGATE_TESTKIT_HELPER_DIR";
const SOON: Duration = Duration::from_secs(10);

fn sleeper(dir: &Path) -> Process {
    let mut command = Command::new("sleep");
    command.arg("600");
    Process::spawn("sleeper", &command, dir)
}

/// Whether it runs or stands still; an orphan that nobody has buried yet is dead.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[test]
fn a_dropped_child_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let child = sleeper(dir.path());
    let pid = child.pid();
    assert!(is_alive(pid));
    drop(child);
    assert!(!is_alive(pid));
}

#[test]
fn a_child_and_what_it_forked_die_when_the_test_panics() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let grandchild = panic::catch_unwind(move || {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]);
        let mut shell = Process::spawn("shell", &command, &path);
        let pid: u32 = shell.ready(SOON, |shell| shell.stdout().trim().parse().ok()).unwrap();
        panic::panic_any(pid);
    });
    let pid = *grandchild.unwrap_err().downcast::<u32>().unwrap();
    eventually("the grandchild is gone", SOON, || !is_alive(pid));
}

#[test]
fn a_paused_child_stands_still_until_it_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "while true; do echo tick; sleep 0.01; done"]);
    let mut child = Process::spawn("ticker", &command, dir.path());
    child.ready(SOON, |child| child.stdout().contains("tick").then_some(())).unwrap();
    child.pause();
    let at_pause = child.stdout();
    let went_on =
        tidegate_testkit::poll(Duration::from_millis(200), || (child.stdout() != at_pause).then_some(()));
    assert_eq!(went_on, None);
    child.resume();
    eventually("it ticks again", SOON, || child.stdout() != at_pause);
}

#[test]
fn a_child_that_exits_at_once_is_reported_with_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "echo bad configuration >&2; exit 3"]);
    let mut child = Process::spawn("broken", &command, dir.path());
    let failure = child.ready(SOON, |_| None::<()>).unwrap_err().to_string();
    assert!(failure.contains("broken exited at once"), "{failure}");
    assert!(failure.contains("bad configuration"), "{failure}");
}

#[test]
fn a_program_that_does_not_exist_is_reported_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Process::spawn("nobody", &Command::new("/no/such/program"), dir.path());
    let failure = child.ready(SOON, |_| None::<()>).unwrap_err().to_string();
    assert!(failure.contains("/no/such/program"), "{failure}");
}

/// Not a test of its own: the process that the next test kills.
#[test]
#[ignore = "run by a_child_dies_with_a_killed_test_process"]
fn helper_that_starts_a_child_and_waits() {
    // Spawned by a thread that ends, as a test's thread does while a shared server lives on.
    let path = PathBuf::from(env::var_os(HELPER_DIR).unwrap());
    let mut child = std::thread::spawn(move || sleeper(&path)).join().unwrap();
    println!("\nchild {}", child.pid());
    child.wait_exit(Duration::from_secs(60));
}

#[test]
fn a_child_dies_with_a_killed_test_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut helper = Command::new(env::current_exe().unwrap())
        .env(HELPER_DIR, dir.path())
        .args(["--exact", "process::helper_that_starts_a_child_and_waits", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(helper.stdout.take().unwrap()).lines();
    let pid =
        lines.find_map(|line| line.unwrap().strip_prefix("child ").map(|pid| pid.parse::<u32>().unwrap()));
    let pid = pid.expect("the helper names its child");
    assert!(is_alive(pid));
    helper.kill().unwrap();
    helper.wait().unwrap();
    eventually("the helper's child is gone", SOON, || !is_alive(pid));
}
