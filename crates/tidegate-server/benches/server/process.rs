//! Child processes pinned to a core, and what they cost.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server that is killed when dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    child: Child,
}

impl Server {
    /// Starts `command` on `core` and waits for its line `listening NAME ADDRESS`.
    pub(crate) fn start(mut command: Command, listener: &str) -> Result<Self, Box<dyn Error>> {
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn()?;
        let output = child.stdout.take().ok_or("the server has no output")?;
        let mut lines = BufReader::new(output).lines();
        let prefix = format!("listening {listener} ");
        let address = loop {
            let line = lines.next().ok_or_else(|| format!("{command:?} ended before it listened"))??;
            if let Some(address) = line.strip_prefix(&prefix) {
                break address.trim().parse()?;
            }
        };
        // Read on, so that the server never blocks on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self { address, child })
    }

    /// CPU time so far, user and system.
    pub(crate) fn cpu(&self) -> Result<Duration, Box<dyn Error>> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The second field is the program's name in parentheses, which may hold anything.
        let fields: Vec<_> = stat.rsplit_once(") ").ok_or("no process name in stat")?.1.split(' ').collect();
        let [user, system] = [fields[11].parse::<u64>()?, fields[12].parse::<u64>()?];
        Ok(CLOCK_TICK * u32::try_from(user + system)?)
    }
}

/// The unit of CPU time in `/proc`: 100 per second on every Linux that Rust runs on.
const CLOCK_TICK: Duration = Duration::from_millis(10);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `program`, to run on `core` alone.
pub(crate) fn pinned(core: usize, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.arg("-c").arg(core.to_string()).arg(program);
    command
}
