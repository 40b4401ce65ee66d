//! Threads and sockets of the data plane: one worker thread per core, and one acceptor thread.
//!
//! Each worker runs a single-threaded tokio runtime and serves its connections alone: a request is read, decided and
//! answered on one core. One acceptor assigns every new connection to the worker with the fewest of that listener, because
//! Envoy opens few connections and keeps them: `SO_REUSEPORT` would hash them, perhaps all to the same core.
//!
//! A [`Protocol`] handles what is spoken on a connection; nothing here knows HTTP, gRPC or RESP. Nothing here installs
//! signal handlers or ends the process: the owner of a [`DataPlane`] calls [`DataPlane::drain`].

mod acceptor;
pub mod connection;
mod drain;
mod load;
mod memory;
mod occasional;
mod pulse;
mod seat;
mod silence;
mod worker;

pub use drain::Drain;
pub use load::{ListenerLoad, Loads, MOST_LEAVING};
pub use memory::{Held, HeldAnswer};
pub use occasional::Occasional;
pub use pulse::Pulse;
pub use seat::{Seat, UnderWay};

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_access::{ServerTls, Stream};
use tokio::sync::watch;

/// Serves connections.
///
/// There is one instance per worker and listener, so that it may own per-core state (its connections to Redis, its
/// coalescers).
pub trait Protocol: Send + Sync + 'static {
    /// Serves one connection to its end.
    ///
    /// When [`Connection::drain`] asks, finish the requests in progress, tell the peer to go elsewhere, and return.
    /// Connections that remain at the deadline are dropped.
    fn serve(&self, connection: Connection) -> Serving;

    /// How long a connection may be silent.
    fn idle_timeouts(&self) -> IdleTimeouts {
        IdleTimeouts::ENDLESS
    }
}

/// How long a connection may be silent before it is asked to finish; up to an eighth longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleTimeouts {
    /// Until its first request (after the login, if one is needed).
    pub first: Duration,
    /// Between further requests.
    pub idle: Duration,
    /// Whether that applies with requests in flight too, because none takes so long.
    pub even_under_way: bool,
}

impl IdleTimeouts {
    /// Without a limit.
    pub const ENDLESS: IdleTimeouts =
        IdleTimeouts { first: Duration::MAX, idle: Duration::MAX, even_under_way: false };
}

/// A connection being served, until it ends.
pub type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Creates the [`Protocol`] of one worker; called on that worker's thread, inside its runtime.
pub type MakeProtocol = Arc<dyn Fn(WorkerId) -> Arc<dyn Protocol> + Send + Sync>;

/// Work of one worker before it serves, inside its runtime.
pub type WarmUp = Arc<dyn Fn(WorkerId) -> Serving + Send + Sync>;

/// An accepted connection: `TCP_NODELAY` and keep-alive probes are set, the TLS handshake is done, nothing has been read.
#[derive(Debug)]
pub struct Connection {
    /// Its stream, on a socket that is registered with this worker's runtime.
    pub stream: Stream,
    /// The other end.
    pub peer: SocketAddr,
    /// Signals when to finish.
    pub drain: Drain,
    /// Tracks whether a request is in flight: without one, it may have to make room for another connection.
    pub seat: Arc<Seat>,
}

/// A worker's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerId(pub usize);

/// A bound socket and its protocol.
pub struct Listener {
    name: &'static str,
    socket: std::net::TcpListener,
    make: MakeProtocol,
    tls: Option<Arc<ServerTls>>,
}

impl Listener {
    /// Binds `address`; port 0 takes a free one, which [`DataPlane::addresses`] reports.
    pub fn bind(
        name: &'static str,
        address: SocketAddr,
        make: impl Fn(WorkerId) -> Arc<dyn Protocol> + Send + Sync + 'static,
    ) -> Result<Self, RuntimeError> {
        let socket = std::net::TcpListener::bind(address).map_err(|source| RuntimeError::Bind {
            name,
            address,
            source,
        })?;
        Ok(Self { name, socket, make: Arc::new(make), tls: None })
    }

    /// Serves over TLS, if given.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Arc<ServerTls>>) -> Self {
        self.tls = tls;
        self
    }
}

/// The size of a data plane.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Worker threads; by default one per core this process may use.
    pub workers: NonZeroUsize,
    /// Open connections per listener. A further one replaces an idle one, or is closed at once.
    pub max_connections: NonZeroUsize,
    /// Open connections of one address on one listener, if that is less than four times the free ones.
    pub max_connections_per_peer: Option<NonZeroUsize>,
    /// Bytes that the incomplete requests and unread answers of one connection may hold.
    pub connection_memory: usize,
    /// The same for all connections of one worker.
    pub worker_memory: usize,
    /// The longest TLS handshake.
    pub handshake_timeout: Duration,
    /// How long [`DataPlane::drain`] waits for connections to finish.
    pub drain_deadline: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            max_connections: DEFAULT_MAX_CONNECTIONS,
            max_connections_per_peer: None,
            connection_memory: DEFAULT_CONNECTION_MEMORY,
            worker_memory: DEFAULT_WORKER_MEMORY,
            handshake_timeout: DEFAULT_HANDSHAKE_TIMEOUT,
            drain_deadline: DEFAULT_DRAIN_DEADLINE,
        }
    }
}

