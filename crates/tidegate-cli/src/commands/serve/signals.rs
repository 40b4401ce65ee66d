//! Signals to a running server from a supervisor, or from a person at the keyboard.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

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

/// SIGHUP: read the rules again. Must be called on a runtime.
pub(super) fn hangups() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// Receives hang-ups and ignores them: they would end the process otherwise.
pub(super) async fn ignore(mut hangups: Signal) {
    while hangups.recv().await.is_some() {}
}
