//! What the control plane adds to a request, in CPU time of the whole server.
//!
//! What a request costs is measured on a server without an admin listener, under the load of a busy node. What the control plane
//! does is done every second, whatever the load: it is measured on a server that is asked little, with dashboards open, and
//! laid upon the requests of the busy node. Two small differences of large numbers would drown in what else the machine does.
//!
//! In CPU time, which counts the system's part too; `telemetry_cost.rs` counts instructions.

use std::error::Error;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate_testkit::TidegateServer;

use crate::server::{ADMIN, TOKEN, ask, finish, offer, rules};

/// Requests per second of a busy node, over which background work is spread.
const BUSY: u32 = 20_000;
/// While background work is measured: enough that every series moves.
const LIGHT: u32 = 10;
/// Seconds in which pages are opened, which loads all of them once.
const OPENING: u32 = 3;

pub(crate) fn run(ours: &Path, count: usize, dashboards: usize, secs: u32) -> Result<(), Box<dyn Error>> {
    let dir = TempDir::new()?;
    fs::write(dir.path().join("rules.yaml"), rules(count - 1))?;
    let each = {
        let mut bare = start(ours, &dir, "off");
        let (spent, load) = under_load(ours, &mut bare, BUSY, secs)?;
        spent.as_secs_f64() * 1e6 / load
    };
    let quiet = background(ours, &dir, "off", 0, secs, each)?;
    let full = background(ours, &dir, "127.0.0.1:0", dashboards, secs, each)?;
    println!("CPU time of a request over gRPC, {count} rules, at {BUSY} requests/s: {each:>10.2} us");
    println!("a second of background work, no admin listener:                {quiet:>10.0} us");
    println!("the same with history, database and {dashboards} dashboards open:         {full:>10.0} us");
    let busy = f64::from(BUSY);
    let ratio = (each + full / busy) / (each + quiet / busy);
    println!("per request at {BUSY} requests/s: {ratio:.4} times");
    if ratio <= 1.03 { Ok(()) } else { Err("more than 1.03 times".into()) }
}

fn start(ours: &Path, dir: &TempDir, admin: &str) -> TidegateServer {
    let path = dir.path().join("rules.yaml").display().to_string();
    let mut arguments = vec!["--rules", &path, "--http", "off", "--resp", "off", "--grpc", "127.0.0.1:0"];
    arguments.extend(["--admin", admin, "--log-level", "error"]);
    let environment = [("TIDEGATE_DRAIN__DELAY", "0s"), ("TIDEGATE_ADMIN__TOKENS", TOKEN)];
    TidegateServer::start_with_env(ours, &arguments, &environment)
}

/// Microseconds of CPU time per second beside those of requests.
fn background(
    ours: &Path,
    dir: &TempDir,
    admin: &str,
    dashboards: usize,
    secs: u32,
    each: f64,
) -> Result<f64, Box<dyn Error>> {
    let mut server = start(ours, dir, admin);
    let admin = (dashboards > 0).then(|| server.addr("admin"));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..dashboards {
            scope.spawn(|| admin.map(|admin| look(admin, &stop)));
        }
        let measured = under_load(ours, &mut server, LIGHT, secs);
        stop.store(true, Ordering::Relaxed);
        let (spent, requests) = measured?;
        Ok((spent.as_secs_f64() * 1e6 - requests * each) / f64::from(secs))
    })
}

/// CPU time that the server spends while `rate` is offered, and how many requests that was.
fn under_load(
    ours: &Path,
    server: &mut TidegateServer,
    rate: u32,
    secs: u32,
) -> Result<(Duration, f64), Box<dyn Error>> {
    let grpc = server.addr("grpc");
    finish(offer(ours, grpc, &rate.to_string(), (0, OPENING))?)?;
    let before = cpu_time(server)?;
    let load = finish(offer(ours, grpc, &rate.to_string(), (0, secs))?)?;
    Ok((cpu_time(server)? - before, (load.allowed + load.refused) as f64))
}

/// Of the process, threads that have ended included.
fn cpu_time(server: &mut TidegateServer) -> Result<Duration, Box<dyn Error>> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.process().pid()))?;
    // The name ends with the last bracket; user and system time are the 12th and 13th field behind it, in hundredths.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let [user, system] = [11, 12].map(|place| fields.get(place).and_then(|field| field.parse::<u64>().ok()));
    let ticks = user.zip(system).map(|(user, system)| user + system).ok_or("no times in /proc")?;
    Ok(Duration::from_millis(ticks * 10))
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
