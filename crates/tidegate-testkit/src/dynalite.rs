//! DynamoDB as `dynalite` emulates it: without transactions, and without expiry.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::port::Port;
use crate::process::{Process, StartFailure, start_on_free_ports};
use crate::tool::{find_node_package, find_tool};

const START_PATIENCE: Duration = Duration::from_secs(60);

/// An emulator of DynamoDB in memory, gone when dropped. It checks no signature.
#[derive(Debug)]
pub struct Dynalite {
    _process: Process,
    port: Port,
    _dir: TempDir,
}

impl Dynalite {
    /// Starts one.
    ///
    /// # Panics
    /// When it is not installed, or does not start; the message holds its log.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        start_on_free_ports(|| {
            let dir =
                tempfile::Builder::new().prefix("tidegate-dynalite-").tempdir().expect("a temporary folder");
            let port = Port::reserve();
            let process = serve(&port, &dir)?;
            Ok(Self { _process: process, port, _dir: dir })
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The URL of a table in it, which is created.
    #[must_use]
    pub fn url(&self, table: &str) -> String {
        format!("dynamodb://{table}?region=eu-west-1&endpoint=http://{}&create=true", self.addr())
    }
}

fn serve(port: &Port, dir: &TempDir) -> Result<Process, StartFailure> {
    let mut command = Command::new(find_tool("node"));
    command.arg(find_node_package("dynalite").join("cli.js"));
    command.args(["--host", "127.0.0.1", "--port", &port.addr().port().to_string()]);
    // A new table is there at once.
    command.args(["--createTableMs", "0"]);
    let mut process = Process::spawn("dynalite", &command, dir.path());
    process.ready(START_PATIENCE, |_| TcpStream::connect(port.addr()).is_ok().then_some(()))?;
    Ok(process)
}
