//! Large sets of rules are swapped in and out under an open load.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tidegate_testkit::{TidegateServer, poll};

use crate::server::{Load, TOKEN, finish, offer, publish, rules};

pub(crate) fn run(ours: &Path, large: usize, rate: u32, secs: u32) -> Result<(), Box<dyn Error>> {
    let any = "127.0.0.1:0";
    let arguments = ["--http", "off", "--grpc", any, "--resp", "off", "--admin", any, "--log-level", "error"];
    let environment = [("TIDEGATE_ADMIN__TOKENS", TOKEN), ("TIDEGATE_DRAIN__DELAY", "0s")];
    let mut server = TidegateServer::start_with_env(ours, &arguments, &environment);
    let (grpc, admin) = (server.addr("grpc"), server.addr("admin"));
    let (small_set, large_set) = (rules(0), rules(large));
    publish(admin, &small_set)?;
    let before = finish(offer(ours, grpc, &rate.to_string(), (1, secs))?)?;
    let memory = resident(&mut server);
    let beside_a_loop = beside_a_loop(|| finish(offer(ours, grpc, &rate.to_string(), (1, secs))?))?;

    let load = offer(ours, grpc, &rate.to_string(), (1, secs))?;
    wait(Duration::from_secs(2));
    let (began, mut took) = (Instant::now(), Vec::new());
    // It ends while the load still runs: what comes after the last swap counts, too.
    while began.elapsed() < Duration::from_secs(u64::from(secs) - 3) {
        for set in [&large_set, &small_set] {
            let start = Instant::now();
            publish(admin, set)?;
            took.push(start.elapsed());
        }
    }
    let meanwhile = finish(load)?;
    let large_took = took.iter().step_by(2).max().copied().unwrap_or_default();
    println!("{large} rules, published {} times, at most {large_took:.0?} each", took.len() / 2);
    println!(
        "{:<12} {:>10} {:>8} {:>8} {:>10} {:>8} {:>8}",
        "", "requests/s", "p50 us", "p99 us", "longest us", "refused", "failed"
    );
    show("before", &before);
    show("a loop", &beside_a_loop);
    show("meanwhile", &meanwhile);
    publish(admin, &large_set)?;
    let full = resident(&mut server);
    publish(admin, &small_set)?;
    // What the allocator gives back, it gives back when nobody asked for a while.
    let mut least = resident(&mut server);
    let _ = poll(Duration::from_secs(15), || {
        least = least.min(resident(&mut server));
        None::<()>
    });
    println!("resident: {memory} KiB before, {full} KiB with {large} rules, {least} KiB without them again");
    if before.errors + meanwhile.errors > 0 { Err("requests failed".into()) } else { Ok(()) }
}

/// What `measure` finds while another process computes at the priority at which rules compile: what any work in the
/// background costs requests on this machine, whatever it is.
fn beside_a_loop<T>(measure: impl FnOnce() -> Result<T, Box<dyn Error>>) -> Result<T, Box<dyn Error>> {
    let mut busy = Command::new("nice").args(["-n", "10", "sh", "-c", "while :; do :; done"]).spawn()?;
    let measured = measure();
    busy.kill()?;
    busy.wait()?;
    measured
}

fn show(name: &str, load: &Load) {
    let Load { achieved_per_s, latency_us, refused, errors, .. } = load;
    let (p50, p99, max) = (latency_us.p50, latency_us.p99, latency_us.max);
    println!("{name:<12} {achieved_per_s:>10.0} {p50:>8.0} {p99:>8.0} {max:>10.0} {refused:>8} {errors:>8}");
}

fn wait(span: Duration) {
    let _ = poll(span, || None::<()>);
}

/// KiB of the server's memory.
fn resident(server: &mut TidegateServer) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.process().pid())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
