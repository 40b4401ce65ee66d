//! The admin listener: a separate socket, on a runtime that the data plane does not use.
//!
//! It holds few connections, allows each of them little time to send a request, and closes an idle one when it is full and a
//! new one arrives. Beyond loopback it requires a token, or a client certificate. It knows nothing of what is requested.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper::service::Service as _;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tidegate_access::{ServerTls, Stream, TokenSource};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::api::Peer;
use crate::control::Control;
use crate::exposition::Exposition;
use crate::pages;

/// The most connections. A further one replaces an idle one, or waits in the system's queue.
const MOST_CONNECTIONS: usize = 128;

/// The longest TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest wait for a request's head, including the idle time before it. Longer than Prometheus' usual interval of 15 s,
/// so that its connection is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
const MOST_HEAD_BYTES: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;

/// The system closes a connection whose peer has acknowledged no data for this long.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);

/// How long connections have to finish at shutdown.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The wait after a failed accept: a lack of file descriptors lasts for a while.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A bound admin listener.
#[derive(Debug)]
pub struct Admin {
    socket: std::net::TcpListener,
    address: SocketAddr,
    tls: Option<Arc<ServerTls>>,
    tokens: Option<Arc<TokenSource>>,
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
            Ok(Admin { address: socket.local_addr()?, socket, tls: None, tokens: None })
        };
        bind().map_err(|source| BindError { address, source })
    }

    /// Serves over TLS, if given.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Arc<ServerTls>>) -> Self {
        self.tls = tls;
        self
    }

    /// Requires one of these tokens for `/metrics` beyond loopback.
    #[must_use]
    pub fn with_tokens(mut self, tokens: Option<Arc<TokenSource>>) -> Self {
        self.tokens = tokens;
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
        exposition: impl Into<Arc<Exposition>>,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        self.serve_router(pages::router(exposition.into(), None), shutdown).await
    }

    /// Like [`Admin::serve`], with the admin API of `control`.
    ///
    /// # Errors
    /// The runtime cannot register the socket.
    pub async fn serve_with(
        self,
        exposition: impl Into<Arc<Exposition>>,
        control: Arc<Control>,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        self.serve_router(pages::router(exposition.into(), Some(control)), shutdown).await
    }

    async fn serve_router(self, router: Router, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let socket = TcpListener::from_std(self.socket)?;
        let (stop, stopping) = watch::channel(());
        let tokens = self.tokens.filter(|_| !self.address.ip().is_loopback());
        let router = pages::guarded(router, tokens);
        let mut serving = JoinSet::new();
        let mut open: VecDeque<Arc<Seat>> = VecDeque::new();
        let (mut shutdown, mut failing) = (pin!(shutdown), false);
        loop {
            open.retain(|seat| Arc::strong_count(seat) > 1);
            tokio::select! {
                () = shutdown.as_mut() => break,
                Some(_) = serving.join_next() => {}
                accepted = socket.accept(), if has_room(&mut open) => match accepted {
                    Ok((stream, peer)) => {
                        failing = false;
                        let seat = Arc::new(Seat::default());
                        open.push_back(Arc::clone(&seat));
                        let connection = Accepted { stream, seat, tls: self.tls.clone() };
                        let router = router.clone().layer(Extension(Peer(peer)));
                        serving.spawn(serve_connection(connection, router, stopping.clone()));
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
        drop(socket);
        drop(stop);
        let finish = async { while serving.join_next().await.is_some() {} };
        // Dropping the set aborts the remaining ones.
        let _ = tokio::time::timeout(STOP_TIMEOUT, finish).await;
        Ok(())
    }
}

/// One open connection.
#[derive(Debug, Default)]
struct Seat {
    busy: AtomicBool,
    leave: Notify,
}

/// Whether one more connection is allowed; if there are too many, asks the oldest idle one to leave.
fn has_room(open: &mut VecDeque<Arc<Seat>>) -> bool {
    if open.len() < MOST_CONNECTIONS {
        return true;
    }
    let idle = open.iter().position(|seat| !seat.busy.load(Ordering::Relaxed));
    match idle.and_then(|at| open.remove(at)) {
        Some(seat) => {
            seat.leave.notify_one();
            true
        }
        None => false,
    }
}

struct Accepted {
    stream: TcpStream,
    seat: Arc<Seat>,
    tls: Option<Arc<ServerTls>>,
}

/// Serves one connection until it ends, is too slow, must make room, or `stopping` closes.
async fn serve_connection(accepted: Accepted, router: Router, mut stopping: watch::Receiver<()>) {
    let Accepted { stream, seat, tls } = accepted;
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
        let (router, busy) = (TowerToHyperService::new(router), Arc::clone(&seat));
        let service = hyper::service::service_fn(move |request| {
            let (answer, busy) = (router.call(request), Arc::clone(&busy));
            busy.busy.store(true, Ordering::Relaxed);
            async move {
                let answer = answer.await;
                busy.busy.store(false, Ordering::Relaxed);
                answer
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_header_size(MOST_HEAD_BYTES)
            .max_headers(MOST_HEADERS)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            _ = stopping.changed() => {
                connection.as_mut().graceful_shutdown();
                // An incomplete head is not a request.
                if !seat.busy.load(Ordering::Relaxed) {
                    return;
                }
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "an admin connection ended with an error");
        }
    };
    tokio::select! {
        () = serve => {}
        () = seat.leave.notified() => tracing::debug!("an idle admin connection made room for another"),
    }
}
