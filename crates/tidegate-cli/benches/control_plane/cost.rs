//! Instructions of the whole server, counted by valgrind, so the same on a busy machine.
//!
//! What a request costs is counted on a server without an admin listener, under as much load as it takes. What the control
//! plane does is done every second, whatever the load: it is counted for some seconds with dashboards open, and laid upon
//! the requests of a busy node.

use std::error::Error;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate_testkit::{Process, poll};

use crate::server::{ADMIN, TOKEN, ask, finish, offer, rules};

/// Requests per second of a busy node, over which background work is spread.
const BUSY: f64 = 20_000.0;
/// While background work is counted: enough that every series moves.
const LIGHT: u32 = 50;

const START: Duration = Duration::from_secs(120);

pub(crate) fn run(ours: &Path, count: usize, dashboards: usize, secs: u32) -> Result<(), Box<dyn Error>> {
    let each = {
        let mut bare = Counted::start(ours, count, "off")?;
        finish(offer(ours, bare.address("grpc")?, "closed", (2, 1))?)?;
        bare.zero()?;
        let load = finish(offer(ours, bare.address("grpc")?, "closed", (0, secs))?)?;
        bare.end()? as f64 / (load.allowed + load.refused) as f64
    };
    let quiet = background(ours, count, "off", 0, secs, each)?;
    let full = background(ours, count, "127.0.0.1:0", dashboards, secs, each)?;
    println!("instructions of a request over gRPC, {count} rules:           {each:>14.0}");
    println!("a second of background work, no admin listener:          {quiet:>14.0}");
    println!("the same with history, database and {dashboards} dashboards open:   {full:>14.0}");
    let ratio = (each + full / BUSY) / (each + quiet / BUSY);
    println!("per request at {BUSY:.0} requests/s: {ratio:.4} times");
    if ratio <= 1.03 { Ok(()) } else { Err("more than 1.03 times".into()) }
}

/// Instructions per second beside those of requests.
fn background(
    ours: &Path,
    count: usize,
    admin: &str,
    dashboards: usize,
    secs: u32,
    each: f64,
) -> Result<f64, Box<dyn Error>> {
    let mut server = Counted::start(ours, count, admin)?;
    let grpc = server.address("grpc")?;
    let admin = (dashboards > 0).then(|| server.address("admin")).transpose()?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..dashboards {
            scope.spawn(|| admin.map(|admin| look(admin, &stop)));
        }
        let counted = (|| {
            // Whoever opens a page loads all of it first.
            finish(offer(ours, grpc, &LIGHT.to_string(), (4, 1))?)?;
            server.zero()?;
            let began = Instant::now();
            let load = finish(offer(ours, grpc, &LIGHT.to_string(), (0, secs))?)?;
            let took = began.elapsed().as_secs_f64();
            let requests = (load.allowed + load.refused) as f64;
            Ok::<_, Box<dyn Error>>((server.end()? as f64 - requests * each) / took)
        })();
        stop.store(true, Ordering::Relaxed);
        counted
    })
}

/// Does what the dashboard's first page does: listens to events, and asks again every few seconds.
fn look(admin: SocketAddr, stop: &AtomicBool) -> Option<()> {
    let mut events = TcpStream::connect(admin).ok()?;
    let (name, value) = ADMIN;
    let head = format!("GET /admin/v1/events HTTP/1.1\r\nhost: x\r\n{name}: {value}\r\n\r\n");
    events.write_all(head.as_bytes()).ok()?;
    events.set_read_timeout(Some(Duration::from_millis(100))).ok()?;
    let pages = [
        ("/stats?from=15m&step=5s", 2),
        ("/nodes", 3),
        ("/stores", 3),
        ("/rules", 15),
        ("/versions?limit=1", 15),
    ];
    let (began, mut asked) = (Instant::now(), [0; 5]);
    while !stop.load(Ordering::Relaxed) {
        let _ = events.read(&mut [0; 4096]);
        for (place, (path, every)) in pages.iter().enumerate() {
            if began.elapsed().as_secs() >= asked[place] * every {
                asked[place] += 1;
                let _ = ask(admin, "GET", path, &[], "");
            }
        }
    }
    Some(())
}

/// A server under valgrind.
struct Counted {
    process: Process,
    _dir: TempDir,
}

impl Counted {
    fn start(ours: &Path, count: usize, admin: &str) -> Result<Self, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("rules.yaml");
        fs::write(&path, rules(count - 1))?;
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(ours).arg("serve");
        command.arg("--rules").arg(path).args(["--http", "off", "--resp", "off", "--grpc", "127.0.0.1:0"]);
        command.args(["--admin", admin, "--log-level", "error", "--data"]).arg(dir.path().join("data"));
        command.env("TIDEGATE_DRAIN__DELAY", "0s").env("TIDEGATE_ADMIN__TOKENS", TOKEN);
        let process = Process::spawn("counted", &command, dir.path());
        Ok(Counted { process, _dir: dir })
    }

    fn address(&mut self, what: &str) -> Result<SocketAddr, Box<dyn Error>> {
        let found = poll(START, || {
            let out = self.process.stdout();
            let line = out.lines().find_map(|line| line.strip_prefix("listening ")?.strip_prefix(what));
            line.and_then(|line| line.trim().parse().ok())
        });
        found.ok_or_else(|| format!("it does not listen: {}", self.process.stderr()).into())
    }

    /// Forgets what was counted so far.
    fn zero(&mut self) -> Result<(), Box<dyn Error>> {
        let zeroed =
            Command::new("callgrind_control").arg("-z").arg(self.process.pid().to_string()).output()?;
        let told = String::from_utf8_lossy(&zeroed.stdout).into_owned();
        if zeroed.status.success() && !told.contains("Error") { Ok(()) } else { Err(told.into()) }
    }

    /// Ends it, and says what was counted since.
    fn end(&mut self) -> Result<u64, Box<dyn Error>> {
        self.process.terminate(START);
        let told = self.process.stderr();
        let line = told.lines().find(|line| line.contains("Collected"));
        let count = line.and_then(|line| line.rsplit(' ').next()?.trim().parse().ok());
        count.ok_or_else(|| format!("valgrind says: {told}").into())
    }
}
