//! A child process that cannot outlive its test.
//!
//! Dropping the handle kills the child and what it forked. Should the test process itself be killed, the kernel kills
//! the child (`PR_SET_PDEATHSIG`, set by `setpriv` because calling it from here would take `unsafe`). The kernel ties
//! that to the *thread* that spawned, and a test's thread ends with the test while a shared server lives on, so one
//! thread that never ends spawns them all.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, kill_process, kill_process_group};

use crate::clock::poll;

pub use rustix::process::Signal;

const SETPRIV: &str = "/usr/bin/setpriv";
const EXEC_PATIENCE: Duration = Duration::from_secs(5);

/// A running child and its log.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    dir: PathBuf,
}

impl Process {
    /// Starts `command` with its output going to `NAME.stdout` and `NAME.stderr` in `dir`.
    ///
    /// The child leads a process group of its own, so that what it forks can be killed with it.
    ///
    /// # Panics
    /// When no process can be started. A program that does not exist is told by [`Process::ready`].
    #[must_use]
    pub fn spawn(name: &str, command: &Command, dir: &Path) -> Self {
        Self::spawn_bound(Bond::Killed, name, command, dir)
    }

    /// Like [`Process::spawn`], with a choice of what the kernel does to the child if we die first.
    pub(crate) fn spawn_bound(bond: Bond, name: &str, command: &Command, dir: &Path) -> Self {
        let mut guarded = guarded(command, bond);
        guarded.process_group(0).stdin(Stdio::null());
        guarded.stdout(log_file(dir, name, "stdout")).stderr(log_file(dir, name, "stderr"));
        let child = spawn_from_lasting_thread(guarded);
        let child = child.unwrap_or_else(|error| panic!("cannot start {:?}: {error}", command.get_program()));
        let process = Self { name: name.to_owned(), child, dir: dir.to_owned() };
        // Until `setpriv` has become the program, a signal would hit the wrong one and our death would go unnoticed.
        let exe = format!("/proc/{}/exe", process.pid());
        poll(EXEC_PATIENCE, || {
            fs::read_link(&exe).map_or(true, |exe| exe != Path::new(SETPRIV)).then_some(())
        });
        process
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not exited; a stopped process is running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends `signal` to the child alone.
    ///
    /// # Panics
    /// When the child has exited: a test that signals a dead server tests nothing.
    #[track_caller]
    pub fn signal(&mut self, signal: Signal) {
        assert!(self.is_running(), "{} has exited, so it cannot get {signal:?}{}", self.name, self.logs());
        kill_process(self.raw_pid(), signal).expect("a child of ours may be signalled");
    }

    /// Stops the child (SIGSTOP), and returns when it stands still.
    #[track_caller]
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
        let stopped = poll(Duration::from_secs(5), || (self.state() == Some('T')).then_some(()));
        assert!(stopped.is_some(), "{} does not stop", self.name);
    }

    /// Lets a stopped child go on (SIGCONT).
    #[track_caller]
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Kills the child and what it forked (SIGKILL), and returns when it is gone.
    pub fn kill(&mut self) {
        // An exited child's number may belong to somebody else by now.
        if self.is_running() {
            let _ = kill_process_group(self.raw_pid(), Signal::KILL);
        }
        let _ = self.child.wait();
    }

    /// Asks the child to end (SIGTERM), and returns how it did.
    ///
    /// # Panics
    /// When it has not ended after `within`.
    #[track_caller]
    pub fn terminate(&mut self, within: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        match self.wait_exit(within) {
            Some(status) => status,
            None => panic!("{} is still running {within:?} after SIGTERM{}", self.name, self.logs()),
        }
    }

    /// How it exited, if it does within the time.
    pub fn wait_exit(&mut self, within: Duration) -> Option<ExitStatus> {
        poll(within, || self.child.try_wait().expect("a child can be waited for"))
    }

