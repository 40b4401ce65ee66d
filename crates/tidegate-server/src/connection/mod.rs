//! Serves HTTP/1.1 and HTTP/2 on one accepted connection, within stated limits.
//!
//! What a request means is the service's business. This module owns what a hostile or slow peer could abuse: the time
//! until a request's head is there, header sizes, streams per connection, the size and time of a body.
//!
//! HTTP/2 pings are not used: they read the clock at every frame, which took 4 % of a gRPC request. The system's
//! keep-alive probes, set when a connection is accepted, find dead peers for nothing.

mod body;
mod prefix;
mod streams;

pub use body::{BodyError, read_body};

use crate::runtime::{Connection, Drain};
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use prefix::{Prefixed, Version};
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;
use streams::Streams;
use tokio::io::{AsyncRead, AsyncWrite};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What one connection may take.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// How long the first bytes, and on HTTP/1 each request's head (idle time before it included), may take.
    pub head_timeout: Duration,
    /// The size of a request's head.
    pub max_head_bytes: u32,
    /// Headers in one HTTP/1 request.
    pub max_headers: usize,
    /// Requests at once on one HTTP/2 connection.
    pub max_streams: u32,
    /// The size of a request's body.
    pub max_body_bytes: usize,
    /// How long a body may take to arrive once its head is there.
    pub body_timeout: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            head_timeout: Duration::from_secs(60),
            max_head_bytes: 16 * 1024,
            max_headers: 64,
            max_streams: 1024,
            max_body_bytes: 256 * 1024,
            body_timeout: Duration::from_secs(10),
        }
    }
}

/// Which versions of HTTP a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// HTTP/1.1, or HTTP/2 where the client begins with it.
    Http1And2,
    /// HTTP/2 alone, as gRPC needs.
    Http2Only,
}

/// Serves `service` on one connection until it ends, the peer is too slow, or a drain has let it finish.
pub async fn serve<S, B>(connection: Connection, speaks: Speaks, limits: HttpLimits, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let Connection { stream, peer, drain } = connection;
    serve_stream(stream, peer, drain, speaks, limits, service).await;
}

/// The same on any stream, such as one that was decrypted.
pub(crate) async fn serve_stream<T, S, B>(
    stream: T,
    peer: SocketAddr,
    drain: Drain,
    speaks: Speaks,
    limits: HttpLimits,
    service: S,
) where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let detected = tokio::time::timeout(limits.head_timeout, prefix::detect(stream)).await;
    let Ok(Ok((version, stream))) = detected else {
        return tracing::debug!(%peer, "closed: no request came");
    };
    let io = TokioIo::new(stream);
    let served = match (version, speaks) {
        (Version::Http2, _) => serve_http2(io, &limits, service, drain).await,
        (Version::Http1, Speaks::Http1And2) => serve_http1(io, &limits, service, drain).await,
        (Version::Http1, Speaks::Http2Only) => {
            return tracing::debug!(%peer, "closed: not HTTP/2");
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "connection ended with an error");
    }
}

async fn serve_http1<T, S, B>(
    io: TokioIo<Prefixed<T>>,
    limits: &HttpLimits,
    service: S,
    drain: Drain,
) -> hyper::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_headers(limits.max_headers)
        .max_header_size(limits.max_head_bytes as usize)
        .serve_connection(io, service)
        .with_upgrades();
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        ended = connection.as_mut() => return ended,
        () = drain.requested() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

async fn serve_http2<T, S, B>(
    io: TokioIo<Prefixed<T>>,
    limits: &HttpLimits,
    service: S,
    drain: Drain,
) -> hyper::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let streams = Streams::default();
    let connection = http2::Builder::new(streams.clone())
        .timer(TokioTimer::new())
        .max_header_list_size(limits.max_head_bytes)
        .max_concurrent_streams(limits.max_streams)
        .serve_connection(io, service);
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        ended = poll_fn(|cx| streams.drive(connection.as_mut(), cx)) => return ended,
        () = drain.requested() => connection.as_mut().graceful_shutdown(),
    }
    poll_fn(|cx| streams.drive(connection.as_mut(), cx)).await
}
