//! What every process can tell of itself, under the names that Prometheus' own libraries use.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use rustix::time::{ClockId, clock_gettime};
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
        let help = "Processor time that all threads together have used.";
        let used = encoder.encode_descriptor("process_cpu", help, seconds, MetricType::Counter)?;
        ConstCounter::new(cpu_seconds()).encode(used)?;
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

fn cpu_seconds() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// Linux alone tells it in one short file; elsewhere there is no such metric.
fn resident_bytes() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let resident: u64 = pages.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(resident * rustix::param::page_size() as u64)
}
