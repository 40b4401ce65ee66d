//! The processor time of processes, as the kernel counts it.

use std::fs;
use std::time::Duration;

/// Linux tells hundredths of a second, whatever its own clock does.
const TICK: Duration = Duration::from_millis(10);

/// What the process has taken so far, in user and kernel mode; nothing if it is gone.
#[must_use]
pub fn cpu_of(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field is a name that may hold anything; behind it, the 12th and 13th are the times.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks = fields.skip(11).take(2).filter_map(|field| field.parse::<u32>().ok());
    TICK * ticks.sum::<u32>()
}

/// The same with the children that it has now.
#[must_use]
pub fn cpu_of_family(pid: u32) -> Duration {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    cpu_of(pid) + children.map(cpu_of).sum::<Duration>()
}
