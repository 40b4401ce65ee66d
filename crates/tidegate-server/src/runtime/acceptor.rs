//! The thread that accepts connections and assigns them to workers; it never reads from one.

use super::load::{Loads, Place};
use super::occasional::Occasional;
use super::worker::{Dealt, Queue};
use super::{Listener, WorkerId};
use socket2::TcpKeepalive;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The wait after a failed accept: a lack of file descriptors lasts for a while, and retrying at once would take a core from
/// the workers.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The least time between two log lines of the same kind.
const LOG_PAUSE: Duration = Duration::from_secs(60);

/// A silent peer is probed after this long, then this often; three silent probes close the connection.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;

/// The system closes a connection whose peer has not acknowledged data for this long (for example because it stopped
/// reading), so a stalled reader cannot hold a place for ever.
const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(30);

pub(super) fn spawn(
    listeners: Vec<Listener>,
    queues: Vec<Queue>,
    loads: Arc<Loads>,
    stopping: watch::Receiver<()>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let guard = runtime.enter();
    let sockets = listeners
        .into_iter()
        .map(|listener| {
            listener.socket.set_nonblocking(true)?;
            Ok((listener.name, TcpListener::from_std(listener.socket)?))
        })
        .collect::<io::Result<Vec<_>>>()?;
    drop(guard);

    std::thread::Builder::new().name("tidegate-accept".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let mut accepting = tokio::task::JoinSet::new();
            for (index, (name, socket)) in sockets.into_iter().enumerate() {
                let dealer = Dealer {
                    name,
                    index,
                    queues: queues.clone(),
                    loads: Arc::clone(&loads),
                    refusals: Occasional::every(LOG_PAUSE),
                    failures: Occasional::every(LOG_PAUSE),
                };
                let mut stopping = stopping.clone();
                accepting.spawn(async move {
                    tokio::select! {
                        // An error means that the sender was dropped, which is the signal to stop.
                        _ = stopping.changed() => {}
                        () = dealer.accept_all(socket) => {}
                    }
                });
            }
            drop(queues);
            accepting.join_all().await;
        });
    })
}

struct Dealer {
    name: &'static str,
    index: usize,
    queues: Vec<Queue>,
    loads: Arc<Loads>,
    /// Refused connections, and failed accepts: a flood of them is one log line.
    refusals: Occasional,
    failures: Occasional,
}

impl Dealer {
    async fn accept_all(mut self, socket: TcpListener) {
        loop {
            match socket.accept().await {
                Ok((stream, peer)) => self.deal(stream, peer).await,
                Err(error) if is_about_one_connection(&error) => {}
                Err(error) => {
                    if let Some(times) = self.failures.happened() {
                        tracing::error!(listener = self.name, %error, times, "cannot accept connections");
                    }
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    async fn deal(&mut self, stream: TcpStream, peer: SocketAddr) {
        let Some((worker, place)) = self.place_for(peer).await else {
            self.loads.count_refused(self.index);
            if let Some(connections) = self.refusals.happened() {
                let address = peer.ip();
                tracing::warn!(listener = self.name, connections, %address,
                    "too many connections: closing new ones at once");
            }
            return;
        };
        // If the peer is already gone this fails; the worker would find out a moment later.
        let Ok(stream) = prepare(stream) else { return };
        // The queue is as long as there are places, so it may be closed but never full.
        let _ = self.queues[worker.0].try_send(Dealt { stream, peer, place });
    }
}

impl Dealer {
    /// A place for one more connection. If others are leaving, waits for them; the next connections wait in the system's
    /// queue meanwhile.
    async fn place_for(&self, peer: SocketAddr) -> Option<(WorkerId, Place)> {
        for _ in 0..LEAVE_LOOKS {
            let place = self.loads.take_place(self.index, peer.ip());
            if place.is_some() || !self.loads.some_are_leaving(self.index) {
                return place;
            }
            tokio::time::sleep(LEAVE_PAUSE).await;
        }
        None
    }
}

/// How often, and how many times, to check whether one has left.
const LEAVE_PAUSE: Duration = Duration::from_millis(1);
const LEAVE_LOOKS: usize = 200;

/// Detaches the socket from this thread's runtime: from here on it belongs to a worker's.
fn prepare(stream: TcpStream) -> io::Result<std::net::TcpStream> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(&stream);
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY).with_retries(PROBES);
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_LIMIT))?;
    stream.into_std()
}

fn is_about_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
