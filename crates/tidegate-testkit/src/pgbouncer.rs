//! A real PgBouncer before a PostgreSQL, in transaction mode: any transaction may run on any of its few connections.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::chown;
use std::time::Duration;

use tempfile::TempDir;

use crate::port::Port;
use crate::postgres::{Postgres, as_user, other_user};
use crate::process::{Process, StartFailure, start_on_free_ports};
use crate::tool::find_tool;

const START_PATIENCE: Duration = Duration::from_secs(20);

/// A PgBouncer, gone when dropped.
#[derive(Debug)]
pub struct PgBouncer {
    _process: Process,
    port: Port,
    _dir: TempDir,
}

impl PgBouncer {
    /// Starts one with so many connections to `postgres` per database.
    ///
    /// # Panics
    /// When it is not installed, or does not start.
    #[must_use]
    #[track_caller]
    pub fn start(postgres: &Postgres, connections: usize) -> Self {
        start_on_free_ports(|| Self::try_start(postgres.addr(), connections))
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    fn try_start(postgres: SocketAddr, connections: usize) -> Result<Self, StartFailure> {
        let dir =
            tempfile::Builder::new().prefix("tidegate-pgbouncer-").tempdir().expect("a temporary folder");
        if let Some((user, group)) = other_user() {
            chown(dir.path(), Some(user), Some(group)).expect("root may give a folder away");
        }
        let port = Port::reserve();
        // `auth_type = any` logs everybody in, as the user of the database's entry.
        let settings = format!(
            "[databases]\n* = host={} port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\nauth_type = any\n\
             unix_socket_dir =\npool_mode = transaction\ndefault_pool_size = {connections}\nmax_client_conn = 200\n",
            postgres.ip(),
            postgres.port(),
            port.addr().port(),
        );
        let path = dir.path().join("pgbouncer.ini");
        fs::write(&path, settings).expect("a file in a folder of ours");
        let mut command = as_user(&find_tool("pgbouncer"));
        command.arg(&path).current_dir(dir.path());
        let mut process = Process::spawn("pgbouncer", &command, dir.path());
        process.ready(START_PATIENCE, |_| TcpStream::connect(port.addr()).is_ok().then_some(()))?;
        Ok(Self { _process: process, port, _dir: dir })
    }
}
