//! Connects to an upstream server: DNS, TCP, TLS and the HTTP handshake, all within one timeout.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::body::RequestBody;
use crate::target::{Scheme, Target};
use crate::tls::ClientTls;
use tidegate_runtime::connection::HTTP_1_BUFFER_BYTES;

/// The largest head of an answer.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// The flow control window of an HTTP/2 stream: enough for 1 Gbit/s at 4 ms, small enough for many streams.
const STREAM_WINDOW: u32 = 512 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// Without pings, a dead HTTP/2 connection would be used again and again.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_WITHIN: Duration = Duration::from_secs(10);

pub(crate) type Http1 = http1::SendRequest<RequestBody>;
pub(crate) type Http2 = http2::SendRequest<RequestBody>;

/// A connection that is ready for requests.
pub(crate) enum Dialed {
    Http1(Http1),
    Http2(Http2),
}

/// Which versions are acceptable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// Whatever the server prefers.
    Any,
    /// HTTP/1.1, for an upgrade.
    Http1,
}

/// Why there is no connection; nothing was sent. Requests that waited for the same connection share it.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("no connection within {0:?}")]
    TooSlow(Duration),
    #[error("no connection")]
    Refused(#[source] Arc<io::Error>),
    #[error("no TLS handshake")]
    Tls(#[source] Arc<io::Error>),
    #[error("no handshake")]
    Handshake(#[source] Arc<hyper::Error>),
    #[error("the host's name cannot be in a certificate")]
    Name,
    /// The target speaks HTTP/2 without TLS, and the request needs HTTP/1.1.
    #[error("this upstream speaks HTTP/2 alone, which has no upgrades")]
    NoUpgrades,
}

/// Connects to one target.
pub(crate) struct Dialer {
    pub(crate) target: Target,
    pub(crate) tls: Option<ClientTls>,
    pub(crate) within: Duration,
}

impl Dialer {
    /// The scheme that requests must name.
    pub(crate) fn scheme(&self) -> http::uri::Scheme {
        match self.target.scheme {
            Scheme::Https => http::uri::Scheme::HTTPS,
            Scheme::Http | Scheme::H2c => http::uri::Scheme::HTTP,
        }
    }

    pub(crate) async fn dial(&self, wants: Wants) -> Result<Dialed, DialError> {
        let dialed = tokio::time::timeout(self.within, self.connect(wants)).await;
        dialed.unwrap_or(Err(DialError::TooSlow(self.within)))
    }

    async fn connect(&self, wants: Wants) -> Result<Dialed, DialError> {
        if (self.target.scheme, wants) == (Scheme::H2c, Wants::Http1) {
            return Err(DialError::NoUpgrades);
        }
        let stream = self.tcp().await.map_err(|error| DialError::Refused(Arc::new(error)))?;
        match (self.target.scheme, &self.tls) {
            (Scheme::H2c, _) => speak_http2(stream).await,
            (Scheme::Https, Some(tls)) => {
                let config = if wants == Wants::Any { &tls.any } else { &tls.http1 };
                let name = ServerName::try_from(self.target.host.clone()).map_err(|_| DialError::Name)?;
                let connector = TlsConnector::from(Arc::clone(config));
                let stream =
                    connector.connect(name, stream).await.map_err(|error| DialError::Tls(Arc::new(error)))?;
                match stream.get_ref().1.alpn_protocol() {
                    Some(b"h2") => speak_http2(stream).await,
                    _ => speak_http1(stream).await,
                }
            }
            (Scheme::Http | Scheme::Https, _) => speak_http1(stream).await,
        }
    }

    async fn tcp(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((self.target.host.as_str(), self.target.port)).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

async fn speak_http1<T>(stream: T) -> Result<Dialed, DialError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = http1::Builder::new()
        .max_header_size(MAX_HEAD_BYTES)
        .max_buf_size(HTTP_1_BUFFER_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| DialError::Handshake(Arc::new(error)))?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to an upstream server ended");
        }
    });
    Ok(Dialed::Http1(sender))
}

async fn speak_http2<T>(stream: T) -> Result<Dialed, DialError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WITHIN)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| DialError::Handshake(Arc::new(error)))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to an upstream server ended");
        }
    });
    Ok(Dialed::Http2(sender))
}
