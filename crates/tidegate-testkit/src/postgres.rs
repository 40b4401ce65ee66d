//! A real PostgreSQL with an empty data directory of its own.
//!
//! It refuses to run as root, so where a test does, the server runs as the user that Debian's package makes for it.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, kill_process};
use tempfile::TempDir;

use crate::clock::eventually;
use crate::port::Port;
use crate::process::{Process, Signal, StartFailure, start_on_free_ports};
use crate::tls::Certificates;
use crate::tool::find_tool;

const START_PATIENCE: Duration = Duration::from_secs(60);
const READY: &str = "database system is ready to accept connections";
/// Debian's user for the server.
const USER: &str = "postgres";

/// A PostgreSQL server, gone when dropped.
#[derive(Debug)]
pub struct Postgres {
    process: Process,
    port: Port,
    databases: AtomicU32,
    dir: TempDir,
}

impl Postgres {
    /// Starts a server, and returns when it takes connections.
    ///
    /// # Panics
    /// When it is not installed, or does not start; the message holds its log.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        start_on_free_ports(Self::try_start)
    }

    /// One server for all tests of a process: making its files takes a second or two. Give each test its own database.
    pub fn shared() -> &'static Postgres {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(Postgres::start)
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The URL of a new, empty database.
    ///
    /// # Panics
    /// When the server does not make it.
    #[must_use]
    pub fn new_database(&self) -> String {
        self.new_database_at(self.addr())
    }

    /// The same, with the server reached through `address`: a proxy.
    ///
    /// # Panics
    /// When the server does not make it.
    #[must_use]
    pub fn new_database_at(&self, address: SocketAddr) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let port = self.addr().port().to_string();
        let made = Command::new(beside_server("createdb"))
            .args(["-h", "127.0.0.1", "-p", &port, "-U", USER, &name])
            .output()
            .expect("createdb runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        format!("postgres://{USER}@{address}/{name}")
    }

    /// The process itself, for signals and for its log.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Stops the server and what it forked (SIGSTOP): connections stay open, and nothing answers.
    pub fn pause(&mut self) {
        self.process.pause();
        self.signal_sessions(Signal::STOP);
    }

    /// Lets them go on.
    pub fn resume(&mut self) {
        self.signal_sessions(Signal::CONT);
        self.process.resume();
    }

    /// Its children are groups of their own.
    fn signal_sessions(&self, signal: Signal) {
        self.children().into_iter().for_each(|child| signal_child(child, signal));
    }

    fn children(&self) -> Vec<i32> {
        let pid = self.process.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("it runs");
        children.split_whitespace().filter_map(|child| child.parse().ok()).collect()
    }

    /// Encrypts connections that ask for it.
    ///
    /// # Panics
    /// When it does not take the certificate.
    pub fn encrypt(&self, url: &str, certificates: &Certificates) {
        for (from, to) in [(&certificates.cert, "server.crt"), (&certificates.key, "server.key")] {
            let to = data(&self.dir).join(to);
            fs::copy(from, &to).expect("its folder can be written to");
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).expect("the file is ours");
            if let Some((user, group)) = other_user() {
                chown(&to, Some(user), Some(group)).expect("root may give a file away");
            }
        }
        self.run(url, "ALTER SYSTEM SET ssl = on");
        self.run(url, "SELECT pg_reload_conf()");
        eventually("it encrypts", START_PATIENCE, || self.query(url, "SHOW ssl").trim() == "on");
    }

    /// Runs statements in the database at `url`, as nobody's node.
    ///
    /// # Panics
    /// When it does not take them.
    pub fn run(&self, url: &str, statements: &str) {
        let done = Command::new(beside_server("psql"))
            .args([url, "-v", "ON_ERROR_STOP=1", "-c", statements])
            .output();
        let done = done.expect("psql runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// The answer to a query in the database at `url`: a line per row, its fields between bars.
    ///
    /// # Panics
    /// When it does not take it.
    #[must_use]
    pub fn query(&self, url: &str, query: &str) -> String {
        let done =
            Command::new(beside_server("psql")).args([url, "-v", "ON_ERROR_STOP=1", "-Atc", query]).output();
        let done = done.expect("psql runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// What pgbench says of TPC-B-like transactions by eight clients in the database at `url`.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn pgbench(&self, url: &str, lasts: Duration) -> String {
        let run = |words: &[&str]| {
            let done =
                Command::new(beside_server("pgbench")).args(words).arg(url).output().expect("pgbench runs");
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            String::from_utf8_lossy(&done.stdout).into_owned()
        };
        run(&["--initialize", "--quiet"]);
        let told = run(&["--client=8", "--jobs=2", &format!("--time={}", lasts.as_secs())]);
        let rate = told.lines().find(|line| line.starts_with("tps"));
        rate.unwrap_or_else(|| panic!("no rate in {told}")).to_owned()
    }

    /// Kills the server (SIGKILL) and what it forked.
    ///
    /// # Panics
    /// When its children are still there after a minute.
    pub fn kill(&mut self) {
        let children = self.children();
        self.process.kill();
        children.iter().for_each(|child| signal_child(*child, Signal::KILL));
        // As long as one lives it holds the shared memory, and the next server refuses to start.
        eventually("its children have ended", START_PATIENCE, || {
            let lives =
                |child: &i32| fs::read(format!("/proc/{child}/maps")).is_ok_and(|maps| !maps.is_empty());
            !children.iter().any(lives)
        });
        // It finds this, and its own number taken by somebody else, too often on a busy machine.
        let _ = fs::remove_file(data(&self.dir).join("postmaster.pid"));
    }

    /// Starts a killed server again, on its port and with its data.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.process = serve(&self.dir, &self.port).unwrap_or_else(|failure| panic!("{failure}"));
    }

    fn try_start() -> Result<Self, StartFailure> {
        let dir =
            tempfile::Builder::new().prefix("tidegate-postgres-").tempdir().expect("a temporary folder");
        if let Some((user, group)) = other_user() {
            chown(dir.path(), Some(user), Some(group)).expect("root may give a folder away");
        }
        let mut initdb = as_user(&beside_server("initdb"));
        initdb.arg("-D").arg(data(&dir));
        initdb.args([
            "-U",
            USER,
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        ]);
        let made = initdb.current_dir(dir.path()).output().expect("initdb runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let port = Port::reserve();
        let process = serve(&dir, &port)?;
        Ok(Self { process, port, databases: AtomicU32::new(0), dir })
    }
}

fn serve(dir: &TempDir, port: &Port) -> Result<Process, StartFailure> {
    let mut command = as_user(&find_tool("postgres"));
    command.arg("-D").arg(data(dir)).args(["-p", &port.addr().port().to_string()]);
    // What it acknowledged survives its own death without; only a power cut would need it.
    let options =
        ["fsync=off", "listen_addresses=127.0.0.1", "unix_socket_directories=", "shared_buffers=16MB"];
    command.args(options.iter().flat_map(|option| ["-c", option])).current_dir(dir.path());
    let before = log(dir).matches(READY).count();
    let mut process = Process::spawn("postgres", &command, dir.path());
    process.ready(START_PATIENCE, |_| (log(dir).matches(READY).count() > before).then_some(()))?;
    Ok(process)
}

/// It may have ended meanwhile.
fn signal_child(child: i32, signal: Signal) {
    let _ = Pid::from_raw(child).map(|child| kill_process(child, signal));
}

fn data(dir: &TempDir) -> PathBuf {
    dir.path().join("data")
}

fn log(dir: &TempDir) -> String {
    fs::read_to_string(dir.path().join("postgres.stderr")).unwrap_or_default()
}

/// A program that comes with the server.
fn beside_server(name: &str) -> PathBuf {
    let server = fs::canonicalize(find_tool("postgres")).expect("it was found");
    server.with_file_name(name)
}

/// A command that runs `program` as a user that the server accepts.
pub(crate) fn as_user(program: &Path) -> Command {
    if other_user().is_none() {
        return Command::new(program);
    }
    let mut command = Command::new("/usr/bin/setpriv");
    // To change the user undoes what the kernel was told to do when we die, so it is told again.
    let user = [format!("--reuid={USER}"), format!("--regid={USER}")];
    command.args(user).args(["--clear-groups", "--pdeathsig", "KILL"]).arg(program);
    command
}

/// The user and group to run as; none if we are no root.
pub(crate) fn other_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").expect("a Unix has it");
    let line = passwd.lines().find(|line| line.split(':').next() == Some(USER));
    let line = line.unwrap_or_else(|| panic!("there is no user {USER}: install Debian's postgresql"));
    let mut numbers = line.split(':').skip(2).map(|field| field.parse().expect("a number"));
    Some((numbers.next().expect("a user"), numbers.next().expect("a group")))
}
