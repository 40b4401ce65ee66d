//! The HTTP client of everything that asks another server now and then: webhooks, OTLP, issuers' keys, the commands.
//!
//! One connection per request, HTTP/1, and TLS where the address says so. The proxy has connections of its own, because it
//! keeps and shares them.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tidegate_access::{authorities, crypto};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The most bytes read of an answer.
const MOST_ANSWER_BYTES: usize = 64 * 1024;
/// How long the rest of an answer is read after the body was accepted.
const READS_FOR: Duration = Duration::from_millis(200);

/// What stays as it is in a part of a URL.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A text as one part of a URL's path or query: it may contain anything.
#[must_use]
pub fn url_part(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

/// The address of a server.
#[derive(Clone, Debug)]
pub struct Endpoint {
    host: String,
    port: u16,
    path: String,
    tls: Option<Arc<ClientConfig>>,
}

/// A connection, whether encrypted or not.
trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// Whether bytes may leave the machine unencrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plaintext {
    /// Only to this machine.
    #[default]
    Loopback,
    /// Anywhere: for example a proxy encrypts.
    Anywhere,
}

/// Why an address is not usable.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct EndpointError {
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub hint: &'static str,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No answer in time.
    #[error("no answer within {0:?}")]
    TooSlow(Duration),
    /// No connection.
    #[error("no connection: {0}")]
    Unreachable(#[source] io::Error),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[source] hyper::Error),
    /// The answer did not arrive whole, or is too long.
    #[error("the answer broke off: {0}")]
    Body(String),
    /// The server did not accept it.
    #[error("the receiver answered {0}")]
    Status(StatusCode),
}

impl ClientError {
    /// Whether a retry may succeed: not if the receiver understood and refused the body. A gateway that answers 404 or
    /// redirects while the receiver is being redeployed has not read it.
    #[must_use]
    pub fn is_worth_a_retry(&self) -> bool {
        const REFUSED: [StatusCode; 5] = [
            StatusCode::BAD_REQUEST,
            StatusCode::GONE,
            StatusCode::PAYLOAD_TOO_LARGE,
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            StatusCode::UNPROCESSABLE_ENTITY,
        ];
        !matches!(self, ClientError::Status(status) if REFUSED.contains(status))
    }
}

