//! Standard process metrics, under the names that Prometheus' own libraries use.
//!
//! They are read from `/proc`, as those libraries do. The process's CPU clock would need the kernel's vDSO, which is missing
//! under valgrind, and we count the cost of a request with that.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use tidegate_store::{Clock as _, SystemClock};

#[derive(Debug)]
pub(crate) struct Process {
    started_seconds: f64,
}

impl Process {
    pub(crate) fn starting_now() -> Self {
        Process { started_seconds: SystemClock::new().now().as_micros() as f64 / 1e6 }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let seconds = Some(&Unit::Seconds);
        let help = "When this process began, in seconds since 1970.";
        let started = encoder.encode_descriptor("process_start_time", help, seconds, MetricType::Gauge)?;
        ConstGauge::new(self.started_seconds).encode(started)?;
        if let Some(cpu) = cpu_seconds() {
            let help = "Processor time that all threads together have used.";
            let used = encoder.encode_descriptor("process_cpu", help, seconds, MetricType::Counter)?;
            ConstCounter::new(cpu).encode(used)?;
        }
        if let Some(bytes) = resident_bytes() {
            let help = "Memory in use, as the system counts it.";
            let resident = encoder.encode_descriptor(
                "process_resident_memory",
                help,
                Some(&Unit::Bytes),
                MetricType::Gauge,
            )?;
            ConstGauge::new(bytes).encode(resident)?;
        }
        Ok(())
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
