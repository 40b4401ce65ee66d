//! Serves HTTP/1.1 and HTTP/2 on one accepted connection, within stated limits.
//!
//! The service decides what a request means. This module bounds what a hostile or slow peer could abuse: the time until a
//! request's head is complete, the time without any request, header sizes, streams per connection, the size and time of a
//! body, and how long a peer may take to leave when it is asked to.
//!
//! HTTP/2 pings are not used: they read the clock at every frame, which took 4 % of a gRPC request. The system's
//! keep-alive probes, set when a connection is accepted, find dead peers for nothing.

mod body;
mod charged;
mod counted;
mod prefix;
mod streams;

pub use body::{BodyError, read_body};

use crate::{Connection, Drain, IdleTimeouts, Seat};
use bytes::Bytes;
use charged::Charged;
use counted::Counted;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use prefix::{Prefixed, Version};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use streams::Streams;
use tidegate_access::{Answering, HalfClosed, Stream};

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Limits of one connection.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// The longest wait for the first request's head, and on HTTP/1 for each one's (including the idle time before it).
    pub head_timeout: Duration,
    /// How long an HTTP/2 connection may go without a request.
    pub idle_timeout: Duration,
    /// How long requests may take.
    pub requests: Requests,
    /// The size of a request's head.
    pub max_head_bytes: u32,
    /// Headers in one HTTP/1 request.
    pub max_headers: usize,
    /// Requests at once on one HTTP/2 connection.
    pub max_streams: u32,
    /// Body bytes that an HTTP/2 peer may send before they are read, over all its requests. h2 also allows half of it for
    /// the cost of tiny frames, so a thousand small requests at once need 512 KiB.
    pub window_bytes: u32,
    /// The size of a request's body.
    pub max_body_bytes: usize,
    /// How long a body may take to arrive once its head is there.
    pub body_timeout: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            head_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(5 * 60),
            requests: Requests::Short,
            max_head_bytes: 16 * 1024,
            max_headers: 64,
            max_streams: 1024,
            window_bytes: 1 << 20,
            max_body_bytes: 256 * 1024,
            body_timeout: Duration::from_secs(10),
        }
    }
}

impl HttpLimits {
    /// How long a connection with these limits may be silent.
    #[must_use]
    pub fn idle_timeouts(&self) -> IdleTimeouts {
        let even_under_way = self.requests == Requests::Short;
        IdleTimeouts { first: self.head_timeout, idle: self.idle_timeout, even_under_way }
    }
}

/// How long requests may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// Milliseconds: a connection without progress for too long is stuck, even with requests in flight.
    Short,
    /// As long as the upstream lets them: only a connection without requests is idle.
    Long,
}

/// A peer that was asked to leave has this long for each further sign of life.
const GOODBYE: Duration = Duration::from_millis(500);

/// Which versions of HTTP a listener accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersions {
    /// HTTP/1.1, or HTTP/2 where the client begins with it.
    Http1And2,
    /// HTTP/2 only, as gRPC needs. Answers have no `date`: its clients do not read it, and it costs 4 % of an answer.
    Http2Only,
}

/// Serves `service` on one connection until it ends, the peer is too slow, or a drain has let it finish.
pub async fn serve<S, B>(connection: Connection, versions: HttpVersions, limits: HttpLimits, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let Connection { stream, peer, drain, seat } = connection;
    let detected = tokio::select! {
        detected = tokio::time::timeout(limits.head_timeout, prefix::detect(stream)) => detected,
        () = drain.clone().requested() => return,
    };
    let Ok(Ok((version, stream))) = detected else {
        return tracing::debug!(%peer, "closed: no request came");
    };
    let served = match (version, versions) {
        (Version::Http2, _) => {
            serve_http2(TokioIo::new(stream), versions, &limits, service, drain, seat).await
        }
        (Version::Http1, HttpVersions::Http1And2) => serve_http1(stream, &limits, service, drain, seat).await,
        (Version::Http1, HttpVersions::Http2Only) => {
            return tracing::debug!(%peer, "closed: not HTTP/2");
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "connection ended with an error");
    }
}

async fn serve_http1<S, B>(
    stream: Prefixed<Stream>,
    limits: &HttpLimits,
    service: S,
    drain: Drain,
    seat: Arc<Seat>,
) -> hyper::Result<()>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    let answering = Arc::<Answering>::default();
    let io = TokioIo::new(HalfClosed::new(stream, Arc::clone(&answering)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_headers(limits.max_headers)
        .max_header_size(limits.max_head_bytes as usize)
        .max_buf_size(HTTP_1_BUFFER_BYTES)
        .serve_connection(io, Counted::new(service, Arc::clone(&seat), answering))
        .with_upgrades();
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        ended = connection.as_mut() => return ended,
        () = drain.requested() => connection.as_mut().graceful_shutdown(),
    }
    // An incomplete head is not a request: do not wait for the rest.
    if seat.is_busy() { connection.await } else { Ok(()) }
}

async fn serve_http2<S, B>(
    io: TokioIo<Prefixed<Stream>>,
    versions: HttpVersions,
    limits: &HttpLimits,
    service: S,
    drain: Drain,
    seat: Arc<Seat>,
) -> hyper::Result<()>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let streams = Streams::new(Arc::clone(&seat), io.inner().jammed());
    let connection = http2::Builder::new(streams.clone())
        .timer(TokioTimer::new())
        .auto_date_header(versions == HttpVersions::Http1And2)
        .max_header_list_size(limits.max_head_bytes)
        .max_concurrent_streams(limits.max_streams)
        .initial_stream_window_size(limits.window_bytes.min(STREAM_WINDOW_BYTES))
        .initial_connection_window_size(limits.window_bytes)
        .max_send_buf_size(STREAM_SEND_BYTES)
        .serve_connection(io, Charged::new(service, seat));
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        ended = poll_fn(|cx| streams.drive(connection.as_mut(), cx)) => return ended,
        () = drain.requested() => connection.as_mut().graceful_shutdown(),
    }
    let idle_timeouts = match limits.requests {
        Requests::Short => limits.body_timeout,
        Requests::Long => Duration::MAX,
    };
    say_goodbye(connection, &streams, idle_timeouts).await
}

/// Bytes that an HTTP/1 connection may buffer in each direction: hyper's default is 400 KiB, so a few hundred uploads to a
/// server that does not read would fill the memory.
pub const HTTP_1_BUFFER_BYTES: usize = 64 * 1024;

/// The flow control window of one stream: its part of the connection's window.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;

/// Bytes of an answer that wait in h2 to be written: hyper's default is 400 KiB, for each of a connection's streams.
const STREAM_SEND_BYTES: usize = 64 * 1024;

/// Lets requests in flight finish, as long as one does within `idle_timeouts`, and waits for nothing else: a peer need not
/// acknowledge the shutdown.
async fn say_goodbye<C>(
    mut connection: Pin<&mut C>,
    streams: &Streams,
    idle_timeouts: Duration,
) -> hyper::Result<()>
where
    C: Future<Output = hyper::Result<()>>,
{
    let (mut seen, mut silent_for) = (streams.progress(), Duration::ZERO);
    loop {
        tokio::select! {
            biased;
            ended = poll_fn(|cx| streams.drive(connection.as_mut(), cx)) => return ended,
            () = tokio::time::sleep(GOODBYE) => {}
        }
        let now = streams.progress();
        silent_for = if now == seen { silent_for + GOODBYE } else { Duration::ZERO };
        if !silent_for.is_zero() && (!streams.any_under_way() || silent_for >= idle_timeouts) {
            return Ok(());
        }
        seen = now;
    }
}
