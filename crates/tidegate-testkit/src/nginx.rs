//! A real nginx with a configuration of the test's.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::port::Port;
use crate::process::{Bond, Process, StartFailure, start_on_free_ports};
use crate::tool::find_tool;

const START_PATIENCE: Duration = Duration::from_secs(20);

/// An nginx with one worker, gone when dropped.
#[derive(Debug)]
pub struct Nginx {
    process: Process,
    port: Port,
    _dir: TempDir,
}

impl Nginx {
    /// Starts nginx, and returns when it accepts connections.
    ///
    /// `http` gives the inside of its `http { … }` block, for the address on which a `server` there must listen.
    ///
    /// # Panics
    /// When it is not installed, or does not start; the message holds its log.
    #[must_use]
    #[track_caller]
    pub fn start(http: impl Fn(SocketAddr) -> String) -> Self {
        start_on_free_ports(|| Self::try_start(&http))
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

    fn try_start(http: impl Fn(SocketAddr) -> String) -> Result<Self, StartFailure> {
        let dir = tempfile::Builder::new().prefix("tidegate-nginx-").tempdir().expect("a temporary folder");
        let port = Port::reserve();
        let config = dir.path().join("nginx.conf");
        fs::write(&config, config_text(dir.path(), &http(port.addr())))
            .expect("a temporary folder is writable");
        let mut command = Command::new(find_tool("nginx"));
        command.arg("-p").arg(dir.path()).arg("-c").arg(&config);
        // Its workers outlive a master that is killed, and not one that is asked to end.
        let mut process = Process::spawn_bound(Bond::Asked, "nginx", &command, dir.path());
        // It writes its number only once it listens; until then a stranger on the port might answer us.
        let listens = |process: &Process| {
            let pid = fs::read_to_string(dir.path().join("nginx.pid")).ok()?;
            (pid.trim() == process.pid().to_string()).then(|| TcpStream::connect(port.addr()).ok()).flatten()
        };
        process.ready(START_PATIENCE, listens)?;
        Ok(Self { process, port, _dir: dir })
    }
}

/// A whole configuration that touches nothing outside `dir`.
fn config_text(dir: &Path, http: &str) -> String {
    let dir = dir.display();
    // A worker of another user could not write into a temporary folder of ours.
    let user = if rustix::process::getuid().is_root() { "user root root;" } else { "" };
    let temp_paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temp_paths = temp_paths.map(|kind| format!("{kind}_temp_path {dir}/{kind};"));
    format!(
        "daemon off; {user} worker_processes 1; pid {dir}/nginx.pid; error_log stderr notice;\n\
         events {{ worker_connections 512; }}\n\
         http {{\n  access_log off;\n  {}\n{http}\n}}\n",
        temp_paths.join(" ")
    )
}