    /// What it wrote to stdout so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.log("stdout")
    }

    /// What it wrote to stderr so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.log("stderr")
    }

    /// Tries until `attempt` gives something.
    ///
    /// # Errors
    /// When the child exits first, or the time is over; the failure holds the end of its log.
    pub fn ready<T>(
        &mut self,
        within: Duration,
        mut attempt: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T, StartFailure> {
        let outcome = poll(within, || match attempt(self) {
            Some(value) => Some(Ok(value)),
            None if self.is_running() => None,
            None => Some(Err(())),
        });
        let reason = match outcome {
            Some(Ok(value)) => return Ok(value),
            Some(Err(())) => "exited at once".to_owned(),
            None => format!("does not answer after {within:?}"),
        };
        Err(StartFailure { message: format!("{} {reason}{}", self.name, self.logs()) })
    }

    fn raw_pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The kernel's letter for what the child is doing.
    fn state(&self) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?;
        // The second field is the program's name in brackets, and may itself hold brackets.
        stat.rsplit_once(") ")?.1.chars().next()
    }

    fn log(&self, stream: &str) -> String {
        let bytes = fs::read(log_path(&self.dir, &self.name, stream)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn logs(&self) -> String {
        let tail = |text: String| {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        format!("\n--- stdout\n{}\n--- stderr\n{}", tail(self.stdout()), tail(self.stderr()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What happens to a child when the test process dies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bond {
    /// SIGKILL, which even a stopped child obeys.
    Killed,
    /// SIGTERM, for a child that must take its own children along.
    Asked,
}

/// A server that did not start, with the end of its log.
#[derive(Debug)]
pub struct StartFailure {
    message: String,
}

impl StartFailure {
    fn is_about_a_taken_port(&self) -> bool {
        self.message.to_lowercase().contains("address already in use")
    }
}

impl fmt::Display for StartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StartFailure {}

/// Starts a server, on other ports if a stranger took the first ones.
#[track_caller]
pub(crate) fn start_on_free_ports<T>(mut start: impl FnMut() -> Result<T, StartFailure>) -> T {
    for _ in 0..3 {
        match start() {
            Ok(server) => return server,
            Err(failure) if failure.is_about_a_taken_port() => {}
            Err(failure) => panic!("{failure}"),
        }
    }
    start().unwrap_or_else(|failure| panic!("{failure}"))
}

/// `command`, to be signalled by the kernel when we die. A machine without `setpriv` loses only this guard.
fn guarded(command: &Command, bond: Bond) -> Command {
    let mut guarded = if Path::new(SETPRIV).is_file() {
        let signal = match bond {
            Bond::Killed => "KILL",
            Bond::Asked => "TERM",
        };
        let mut wrapper = Command::new(SETPRIV);
        wrapper.args(["--pdeathsig", signal]).arg(command.get_program());
        wrapper
    } else {
        Command::new(command.get_program())
    };
    guarded.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => guarded.env(name, value),
            None => guarded.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        guarded.current_dir(dir);
    }
    guarded
}

fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    type Job = (Command, Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, queue) = mpsc::channel::<Job>();
        thread::spawn(move || {
            for (mut command, reply) in queue {
                let _ = reply.send(command.spawn());
            }
        });
        jobs
    });
    let (reply, answer) = mpsc::channel();
    spawner.send((command, reply)).expect("the spawning thread never ends");
    answer.recv().expect("the spawning thread answers every job")
}

fn log_path(dir: &Path, name: &str, stream: &str) -> PathBuf {
    dir.join(format!("{name}.{stream}"))
}

fn log_file(dir: &Path, name: &str, stream: &str) -> File {
    let path = log_path(dir, name, stream);
    let file = File::options().create(true).append(true).open(&path);
    file.unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(message: &str) -> StartFailure {
        StartFailure { message: message.to_owned() }
    }

    #[test]
    fn a_server_whose_port_was_taken_is_started_again() {
        let mut tries = 0;
        let started = start_on_free_ports(|| {
            tries += 1;
            if tries < 3 { Err(failure("redis exited: bind: Address already in use")) } else { Ok(tries) }
        });
        assert_eq!(started, 3);
    }

    #[test]
    fn a_server_that_fails_otherwise_is_not_started_again() {
        let mut tries = 0;
        let attempt = std::panic::AssertUnwindSafe(|| {
            start_on_free_ports(|| -> Result<(), _> {
                tries += 1;
                Err(failure("redis exited: bad configuration"))
            });
        });
        std::panic::catch_unwind(attempt).expect_err("there is nothing to return");
        assert_eq!(tries, 1);
    }
}
