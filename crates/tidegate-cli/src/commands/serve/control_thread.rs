//! The control plane's one thread, and how long it works without a rest. In the middle of a piece of work it sends no heartbeat,
//! and answers neither `/healthz` nor a signal: no piece can have taken longer than this.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tidegate_metrics::Metrics;
use tokio::runtime::{Builder, Runtime};

/// Measures this thread once it serves: before that nobody waits for it.
#[derive(Clone, Default)]
pub(super) struct ControlThread(Arc<AtomicU64>);

impl ControlThread {
    /// The runtime of this thread.
    pub(super) fn runtime(&self, metrics: Arc<Metrics>) -> io::Result<Runtime> {
        let (woken, resting) = (self.clone(), self.clone());
        Builder::new_current_thread()
            .enable_all()
            .on_thread_unpark(move || woken.began())
            .on_thread_park(move || {
                if let Some(took) = resting.took() {
                    metrics.control_thread_worked(took);
                }
            })
            .build()
    }

    /// From now on it is measured.
    pub(super) fn serves(&self) {
        self.0.store(own_time_ns(), Ordering::Relaxed);
    }

    fn began(&self) {
        if self.0.load(Ordering::Relaxed) > 0 {
            self.serves();
        }
    }

    fn took(&self) -> Option<Duration> {
        let began = self.0.load(Ordering::Relaxed);
        (began > 0).then(|| Duration::from_nanos(own_time_ns().saturating_sub(began)))
    }
}

/// CPU time, so that a busy machine does not count.
fn own_time_ns() -> u64 {
    let time = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
