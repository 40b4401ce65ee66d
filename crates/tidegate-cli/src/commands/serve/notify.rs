//! Tells the supervisor (systemd, `Type=notify`) what this server does: ready, reloading, stopping, and alive.
//!
//! The protocol is one datagram of lines per message to the socket named in `NOTIFY_SOCKET`. Without that variable nothing
//! is sent; a supervisor that does not listen is no reason to stop.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tidegate_runtime::Pulse;

/// Where the supervisor listens, if one does.
#[derive(Clone)]
pub(super) struct Supervisor {
    socket: Option<Arc<(UnixDatagram, SocketAddr)>>,
    /// How often it wants a sign of life, if at all.
    watchdog: Option<Duration>,
}

impl Supervisor {
    /// Reads what the supervisor left in the environment.
    pub(super) fn find() -> Supervisor {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|name| match open(&name) {
            Ok(socket) => Some(Arc::new(socket)),
            Err(error) => {
                tracing::warn!(socket = ?name, %error, "the supervisor is not told anything");
                None
            }
        });
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        // A variable that was meant for the process that started us is not for us.
        let for_us = number("WATCHDOG_PID").is_none_or(|id| id == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|every| for_us && *every > 0);
        Supervisor { socket, watchdog: watchdog.map(Duration::from_micros) }
    }

    pub(super) fn ready(&self) {
        self.tell("READY=1\nSTATUS=serving");
    }

    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        // `Type=notify-reload` pairs a reload with its signal by this time.
        let now_us = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}\nSTATUS=reading files again"));
    }

    pub(super) fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=finishing requests in flight");
    }

    /// Gives a sign of life as often as asked, from a thread of its own, while every worker runs.
    pub(super) fn watch(&self, workers: Pulse) -> io::Result<WatchdogEnds> {
        let (ends, ended) = mpsc::channel::<()>();
        if let (Some(every), Some(_)) = (self.watchdog, &self.socket) {
            let supervisor = self.clone();
            // Twice as often as asked, and half of the time is for the workers to answer.
            let (pause, within) = (every / 4, every / 4);
            std::thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
                while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                    match workers.silent(within) {
                        0 => supervisor.tell("WATCHDOG=1"),
                        workers => tracing::error!(
                            workers,
                            "workers hang: they ran nothing for {within:?}, so the supervisor gets no sign of life"
                        ),
                    }
                }
            })?;
        }
        Ok(WatchdogEnds(ends))
    }

    fn tell(&self, message: &str) {
        if let Some((socket, supervisor)) = self.socket.as_deref()
            && let Err(error) = socket.send_to_addr(message.as_bytes(), supervisor)
        {
            tracing::debug!(%error, "the supervisor does not listen");
        }
    }
}

/// Ends the signs of life when dropped.
pub(super) struct WatchdogEnds(#[expect(dead_code, reason = "it acts when dropped")] mpsc::Sender<()>);

fn open(name: &OsString) -> io::Result<(UnixDatagram, SocketAddr)> {
    let socket = UnixDatagram::unbound()?;
    // A full queue of the supervisor must not hold us.
    socket.set_nonblocking(true)?;
    let address = match name.as_bytes().strip_prefix(b"@") {
        #[cfg(target_os = "linux")]
        Some(name) => <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    Ok((socket, address))
}
