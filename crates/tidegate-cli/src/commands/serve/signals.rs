//! Signals to a running server from a supervisor, or from a person at the keyboard.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use super::notify::Supervisor;

/// What Ctrl-C sends.
pub(super) const INTERRUPT: &str = "SIGINT";

/// Signals to stop. Installed before the server announces that it is up, so that none of them kills it.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Must be called on a runtime.
    pub(super) fn install() -> io::Result<StopSignals> {
        Ok(StopSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one, and returns its name.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => INTERRUPT,
        }
    }
}

/// Whoever drops it has read its files again.
pub(super) type Done = oneshot::Sender<()>;

/// SIGHUP: read files again. Installed early too: it would end the process otherwise.
pub(super) struct Hangups {
    signal: Signal,
    readers: Vec<mpsc::Sender<Done>>,
}

impl Hangups {
    /// Must be called on a runtime.
    pub(super) fn install() -> io::Result<Hangups> {
        Ok(Hangups { signal: signal(SignalKind::hangup())?, readers: Vec::new() })
    }

    /// What somebody who has files to read hears.
    pub(super) fn reader(&mut self) -> mpsc::Receiver<Done> {
        let (reader, hears) = mpsc::channel(1);
        self.readers.push(reader);
        hears
    }

    /// Passes each one on to all readers, and tells the supervisor when they begin and when all are done. Runs until dropped.
    pub(super) async fn pass_on(mut self, supervisor: Supervisor) {
        while self.signal.recv().await.is_some() {
            supervisor.reloading();
            for reader in &self.readers {
                let (done, is_done) = oneshot::channel();
                let _ = reader.send(done).await;
                let _ = is_done.await;
            }
            supervisor.ready();
        }
    }
}
