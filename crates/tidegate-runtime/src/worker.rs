//! One core's thread: a single-threaded runtime that serves the connections assigned to it.

use super::load::{MOST_LEAVING, Place};
use super::silence::Watch;
use super::{Connection, Drain, MakeProtocol, Protocol, Settings, WarmUp, WorkerId};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_access::{ServerTls, Stream};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// A connection on its way from the acceptor to a worker.
pub(super) struct Dealt {
    pub(super) stream: std::net::TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) place: Place,
}

pub(super) type Queue = mpsc::Sender<Dealt>;

/// The number of task polls before I/O and timers are checked. One poll may answer a hundred requests: many of them in a row
/// would leave the store's answers unread for longer than their requests wait.
const EVENT_INTERVAL: u32 = 8;

pub(super) struct Handle {
    queue: Queue,
    runtime: tokio::runtime::Handle,
    thread: JoinHandle<usize>,
}

impl Handle {
    pub(super) fn queue(&self) -> Queue {
        self.queue.clone()
    }

    pub(super) fn busy(&self) -> Duration {
        self.runtime.metrics().worker_total_busy_duration(0)
    }

    pub(super) fn runtime(&self) -> tokio::runtime::Handle {
        self.runtime.clone()
    }

    /// Closes this end of the queue; the thread then ends, and returns how many connections it closed.
    pub(super) fn close(self) -> JoinHandle<usize> {
        self.thread
    }
}

pub(super) fn spawn(
    id: WorkerId,
    makers: Vec<(MakeProtocol, Option<Arc<ServerTls>>)>,
    settings: &Settings,
    (warm_up, warm): (WarmUp, std::sync::mpsc::Sender<()>),
) -> io::Result<Handle> {
    // Every assigned connection holds a place, or is leaving, so no listener can have more than this many waiting.
    let most = (settings.max_connections.get() + MOST_LEAVING).saturating_mul(makers.len().max(1));
    let (queue, dealt) = mpsc::channel(most.min(Semaphore::MAX_PERMITS));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().event_interval(EVENT_INTERVAL).build()?;
    let handle = runtime.handle().clone();
    let (deadline, handshake_timeout) = (settings.drain_deadline, settings.handshake_timeout);
    let thread = std::thread::Builder::new().name(format!("tidegate-{}", id.0)).spawn(move || {
        let cut = runtime.block_on(async move {
            warm_up(id).await;
            drop(warm);
            let listeners =
                makers.into_iter().map(|(make, tls)| ListenerProtocol { protocol: make(id), tls }).collect();
            Worker::new(listeners, handshake_timeout).run(dealt, deadline).await
        });
        // Tasks of closed connections must not hold the thread.
        runtime.shutdown_background();
        cut
    })?;
    Ok(Handle { queue, runtime: handle, thread })
}

/// The protocol of a listener.
struct ListenerProtocol {
    protocol: Arc<dyn Protocol>,
    tls: Option<Arc<ServerTls>>,
}

struct Worker {
    listeners: Vec<ListenerProtocol>,
    handshake_timeout: Duration,
    watch: Watch,
    serving: JoinSet<()>,
}

impl Worker {
    fn new(listeners: Vec<ListenerProtocol>, handshake_timeout: Duration) -> Self {
        let watch = Watch::new(listeners.iter().map(|spoken| spoken.protocol.idle_timeouts()));
        Worker { listeners, handshake_timeout, watch, serving: JoinSet::new() }
    }

    async fn run(mut self, mut dealt: mpsc::Receiver<Dealt>, deadline: Duration) -> usize {
        let mut looks = tokio::time::interval(self.watch.every());
        // A worker that was stalled must not count the missed scans as time without a request.
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                next = dealt.recv() => match next {
                    Some(next) => self.serve(next),
                    None => break,
                },
                Some(ended) = self.serving.join_next() => report(ended),
                _ = looks.tick() => self.watch.look(),
            }
        }
        self.watch.ask_all_to_leave();
        let finish = async {
            while let Some(ended) = self.serving.join_next().await {
                report(ended);
            }
        };
        let _ = tokio::time::timeout(deadline, finish).await;
        self.serving.len()
    }

    fn serve(&mut self, Dealt { stream, peer, place }: Dealt) {
        let socket = match TcpStream::from_std(stream) {
            Ok(socket) => socket,
            Err(error) => return tracing::warn!(%peer, %error, "cannot register a connection"),
        };
        let ListenerProtocol { protocol, tls } = &self.listeners[place.listener()];
        let (protocol, seat) = (Arc::clone(protocol), Arc::clone(place.seat()));
        let drain = Drain::of(Arc::clone(&seat));
        self.watch.add(Arc::clone(&seat), protocol.idle_timeouts());
        let Some(tls) = tls.clone() else {
            let connection = Connection { stream: Stream::Plain(socket), peer, drain, seat };
            self.serving.spawn(async move {
                let _place = place;
                protocol.serve(connection).await;
            });
            return;
        };
        let within = self.handshake_timeout;
        self.serving.spawn(async move {
            let _place = place;
            let shaken = tokio::select! {
                shaken = tokio::time::timeout(within, tls.accept(socket)) => shaken,
                () = drain.clone().requested() => return,
            };
            match shaken {
                Ok(Ok(stream)) => protocol.serve(Connection { stream, peer, drain, seat }).await,
                Ok(Err(error)) => tracing::debug!(%peer, %error, "closed: no TLS"),
                Err(_) => tracing::debug!(%peer, "closed: TLS took too long"),
            }
        });
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's handler panicked; the connection is closed");
    }
}
