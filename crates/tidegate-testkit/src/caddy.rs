//! A real Caddy with a configuration of the test's.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::port::Port;
use crate::process::{Process, StartFailure, start_on_free_ports};
use crate::tool::find_tool;

const START_PATIENCE: Duration = Duration::from_secs(30);

/// A Caddy, gone when dropped.
#[derive(Debug)]
pub struct Caddy {
    process: Process,
    port: Port,
    _dir: TempDir,
}

impl Caddy {
    /// Starts Caddy, and returns when it accepts connections.
    ///
    /// `caddyfile` gives its configuration, for the address on which a site there must listen. It must switch the admin
    /// interface off: that would take a port which is the same for all.
    ///
    /// # Panics
    /// When it is not installed, or does not start; the message holds its log.
    #[must_use]
    #[track_caller]
    pub fn start(caddyfile: impl Fn(SocketAddr) -> String) -> Self {
        start_on_free_ports(|| Self::try_start(&caddyfile))
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The process itself, for signals and for its log.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    fn try_start(caddyfile: impl Fn(SocketAddr) -> String) -> Result<Self, StartFailure> {
        let dir = tempfile::Builder::new().prefix("tidegate-caddy-").tempdir().expect("a temporary folder");
        let port = Port::reserve();
        fs::write(dir.path().join("Caddyfile"), caddyfile(port.addr()))
            .expect("a temporary folder is writable");
        // `run` ends without a word about a mistake; `validate` names it.
        let checked = command("validate", &dir).output().expect("caddy runs");
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
        let command = command("run", &dir);
        let mut process = Process::spawn("caddy", &command, dir.path());
        // Its log says that it serves; only then is it Caddy that answers on the port.
        let listens = |process: &Process| {
            let serving = process.stderr().contains("serving initial configuration");
            serving.then(|| TcpStream::connect(port.addr()).ok()).flatten()
        };
        process.ready(START_PATIENCE, listens)?;
        Ok(Self { process, port, _dir: dir })
    }
}

/// A subcommand of Caddy, with the configuration in `dir`.
fn command(name: &str, dir: &TempDir) -> Command {
    let mut command = Command::new(find_tool("caddy"));
    command.args([name, "--adapter", "caddyfile", "--config"]).arg(dir.path().join("Caddyfile"));
    // It keeps certificates and its last configuration at home.
    for home in ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"] {
        command.env(home, dir.path());
    }
    command
}
