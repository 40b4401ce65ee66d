//! One redis-server process, in the role its configuration gives it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use crate::port::Port;
use crate::process::{Process, StartFailure, start_on_free_ports};
use crate::resp::{Client, Value};
use crate::stepped_clock::SteppedClock;
use crate::tls::Certificates;
use crate::tool::find_tool;

/// A loaded two-core machine may take seconds to start six of them at once.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// Whom the kit logs in as where ordinary users are locked out.
const KIT_USER: &str = "testkit";
const KIT_PASSWORD: &str = "testkit-only";

/// A redis-server on 127.0.0.1, without persistence, gone when dropped.
///
/// Methods take `&self`, so that a test can hold a topology and break one of its nodes.
#[derive(Debug)]
pub struct Redis {
    process: Mutex<Process>,
    port: Port,
    tls: Option<Tls>,
    /// The first user of the builder: who a store URL names.
    user: Option<(String, String)>,
    role: Role,
    clock: Option<SteppedClock>,
    /// Last, so that it is removed after the process is dead.
    dir: TempDir,
}

#[derive(Debug)]
struct Tls {
    port: Port,
    certificates: Certificates,
}

/// What the process is started as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Server,
    /// Also listens on its bus, 10,000 ports higher.
    ClusterNode,
    Sentinel,
}

impl Redis {
    /// Starts one with default settings.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Says what is special about the one to start.
    #[must_use]
    pub fn builder() -> RedisBuilder {
        RedisBuilder {
            role: Role::Server,
            config: Vec::new(),
            users: Vec::new(),
            tls: Encryption::No,
            clock: None,
        }
    }

    /// Where it listens without TLS.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Its store URL, with user and password if it has users.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}{}", self.credentials(), self.addr())
    }

    /// Its store URL over TLS.
    ///
    /// # Panics
    /// Without [`RedisBuilder::tls`].
    #[must_use]
    #[track_caller]
    pub fn tls_url(&self) -> String {
        let tls = self.tls.as_ref().expect("started with tls()");
        format!("rediss://{}{}", self.credentials(), tls.port.addr())
    }

    /// The certificates it uses, and the authority to trust.
    ///
    /// # Panics
    /// Without [`RedisBuilder::tls`].
    #[must_use]
    #[track_caller]
    pub fn certificates(&self) -> &Certificates {
        &self.tls.as_ref().expect("started with tls()").certificates
    }

    /// A new connection, logged in with all rights.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    #[track_caller]
    pub fn client(&self) -> Client {
        let mut client = Client::connect(self.addr());
        self.log_in(&mut client);
        client
    }

    /// Runs one command on a new connection.
    ///
    /// # Panics
    /// When it does not answer.
    #[track_caller]
    pub fn cmd<W: AsRef<[u8]>>(&self, words: &[W]) -> Value {
        self.client().cmd(words)
    }

    /// One field of `INFO`, such as `connected_slaves`; nothing while it does not answer or has no such field.
    #[must_use]
    pub fn info(&self, field: &str) -> Option<String> {
        self.field_of(&["INFO"], field)
    }

    /// The commands that clients send it while `act` runs, one line each, as `MONITOR` writes them.
    ///
    /// # Panics
    /// When it does not answer.
    #[track_caller]
    pub fn commands_during(&self, act: impl FnOnce()) -> Vec<String> {
        const END: &str = "commands_during ends";
        let mut monitor = self.client();
        assert_eq!(monitor.cmd(&["MONITOR"]).text(), "OK");
        act();
        self.cmd(&["ECHO", END]);
        std::iter::repeat_with(|| monitor.receive().expect("MONITOR goes on").text())
            .take_while(|line| !line.contains(END))
            // What a script calls is its own affair.
            .filter(|line| !line.contains(" lua] "))
            .collect()
    }

    /// Stops it where it stands (SIGSTOP): connections stay open and nothing is answered.
    #[track_caller]
    pub fn pause(&self) {
        self.process().pause();
    }

    /// Lets a stopped one go on (SIGCONT).
    #[track_caller]
    pub fn resume(&self) {
        self.process().resume();
    }

    /// Kills it (SIGKILL).
    pub fn kill(&self) {
        self.process().kill();
    }

    /// Asks it to end (SIGTERM), and returns how it did.
    #[track_caller]
    pub fn terminate(&self) -> ExitStatus {
        self.process().terminate(Duration::from_secs(10))
    }

    /// Starts it again on the same port with the same configuration, after killing it if it still runs.
    ///
    /// # Panics
    /// When it does not answer again.
    #[track_caller]
    pub fn restart(&self) {
        let mut process = self.process();
        process.kill();
        *process = spawn(self.role, self.clock.as_ref(), self.dir.path());
        drop(process);
        self.wait_ready().unwrap_or_else(|failure| panic!("{failure}"));
    }

    /// The process itself, for other signals and for its log.
    pub fn process(&self) -> MutexGuard<'_, Process> {
        // A poisoned lock only means that another test failed; the process must still be killed.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One `field:value` line of what a command such as `CLUSTER INFO` prints; nothing while it does not answer.
    pub(super) fn field_of(&self, command: &[&str], field: &str) -> Option<String> {
        let Value::Bulk(bytes) = self.try_cmd(command)? else { return None };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        text.lines().find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.to_owned()))
    }

    /// The reply, or nothing while it does not answer or refuses.
    pub(super) fn try_cmd(&self, command: &[&str]) -> Option<Value> {
        let mut client = Client::try_connect(self.addr()).ok()?;
        if !self.try_log_in(&mut client) {
            return None;
        }
        client.try_cmd(command).ok().filter(|value| !value.is_error())
    }

    fn wait_ready(&self) -> Result<(), StartFailure> {
        // Another server on our port would answer PING too, so this one must say who it is.
        let pid = self.process().pid().to_string();
        let answers = |_: &Process| self.info("process_id").filter(|answer| *answer == pid).map(drop);
        self.process().ready(START_PATIENCE, answers)
    }

    fn credentials(&self) -> String {
        self.user.as_ref().map(|(name, password)| format!("{name}:{password}@")).unwrap_or_default()
    }

    #[track_caller]
    fn log_in(&self, client: &mut Client) {
        assert!(self.try_log_in(client), "{} does not let the kit log in", self.addr());
    }

    fn try_log_in(&self, client: &mut Client) -> bool {
        self.user.is_none()
            || client.try_cmd(&["AUTH", KIT_USER, KIT_PASSWORD]).is_ok_and(|value| !value.is_error())
    }
}

