//! The admin listener: a socket of its own, on a runtime that is not the data plane's.
//!
//! It holds few connections, gives none of them long to say what it wants, and knows nothing of what is asked.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::exposition::Exposition;
use crate::pages;

/// Connections at once; further ones wait in the system's queue until one of these ends.
const MOST_CONNECTIONS: usize = 128;

/// How long a request's head may take, the idle time before it included. Longer than Prometheus' usual interval of
/// 15 s, so that its connection is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
const MOST_HEAD_BYTES: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;

/// After this long without a sign that the peer reads what we sent, the system closes the connection.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);

/// How long connections may take to finish once asked to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait after a failed accept: out of file descriptors stays so for a while.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A bound admin listener.
#[derive(Debug)]
pub struct Admin {
    socket: std::net::TcpListener,
    address: SocketAddr,
}

/// The address is taken, or not ours.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for admin on {address}")]
pub struct BindError {
    /// What was asked for.
    pub address: SocketAddr,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

impl Admin {
    /// Binds `address`; port 0 takes a free one, which [`Admin::address`] tells. Whoever can reach it may read: unless
    /// there is a reason, that should be loopback.
    ///
    /// # Errors
    /// When the address is taken, or not ours.
    pub fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let bind = || {
            let socket = std::net::TcpListener::bind(address)?;
            socket.set_nonblocking(true)?;
            Ok(Admin { address: socket.local_addr()?, socket })
        };
        bind().map_err(|source| BindError { address, source })
    }

    /// Where it is bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` completes, then lets requests under way finish. To be run on a runtime that the data
    /// plane does not use, with time and I/O enabled.
    ///
    /// # Errors
    /// When the runtime cannot take the socket.
    pub async fn serve(self, exposition: Exposition, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let socket = TcpListener::from_std(self.socket)?;
        let router = pages::router(exposition);
        let (stop, stopping) = watch::channel(());
        let mut serving = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                () = shutdown.as_mut() => break,
                Some(_) = serving.join_next() => {}
                accepted = socket.accept(), if serving.len() < MOST_CONNECTIONS => match accepted {
                    Ok((stream, _)) => {
                        serving.spawn(serve_connection(stream, router.clone(), stopping.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept an admin connection");
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                },
            }
        }
        drop(socket);
        drop(stop);
        let finish = async { while serving.join_next().await.is_some() {} };
        // Those that are left are dropped with the set.
        let _ = tokio::time::timeout(STOP_TIMEOUT, finish).await;
        Ok(())
    }
}

/// Serves one connection until it ends, is too slow, or `stopping` closes.
async fn serve_connection(stream: TcpStream, router: Router, mut stopping: watch::Receiver<()>) {
    // A peer that is gone already shows below.
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(UNREAD_TIMEOUT));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_header_size(MOST_HEAD_BYTES)
        .max_headers(MOST_HEADERS)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopping.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an admin connection ended with an error");
    }
}
