//! The admin listener: a separate socket, on a runtime that the data plane does not use.
//!
//! It holds few connections, of one address at most four times what is free, and allows each of them little time to send a
//! request. Where there is no room, a connection that waits for its client leaves for a new one. It knows nothing of what is
//! requested.

mod seat;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service as _;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tidegate_access::{
    Answering, Guesses, HalfClosed, PeerGroup, Register, Room, ServerTls, Stream, TokenSource,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api::{Peer, Scheme};
use crate::control::ControlPlane;
use crate::edge::{self, Edge};
use crate::pages;
use seat::{Awaited, Seat};
use tidegate_metrics::Registry;

/// The most connections. A further one replaces one that waits for its client, or is closed at once.
const MOST_CONNECTIONS: usize = 128;

/// The longest TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest wait for a request's head, including the idle time before it. Longer than Prometheus' usual interval of 15 s,
/// so that its connection is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
const MOST_HEAD_BYTES: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;
/// Bytes that a connection may buffer in each direction: hyper's default is 400 KiB, and unfinished uploads fill them.
const BUFFER_BYTES: usize = 64 * 1024;

/// The system closes a connection whose peer has acknowledged no data for this long.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);

/// How long connections have to finish at shutdown.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The wait after a failed accept: a lack of file descriptors lasts for a while.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The least time between two log lines about closed connections.
const LOG_PAUSE: Duration = Duration::from_secs(60);

/// A bound admin listener.
#[derive(Debug)]
pub struct Admin {
    socket: std::net::TcpListener,
    address: SocketAddr,
    tls: Option<Arc<ServerTls>>,
    tokens: Option<Arc<TokenSource>>,
    hosts: Vec<String>,
}

/// The address is in use, or not local.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for admin on {address}")]
pub struct BindError {
    /// The requested address.
    pub address: SocketAddr,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

impl Admin {
    /// Binds `address`; port 0 picks a free one, see [`Admin::address`]. Every client that can reach it may read, so it
    /// should be loopback unless there is a reason.
    ///
    /// # Errors
    /// The address is in use, or not local.
    pub fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let bind = || {
            let socket = std::net::TcpListener::bind(address)?;
            socket.set_nonblocking(true)?;
            Ok(Admin { address: socket.local_addr()?, socket, tls: None, tokens: None, hosts: Vec::new() })
        };
        bind().map_err(|source| BindError { address, source })
    }

    /// Serves over TLS, if given.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Arc<ServerTls>>) -> Self {
        self.tls = tls;
        self
    }

    /// Requires one of these tokens for `/metrics` and `/rlconfig` beyond loopback.
    #[must_use]
    pub fn with_tokens(mut self, tokens: Option<Arc<TokenSource>>) -> Self {
        self.tokens = tokens;
        self
    }

    /// Answers to these names too. On loopback only addresses and `localhost` are answered otherwise.
    #[must_use]
    pub fn with_hosts(mut self, hosts: Vec<String>) -> Self {
        self.hosts = hosts;
        self
    }

    /// The bound address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` completes, then lets requests in flight finish. Run it on a runtime that the data plane does
    /// not use, with time and I/O enabled.
    ///
    /// # Errors
    /// The runtime cannot register the socket.
    pub async fn serve(
        self,
        registry: impl Into<Arc<Registry>>,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let guesses = Arc::new(Guesses::default());
        self.serve_router(pages::router(registry.into(), None), guesses, shutdown).await
    }

    /// Like [`Admin::serve`], with the admin API of `control`.
    ///
    /// # Errors
    /// The runtime cannot register the socket.
    pub async fn serve_with(
        self,
        registry: impl Into<Arc<Registry>>,
        control: Arc<ControlPlane>,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let guesses = Arc::clone(&control.access.guesses);
        self.serve_router(pages::router(registry.into(), Some(control)), guesses, shutdown).await
    }

