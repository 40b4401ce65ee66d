//! Whether workers still run, asked from outside: one that hangs cannot say so itself.

use std::sync::mpsc;
use std::time::Duration;

use tokio::runtime::Handle;

/// Asks every worker of a data plane for a sign of life.
#[derive(Clone, Debug)]
pub struct Pulse {
    workers: Vec<Handle>,
}

impl Pulse {
    pub(super) fn of(workers: Vec<Handle>) -> Pulse {
        Pulse { workers }
    }

    /// How many workers have ended, or ran no task while nobody else's answer came `within` that time. Blocks the calling
    /// thread.
    #[must_use]
    pub fn silent(&self, within: Duration) -> usize {
        let (answer, answers) = mpsc::channel();
        for worker in &self.workers {
            let answer = answer.clone();
            worker.spawn(async move {
                let _ = answer.send(());
            });
        }
        // With the last sender gone, an ended worker is noticed at once.
        drop(answer);
        let mut silent = self.workers.len();
        while silent > 0 && answers.recv_timeout(within).is_ok() {
            silent -= 1;
        }
        silent
    }
}