impl Endpoint {
    /// The server at `url`. Its certificate is checked against `ca`, or against the system's trusted authorities.
    ///
    /// # Errors
    /// It is not a URL, or an unencrypted one beyond this machine that `plaintext` does not allow.
    pub fn new(url: &str, ca: Option<&Path>, plaintext: Plaintext) -> Result<Endpoint, EndpointError> {
        const FORM: &str = "write it as https://host/path, or http://127.0.0.1:4318/path on this machine";
        let error = |problem: String, hint| EndpointError { problem, hint };
        let uri: Uri = url.parse().map_err(|_| error(format!("`{url}` is not a URL"), FORM))?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let default_port = match uri.scheme_str() {
            Some("https") => 443,
            Some("http") => 80,
            _ => return Err(error(format!("`{url}` is neither https:// nor http://"), FORM)),
        };
        if host.is_empty() || uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(error(format!("`{url}` has no host, or a user that cannot be sent"), FORM));
        }
        // An invalid port must not fall back to the default one.
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let has_port = authority.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
        if has_port && uri.port_u16().is_none_or(|port| port == 0) {
            return Err(error(format!("`{url}` has an invalid port"), FORM));
        }
        let is_encrypted = default_port == 443;
        let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if !is_encrypted && !is_here && plaintext == Plaintext::Loopback {
            return Err(error(
                format!("`{url}` would leave this machine in the clear"),
                "use https://, or say `plaintext: true` where somebody else encrypts",
            ));
        }
        let tls = is_encrypted.then(|| client_config(ca)).transpose()?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Endpoint { host, port: uri.port_u16().unwrap_or(default_port), path, tls })
    }

    /// The same server with another path.
    #[must_use]
    pub fn at(&self, path: &str) -> Endpoint {
        Endpoint { path: format!("{}{path}", self.path.trim_end_matches('/')), ..self.clone() }
    }

    async fn connect(&self) -> io::Result<Box<dyn Connection>> {
        let socket = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let Some(config) = &self.tls else { return Ok(Box::new(socket)) };
        let unusable = |_| io::Error::new(io::ErrorKind::InvalidInput, "the host has no name");
        let name = ServerName::try_from(self.host.clone()).map_err(unusable)?;
        Ok(Box::new(TlsConnector::from(Arc::clone(config)).connect(name, socket).await?))
    }

    /// The document there, of at most `most_bytes`.
    ///
    /// # Errors
    /// It does not arrive whole, with a 2xx status, in time.
    pub async fn get(&self, within: Duration, most_bytes: usize) -> Result<Bytes, ClientError> {
        let answer = self.send(self.request(Method::GET, Bytes::new()), within, most_bytes).await?;
        match answer.status() {
            status if status.is_success() => Ok(answer.into_body()),
            status => Err(ClientError::Status(status)),
        }
    }

    /// Posts `body`. The content of the answer does not matter, nor whether it ends.
    ///
    /// # Errors
    /// The server does not accept it in time.
    pub async fn post(
        &self,
        content_type: &'static str,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
        within: Duration,
    ) -> Result<(), ClientError> {
        let mut request = self.request(Method::POST, body);
        let own = request.headers_mut();
        own.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        own.extend(headers.iter().cloned());
        let posting = self.exchange(request, async |answer| {
            if answer.status().is_success() {
                // Read, so that the server can finish its answer.
                let rest = Limited::new(answer.into_body(), MOST_ANSWER_BYTES).collect();
                let _ = tokio::time::timeout(READS_FOR, rest).await;
                return Ok(());
            }
            Err(ClientError::Status(answer.status()))
        });
        timeout(within, posting).await
    }

    /// Sends `request`, whatever its path, and returns the whole answer, of at most `most_bytes`.
    ///
    /// # Errors
    /// There is no whole answer in time.
    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
        within: Duration,
        most_bytes: usize,
    ) -> Result<Response<Bytes>, ClientError> {
        let asking = self.exchange(request, async |answer| {
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, most_bytes).collect().await;
            let body = body.map_err(|error| ClientError::Body(error.to_string()))?;
            Ok(Response::from_parts(head, body.to_bytes()))
        });
        timeout(within, asking).await
    }

    /// Posts JSON and returns the whole answer, whatever its status, of at most `most_bytes`.
    ///
    /// # Errors
    /// There is no whole answer in time.
    pub async fn ask(
        &self,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
        within: Duration,
        most_bytes: usize,
    ) -> Result<Response<Bytes>, ClientError> {
        let mut request = self.request(Method::POST, body);
        let own = request.headers_mut();
        own.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        own.extend(headers.iter().cloned());
        self.send(request, within, most_bytes).await
    }

    fn request(&self, method: Method, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = self.path.parse().unwrap_or_default();
        let own = request.headers_mut();
        if let Ok(host) = HeaderValue::from_str(&format!("{}:{}", self.host, self.port)) {
            own.insert(HOST, host);
        }
        own.insert(USER_AGENT, HeaderValue::from_static("tidegate"));
        request
    }

    async fn exchange<T>(
        &self,
        request: Request<Full<Bytes>>,
        read: impl AsyncFnOnce(Response<Incoming>) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let stream = self.connect().await.map_err(ClientError::Unreachable)?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(ClientError::Broken)?;
        // Ends with this future, so that a timeout closes the connection.
        let mut driving = tokio::task::JoinSet::new();
        driving.spawn(connection);
        read(sender.send_request(request).await.map_err(ClientError::Broken)?).await
    }
}

async fn timeout<T>(
    within: Duration,
    work: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    tokio::time::timeout(within, work).await.unwrap_or(Err(ClientError::TooSlow(within)))
}

fn client_config(ca: Option<&Path>) -> Result<Arc<ClientConfig>, EndpointError> {
    let unusable = |problem: String| EndpointError { problem, hint: "name a PEM file with `ca`" };
    let roots = match ca {
        Some(path) => authorities(path).map_err(|error| unusable(error.to_string()))?,
        None => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots
        }
    };
    if roots.is_empty() {
        return Err(unusable("no certificate authority is trusted here".to_owned()));
    }
    let config = ClientConfig::builder_with_provider(crypto())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(url: &str) -> String {
        Endpoint::new(url, None, Plaintext::Loopback)
            .map(|_| String::new())
            .unwrap_or_else(|error| error.problem)
    }

    #[test]
    fn bytes_leave_the_machine_encrypted_or_not_at_all() {
        assert_eq!(problem("http://127.0.0.1:4318"), "");
        assert_eq!(problem("http://[::1]:4318/x"), "");
        assert_eq!(problem("http://localhost/x"), "");
        assert_eq!(
            problem("http://collector:4318"),
            "`http://collector:4318` would leave this machine in the clear"
        );
        assert!(Endpoint::new("http://collector:4318", None, Plaintext::Anywhere).is_ok());
    }

    #[test]
    fn what_is_no_address_is_named() {
        for bad in [
            "",
            "collector",
            "ftp://host",
            "https://user:secret@host/",
            "http://",
            "https://host:99999/x",
            "https://host:0/",
            "https://host:/",
            "http://[::1]:99999/",
        ] {
            assert!(!problem(bad).is_empty(), "{bad}");
        }
    }
}