    async fn serve_router(
        self,
        router: Router,
        guesses: Arc<Guesses>,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let socket = TcpListener::from_std(self.socket)?;
        let (stop, stopping) = watch::channel(());
        let edge = Edge::new(self.address, self.tls.as_ref(), self.tokens, self.hosts, guesses);
        let mut connections = Connections {
            router: edge::passed(router, edge),
            tls: self.tls,
            register: Arc::new(Mutex::new(Register::new(MOST_CONNECTIONS, MOST_CONNECTIONS))),
            stopping,
            refusals: None,
        };
        let mut serving = JoinSet::new();
        let (mut shutdown, mut failing) = (pin!(shutdown), false);
        loop {
            tokio::select! {
                () = shutdown.as_mut() => break,
                Some(_) = serving.join_next() => {}
                accepted = socket.accept() => match accepted {
                    Ok((stream, peer)) => {
                        failing = false;
                        connections.take(&mut serving, stream, peer);
                    }
                    Err(error) => {
                        if !failing {
                            tracing::warn!(%error, "cannot accept admin connections");
                        }
                        failing = true;
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                },
            }
        }
        drop((socket, connections, stop));
        let finish = async { while serving.join_next().await.is_some() {} };
        // Dropping the set aborts the remaining ones.
        let _ = tokio::time::timeout(STOP_TIMEOUT, finish).await;
        Ok(())
    }
}

/// What every connection needs, and the register of those that are open.
struct Connections {
    router: Router,
    tls: Option<Arc<ServerTls>>,
    register: Arc<Mutex<Register<Seat>>>,
    stopping: watch::Receiver<()>,
    /// When a closed connection was last logged.
    refusals: Option<Instant>,
}

impl Connections {
    /// Serves a new connection if there is room for it, and closes it otherwise.
    fn take(&mut self, serving: &mut JoinSet<()>, stream: TcpStream, peer: SocketAddr) {
        let group = PeerGroup::of(peer.ip());
        let room = self.register.lock().make_room(group);
        match room {
            Room::Free => {}
            Room::InPlaceOf(seat) => seat.leave.notify_one(),
            Room::None => return self.refused(peer),
        }
        let seat = Seat::new(group);
        let at = self.register.lock().insert(Arc::clone(&seat));
        let place = SeatHold { register: Arc::clone(&self.register), at, seat };
        let connection = Accepted { stream, peer, place, tls: self.tls.clone() };
        serving.spawn(serve_connection(connection, self.router.clone(), self.stopping.clone()));
    }

    fn refused(&mut self, peer: SocketAddr) {
        let now = Instant::now();
        if self.refusals.is_none_or(|last| now - last >= LOG_PAUSE) {
            self.refusals = Some(now);
            tracing::warn!(address = %peer.ip(), "too many admin connections: closing new ones at once");
        }
    }
}

/// A connection in the register; dropping it frees its seat.
struct SeatHold {
    register: Arc<Mutex<Register<Seat>>>,
    at: usize,
    seat: Arc<Seat>,
}

impl Drop for SeatHold {
    fn drop(&mut self) {
        let mut register = self.register.lock();
        // Reliable because a seat is removed only under the register's lock, which is held here.
        if !self.seat.is_removed() {
            register.remove(self.at);
        }
    }
}

struct Accepted {
    stream: TcpStream,
    peer: SocketAddr,
    place: SeatHold,
    tls: Option<Arc<ServerTls>>,
}

/// Serves one connection until it ends, is too slow, must make room, or `stopping` closes.
async fn serve_connection(accepted: Accepted, router: Router, stopping: watch::Receiver<()>) {
    let Accepted { stream, peer, place, tls } = accepted;
    // If the peer is already gone, serving the connection fails below.
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(UNREAD_TIMEOUT));
    let serve = async {
        let stream = match tls {
            None => Stream::Plain(stream),
            Some(tls) => match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(_)) | Err(_) => return,
            },
        };
        if let Err(error) = serve_http(stream, peer, &place.seat, router, stopping).await {
            tracing::debug!(%error, "an admin connection ended with an error");
        }
    };
    tokio::select! {
        () = serve => {}
        () = place.seat.leave.notified() => {
            tracing::debug!("an admin connection that waited for its client made room for another");
        }
    }
}

async fn serve_http(
    stream: Stream,
    peer: SocketAddr,
    seat: &Arc<Seat>,
    router: Router,
    mut stopping: watch::Receiver<()>,
) -> hyper::Result<()> {
    let scheme = if matches!(stream, Stream::Plain(_)) { Scheme::Http } else { Scheme::Https };
    let (router, answering) = (TowerToHyperService::new(router), Arc::<Answering>::default());
    let (own, begun) = (Arc::clone(seat), Arc::clone(&answering));
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let in_flight = own.begin(&begun);
        request.extensions_mut().insert(Peer(peer));
        request.extensions_mut().insert(scheme);
        let answer = router.call(request.map(|body| Awaited { body, seat: Arc::clone(&own) }));
        async move { answer.await.map(|answer| in_flight.until_written(answer)) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_header_size(MOST_HEAD_BYTES)
        .max_headers(MOST_HEADERS)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(HalfClosed::new(stream, answering)), service);
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopping.changed() => {
            connection.as_mut().graceful_shutdown();
            // An incomplete head is not a request, and a stream of events has no end.
            if seat.will_finish() { connection.await } else { Ok(()) }
        }
    }
}
