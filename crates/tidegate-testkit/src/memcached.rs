//! A real Memcached.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::port::Port;
use crate::process::{Process, StartFailure, start_on_free_ports};
use crate::tool::find_tool;

const START_PATIENCE: Duration = Duration::from_secs(20);

/// A Memcached, gone when dropped.
#[derive(Debug)]
pub struct Memcached {
    process: Process,
    port: Port,
    options: Vec<String>,
    dir: TempDir,
}

impl Memcached {
    /// Starts one.
    ///
    /// # Panics
    /// When it is not installed, or does not start; the message holds its log.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with these options.
    ///
    /// # Panics
    /// When it is not installed, or does not start; the message holds its log.
    #[must_use]
    #[track_caller]
    pub fn start_with(options: &[&str]) -> Self {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        start_on_free_ports(|| {
            let dir =
                tempfile::Builder::new().prefix("tidegate-memcached-").tempdir().expect("a temporary folder");
            let port = Port::reserve();
            let process = serve(&port, &options, &dir)?;
            Ok(Self { process, port, options: options.clone(), dir })
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The URL of these servers as one store.
    #[must_use]
    pub fn url_of(servers: &[&Memcached]) -> String {
        let addresses: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
        format!("memcached://{}", addresses.join(","))
    }

    /// One of its own counts, as `stats` tells it.
    ///
    /// # Panics
    /// When it has no such count, or does not answer.
    #[must_use]
    #[track_caller]
    pub fn statistic(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(self.addr()).expect("it listens");
        stream.write_all(b"stats\r\nquit\r\n").expect("it reads");
        let mut told = String::new();
        stream.read_to_string(&mut told).expect("it answers");
        let of_line =
            |line: &str| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
        told.lines().find_map(of_line).unwrap_or_else(|| panic!("no {name} in {told}"))
    }

    /// The process itself, for signals and for its log.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Starts a killed server again on its port, empty.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.process =
            serve(&self.port, &self.options, &self.dir).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

fn serve(port: &Port, options: &[String], dir: &TempDir) -> Result<Process, StartFailure> {
    let mut command = Command::new(find_tool("memcached"));
    command.args(["-l", "127.0.0.1", "-p", &port.addr().port().to_string()]).args(options);
    if rustix::process::geteuid().is_root() {
        // It refuses to run as root unless that is asked for.
        command.args(["-u", "root"]);
    }
    let mut process = Process::spawn("memcached", &command, dir.path());
    process.ready(START_PATIENCE, |_| TcpStream::connect(port.addr()).is_ok().then_some(()))?;
    Ok(process)
}