/// Enough for a fleet of sidecars; about 40 KB of buffers each at worst, so half a gigabyte at the bound.
pub const DEFAULT_MAX_CONNECTIONS: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

/// Sixteen incomplete requests of the largest size.
pub const DEFAULT_CONNECTION_MEMORY: usize = 4 << 20;

/// The same for 16 connections at their limit.
pub const DEFAULT_WORKER_MEMORY: usize = 64 << 20;

/// Two round trips and some arithmetic, on a bad line.
pub const DEFAULT_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Shorter than the 30 s after which Kubernetes kills a pod.
pub const DEFAULT_DRAIN_DEADLINE: Duration = Duration::from_secs(10);

/// A running data plane. Dropping it starts a drain without waiting for it.
pub struct DataPlane {
    addresses: Vec<(&'static str, SocketAddr)>,
    loads: Arc<Loads>,
    stop: watch::Sender<()>,
    acceptor: JoinHandle<()>,
    workers: Vec<worker::Handle>,
}

impl DataPlane {
    /// Starts the workers, then accepts on every listener.
    pub fn start(settings: &Settings, listeners: Vec<Listener>) -> Result<Self, RuntimeError> {
        DataPlane::start_warm(settings, listeners, Arc::new(|_| Box::pin(std::future::ready(()))))
    }

    /// Like [`DataPlane::start`], after `warm_up` has ended on every worker; `warm_up` bounds its own time. Connections that
    /// come meanwhile wait to be accepted.
    pub fn start_warm(
        settings: &Settings,
        listeners: Vec<Listener>,
        warm_up: WarmUp,
    ) -> Result<Self, RuntimeError> {
        let addresses = listeners
            .iter()
            .map(|listener| Ok((listener.name, listener.socket.local_addr()?)))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|source| RuntimeError::Start { what: "listener", source })?;
        let names = listeners.iter().map(|listener| listener.name).collect();
        let loads = Arc::new(Loads::new(names, settings));
        let (stop, stopping) = watch::channel(());

        let makers: Vec<_> =
            listeners.iter().map(|listener| (Arc::clone(&listener.make), listener.tls.clone())).collect();
        let (warm, all_warm) = std::sync::mpsc::channel();
        let workers = (0..settings.workers.get())
            .map(|id| worker::spawn(WorkerId(id), makers.clone(), settings, (warm_up.clone(), warm.clone())))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|source| RuntimeError::Start { what: "worker", source })?;
        // Nothing is ever sent: the last worker to finish its warm-up drops the last sender.
        drop(warm);
        let _ = all_warm.recv();
        let queues = workers.iter().map(worker::Handle::queue).collect();
        let acceptor = acceptor::spawn(listeners, queues, Arc::clone(&loads), stopping)
            .map_err(|source| RuntimeError::Start { what: "acceptor", source })?;
        Ok(Self { addresses, loads, stop, acceptor, workers })
    }

    /// The bound address of each listener, by name, in the order given.
    #[must_use]
    pub fn addresses(&self) -> &[(&'static str, SocketAddr)] {
        &self.addresses
    }

    /// The connection counts of each listener, for metrics; cheap to clone, valid after a drain.
    #[must_use]
    pub fn loads(&self) -> Arc<Loads> {
        Arc::clone(&self.loads)
    }

    /// How long each worker has been busy since it started, for `worker_busy_ratio`.
    #[must_use]
    pub fn busy(&self) -> Vec<Duration> {
        self.workers.iter().map(worker::Handle::busy).collect()
    }

    /// Tells whether every worker still runs; valid until the drain ends.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        Pulse::of(self.workers.iter().map(worker::Handle::runtime).collect())
    }

    /// Stops accepting, lets connections finish until the deadline, and returns how many were closed then.
    #[must_use]
    pub fn drain(self) -> Drained {
        drop(self.stop);
        join(self.acceptor);
        // The acceptor and this handle held the only senders: with both gone each worker sees its queue end, and asks its
        // connections to finish.
        let threads: Vec<_> = self.workers.into_iter().map(worker::Handle::close).collect();
        Drained { cut: threads.into_iter().map(join).sum() }
    }
}

/// The result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that had not finished at the deadline.
    pub cut: usize,
}

fn join<T>(thread: JoinHandle<T>) -> T {
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Why the data plane did not start.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The address is in use, or not local.
    #[error("cannot listen for {name} on {address}")]
    Bind {
        /// The listener.
        name: &'static str,
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The system refused a thread or a runtime.
    #[error("cannot start a data plane {what}")]
    Start {
        /// Listener, worker or acceptor.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}
