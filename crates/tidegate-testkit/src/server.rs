//! The built `tidegate` binary, running `tidegate serve`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use tempfile::TempDir;

use crate::process::{Process, Signal};

const START_PATIENCE: Duration = Duration::from_secs(20);

/// A server process, gone when dropped.
#[derive(Debug)]
pub struct TidegateServer {
    process: Process,
    binary: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    /// How often it was started: each run has a log of its own.
    runs: u32,
    dir: TempDir,
}

impl TidegateServer {
    /// Starts `binary serve args…`, and returns when it printed the first address on which it listens.
    ///
    /// In the binary's own tests, `binary` is `env!("CARGO_BIN_EXE_tidegate")`. Give addresses with port 0, or a
    /// reserved [`Port`](crate::Port) where [`TidegateServer::restart`] must come back to the same place.
    ///
    /// # Panics
    /// When it prints none; the message holds its log.
    #[must_use]
    #[track_caller]
    pub fn start(binary: impl AsRef<Path>, args: &[&str]) -> Self {
        // A stop is for nobody's load balancer here.
        Self::start_with_env(binary, args, &[("TIDEGATE_DRAIN__DELAY", "0s")])
    }

    /// The same with these variables in its environment.
    ///
    /// # Panics
    /// When it prints no address; the message holds its log.
    #[must_use]
    #[track_caller]
    pub fn start_with_env(binary: impl AsRef<Path>, args: &[&str], env: &[(&str, &str)]) -> Self {
        let dir = tempfile::Builder::new().prefix("tidegate-server-").tempdir().expect("a temporary folder");
        let binary = binary.as_ref().to_owned();
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let env: Vec<_> = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let process = spawn(&binary, &args, &env, 1, dir.path());
        let mut server = Self { process, binary, args, env, runs: 1, dir };
        server.wait_ready();
        server
    }

    /// Where it listens for `what`: `http`, `grpc`, `admin` or `resp`.
    ///
    /// # Panics
    /// When it does not say so in time; the message holds its log.
    #[track_caller]
    pub fn addr(&mut self, what: &str) -> SocketAddr {
        let said = self.process.ready(START_PATIENCE, |process| listening(&process.stdout(), what));
        said.unwrap_or_else(|failure| panic!("no line `listening {what} …`: {failure}"))
    }

    /// Asks it to drain and end (SIGTERM), and returns how it did.
    #[track_caller]
    pub fn terminate(&mut self) -> ExitStatus {
        self.process.terminate(Duration::from_secs(20))
    }

    /// Asks it to read its rules again (SIGHUP).
    #[track_caller]
    pub fn reload(&mut self) {
        self.process.signal(Signal::HUP);
    }

    /// Kills it if it still runs, and starts it again with the same arguments.
    #[track_caller]
    pub fn restart(&mut self) {
        self.process.kill();
        self.runs += 1;
        self.process = spawn(&self.binary, &self.args, &self.env, self.runs, self.dir.path());
        self.wait_ready();
    }

    /// The directory of its embedded database.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// What it wrote to stdout since it was last started.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.process.stdout()
    }

    /// What it wrote to stderr since it was last started.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// The process itself, for other signals.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    #[track_caller]
    fn wait_ready(&mut self) {
        let first = |process: &Process| process.stdout().contains("listening ").then_some(());
        self.process.ready(START_PATIENCE, first).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

fn spawn(binary: &Path, args: &[String], env: &[(String, String)], run: u32, dir: &Path) -> Process {
    let mut command = Command::new(binary);
    command
        .env("TIDEGATE_DATA", dir.join("data"))
        // An emulator takes any key; that of whoever runs the tests must not reach it.
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        .arg("serve")
        .args(args)
        .envs(env.iter().map(|(name, value)| (name, value)));
    Process::spawn(&format!("tidegate-{run}"), &command, dir)
}

/// The address in a whole line `listening WHAT ADDRESS`.
fn listening(stdout: &str, what: &str) -> Option<SocketAddr> {
    // The last line may still be half written.
    let (whole, _) = stdout.rsplit_once('\n')?;
    whole.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let matches = words.next() == Some("listening") && words.next() == Some(what);
        words.next().filter(|_| matches)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_counts_only_once_its_line_is_whole() {
        let whole = "tidegate 0.1.0\nlistening http 127.0.0.1:8080\nlistening grpc 127.0.0.1:8081\n";
        assert_eq!(listening(whole, "grpc"), Some(([127, 0, 0, 1], 8081).into()));
        assert_eq!(listening("listening http 127.0.0.1:80", "http"), None);
        assert_eq!(listening(whole, "resp"), None);
    }
}