/// What is special about a server to start.
#[derive(Clone, Debug)]
pub struct RedisBuilder {
    role: Role,
    config: Vec<String>,
    users: Vec<(String, String, String)>,
    tls: Encryption,
    clock: Option<SteppedClock>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encryption {
    No,
    Yes,
}

impl RedisBuilder {
    /// Adds a line to its configuration, such as `maxmemory 10mb`.
    #[must_use]
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.config.push(line.into());
        self
    }

    /// Adds a user with ACL rules such as `~* &* +@all`, and locks out everybody without a password.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str, rules: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned(), rules.to_owned()));
        self
    }

    /// Also listens with TLS, on a port of its own.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = Encryption::Yes;
        self
    }

    /// Reads `clock` instead of the machine's.
    #[must_use]
    pub fn clock(mut self, clock: &SteppedClock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    pub(super) fn role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// Starts it, and returns when it answers.
    ///
    /// # Panics
    /// When it does not; the message holds its log.
    #[must_use]
    #[track_caller]
    pub fn start(&self) -> Redis {
        start_on_free_ports(|| self.try_start())
    }

    fn try_start(&self) -> Result<Redis, StartFailure> {
        let dir = tempfile::Builder::new().prefix("tidegate-redis-").tempdir().expect("a temporary folder");
        let port = match self.role {
            Role::ClusterNode => Port::reserve_with_bus(),
            Role::Server | Role::Sentinel => Port::reserve(),
        };
        let certificates = || Certificates::for_loopback(dir.path());
        let tls = (self.tls == Encryption::Yes)
            .then(|| Tls { port: Port::reserve(), certificates: certificates() });
        fs::write(dir.path().join("redis.conf"), self.config_text(dir.path(), &port, tls.as_ref()))
            .expect("a temporary folder is writable");
        let process = Mutex::new(spawn(self.role, self.clock.as_ref(), dir.path()));
        let user = self.users.first().map(|(name, password, _)| (name.clone(), password.clone()));
        let redis = Redis { process, port, tls, user, role: self.role, clock: self.clock.clone(), dir };
        redis.wait_ready()?;
        Ok(redis)
    }

    fn config_text(&self, dir: &Path, port: &Port, tls: Option<&Tls>) -> String {
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            format!("port {}", port.number()),
            format!("dir {}", dir.display()),
        ];
        match self.role {
            Role::Sentinel => {}
            // No disk, so that a restarted server is an empty one; replicas get the data over the socket.
            Role::Server | Role::ClusterNode => {
                lines.extend(["save \"\"", "appendonly no", "repl-diskless-sync-delay 0"].map(str::to_owned));
            }
        }
        if let Some(Tls { port, certificates }) = tls {
            let Certificates { ca, cert, key } = certificates;
            lines.push(format!("tls-port {}", port.number()));
            lines.push(format!("tls-ca-cert-file {}", ca.display()));
            lines.push(format!("tls-cert-file {}", cert.display()));
            lines.push(format!("tls-key-file {}", key.display()));
            lines.push("tls-auth-clients no".to_owned());
        }
        if !self.users.is_empty() {
            lines.push("user default off".to_owned());
            lines.push(format!("user {KIT_USER} on >{KIT_PASSWORD} ~* &* +@all"));
        }
        lines.extend(self.users.iter().map(|(name, word, rules)| format!("user {name} on >{word} {rules}")));
        lines.extend(self.config.iter().cloned());
        lines.join("\n") + "\n"
    }
}

fn spawn(role: Role, clock: Option<&SteppedClock>, dir: &Path) -> Process {
    let mut command = Command::new(find_tool("redis-server"));
    command.arg(dir.join("redis.conf"));
    command.envs(clock.into_iter().flat_map(SteppedClock::env));
    if role == Role::Sentinel {
        command.arg("--sentinel");
    }
    Process::spawn("redis", &command, dir)
}
