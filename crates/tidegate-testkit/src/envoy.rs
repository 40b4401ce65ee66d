//! A real Envoy with a configuration of the test's.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::clock::poll;
use crate::http;
use crate::process::Process;
use crate::tool::find_tool;

const START_PATIENCE: Duration = Duration::from_secs(30);

/// Merged into every configuration: a free port, whose number Envoy writes to a file.
const ADMIN: &str = "admin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }";

/// An Envoy with one worker, gone when dropped.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    admin: SocketAddr,
    listeners: Vec<(String, SocketAddr)>,
    _dir: TempDir,
}

impl Envoy {
    /// Starts Envoy with `config` (YAML), and returns when its listeners accept connections.
    ///
    /// Leave out `admin`, and let listeners bind to 127.0.0.1 with `port_value: 0`: [`Envoy::listener`] tells where
    /// they are.
    ///
    /// # Panics
    /// When it is not installed, or does not start; the message holds its log.
    #[must_use]
    #[track_caller]
    pub fn start(config: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("tidegate-envoy-").tempdir().expect("a temporary folder");
        let (config_file, admin_file) = (dir.path().join("envoy.yaml"), dir.path().join("admin"));
        fs::write(&config_file, config).expect("a temporary folder is writable");
        let mut command = Command::new(find_tool("envoy"));
        // Hot restart shares memory by number, so two Envoys at once would collide.
        command.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]);
        command.arg("--config-path").arg(&config_file).args(["--config-yaml", ADMIN]);
        command.arg("--admin-address-path").arg(&admin_file);
        let mut process = Process::spawn("envoy", &command, dir.path());
        let started = process.ready(START_PATIENCE, |_| {
            let admin = fs::read_to_string(&admin_file).ok()?.trim().parse().ok()?;
            let listeners = live_listeners(admin)?;
            Some((admin, listeners))
        });
        let (admin, listeners) = started.unwrap_or_else(|failure| panic!("{failure}"));
        Self { process, admin, listeners, _dir: dir }
    }

    /// Where the listener called `name` listens.
    ///
    /// # Panics
    /// When the configuration has no such listener.
    #[must_use]
    #[track_caller]
    pub fn listener(&self, name: &str) -> SocketAddr {
        let found = self.listeners.iter().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("no listener {name} among {:?}", self.listeners)).1
    }

    /// Where its admin interface listens.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// One of its counters or gauges, such as `cluster.rls.upstream_rq_total`; nothing if it has none of that name.
    #[must_use]
    #[track_caller]
    pub fn stat(&self, name: &str) -> Option<u64> {
        let all = http::get(self.admin, "/stats").text();
        all.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.parse().ok())
    }

    /// Waits until a counter or gauge satisfies `holds`.
    ///
    /// # Panics
    /// When it does not within ten seconds.
    #[track_caller]
    pub fn wait_for_stat(&self, name: &str, holds: impl Fn(u64) -> bool) {
        let patience = Duration::from_secs(10);
        let held = poll(patience, || self.stat(name).filter(|value| holds(*value)));
        assert!(held.is_some(), "{name} is {:?} after {patience:?}", self.stat(name));
    }

    /// The process itself, for signals and for its log.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// The listeners, once Envoy is live and all of them accept connections.
fn live_listeners(admin: SocketAddr) -> Option<Vec<(String, SocketAddr)>> {
    let ask = |path| http::request(admin, "GET", path, &[], b"").ok().filter(|reply| reply.status == 200);
    ask("/ready")?;
    let listing: serde_json::Value = serde_json::from_slice(&ask("/listeners?format=json")?.body).ok()?;
    let Some(statuses) = listing["listener_statuses"].as_array() else { return Some(Vec::new()) };
    let listeners: Option<Vec<_>> = statuses
        .iter()
        .map(|status| {
            let socket = &status["local_address"]["socket_address"];
            let addr = format!("{}:{}", socket["address"].as_str()?, socket["port_value"].as_u64()?);
            Some((status["name"].as_str()?.to_owned(), addr.parse().ok()?))
        })
        .collect();
    let all_accept = |(_, addr): &(String, SocketAddr)| std::net::TcpStream::connect(addr).is_ok();
    listeners.filter(|listeners| listeners.iter().all(all_accept))
}
