//! Standard process metrics, under the names that Prometheus' own libraries use.
//!
//! They are read from `/proc`, as those libraries do. The process's CPU clock would need the kernel's vDSO, which is missing
//! under valgrind, and we count the cost of a request with that.

use tidegate_store::{Clock as _, SystemClock};

use crate::family::{Families, Kind, Value};

pub(crate) fn now_seconds() -> f64 {
    SystemClock::new().now().as_micros() as f64 / 1e6
}

/// Adds the metrics of a process that started at this time.
pub(crate) fn describe(started_seconds: f64, families: &mut Families) {
    let mut add =
        |name: &str, help, kind, value: Value| families.declare(name.to_owned(), help, kind).add([], value);
    let help = "Start time of the process, in seconds since 1970.";
    add("process_start_time_seconds", help, Kind::Gauge, started_seconds.into());
    if let Some(cpu) = cpu_seconds() {
        add("process_cpu_seconds", "CPU time used by all threads.", Kind::Counter, cpu.into());
    }
    if let Some(bytes) = resident_bytes() {
        add("process_resident_memory_bytes", "Resident memory.", Kind::Gauge, bytes.into());
    }
}

/// Only Linux offers this in one short file; elsewhere the metric is absent.
fn cpu_seconds() -> Option<f64> {
    // Linux reports hundredths of a second to programs, whatever its internal tick is.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in brackets, which may contain anything.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) as f64 / TICKS)
}

/// As [`cpu_seconds`].
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(kib.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1_024)
}
