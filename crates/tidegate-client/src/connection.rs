//! One HTTP/2 connection to a server, over which takes and checks go side by side. It is made again when it ends.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::{Error, random};

/// The longest answer: two hundred takes need a fifth of it.
const LONGEST_ANSWER: usize = 256 << 10;
/// The longest pause before a message is sent again.
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// A connection that does not answer a ping within this time has ended.
const SILENCE: Duration = Duration::from_secs(2);

/// What a server answered, whatever it means.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

pub(crate) struct Connection {
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    token: Option<HeaderValue>,
    timeout: Duration,
    open: Mutex<Option<SendRequest<Full<Bytes>>>>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Connection {
    pub(crate) fn new(
        url: &str,
        token: Option<&str>,
        authorities: Option<&[u8]>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let wrong = |why: &str| {
            Error::Setting(format!("url `{url}`: {why}; write http://HOST:PORT or https://HOST:PORT"))
        };
        let parsed: Uri = url.parse().map_err(|_| wrong("it is not a URL"))?;
        let is_encrypted = match parsed.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("it has neither http:// nor https://")),
        };
        let host = parsed.host().ok_or_else(|| wrong("it names no host"))?;
        let token = token.map(|token| HeaderValue::from_str(&format!("Bearer {token}"))).transpose();
        let mut token = token.map_err(|_| Error::Setting("token: a header cannot carry it".into()))?;
        if let Some(token) = &mut token {
            token.set_sensitive(true);
        }
        Ok(Connection {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: parsed.port_u16().unwrap_or(if is_encrypted { 443 } else { 80 }),
            tls: is_encrypted.then(|| encryption(authorities)).transpose()?,
            token,
            timeout,
            open: Mutex::new(None),
        })
    }

    /// Sends one message, and waits for its answer for as long as the time-out says. Nothing is sent twice.
    pub(crate) async fn call(&self, path: &'static str, body: Vec<u8>) -> Result<Reply, Error> {
        self.call_again(path, body.into(), 0).await
    }

    /// The same for a message that may be sent again, `retries` times at most, while there is time for it.
    pub(crate) async fn call_again(
        &self,
        path: &'static str,
        body: Bytes,
        retries: u32,
    ) -> Result<Reply, Error> {
        let until = Instant::now() + self.timeout;
        let mut left = retries;
        loop {
            // Each try gets an equal part of the time that is left, or the first would use it all.
            let part = until.saturating_duration_since(Instant::now()) / (left + 1);
            let late = || self.unreachable(format!("no answer within {:?}", self.timeout));
            let answer = timeout(part, self.exchange(path, body.clone())).await;
            match answer.unwrap_or_else(|_| Err(late())) {
                Err(_) if left > 0 => left -= 1,
                answer => return answer,
            }
            // Behind a balancer, another connection may find a server that answers.
            if let Ok(mut open) = self.open.try_lock() {
                *open = None;
            }
            sleep(
                RETRY_AFTER.mul_f64(random::fraction()).min(until.saturating_duration_since(Instant::now())),
            )
            .await;
        }
    }

    async fn exchange(&self, path: &'static str, body: Bytes) -> Result<Reply, Error> {
        let mut sender = self.sender().await?;
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut request = Request::post(format!("{scheme}://{}{path}", self.authority()))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))
            .expect("a URL of known parts");
        if let Some(token) = &self.token {
            request.headers_mut().insert(AUTHORIZATION, token.clone());
        }
        let broken = |error: hyper::Error| self.unreachable(error.to_string());
        let (head, body) = sender.send_request(request).await.map_err(broken)?.into_parts();
        let body = Limited::new(body, LONGEST_ANSWER).collect().await;
        let body = body.map_err(|error| self.unreachable(format!("the answer broke off: {error}")))?;
        Ok(Reply { status: head.status, headers: head.headers, body: body.to_bytes() })
    }

    /// The connection, made if there is none.
    async fn sender(&self) -> Result<SendRequest<Full<Bytes>>, Error> {
        let mut open = self.open.lock().await;
        if let Some(sender) = open.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let sender = self.connect().await.map_err(|why| self.unreachable(why))?;
        *open = Some(sender.clone());
        Ok(sender)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let stream =
            TcpStream::connect((self.host.as_str(), self.port)).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(stream),
            Some(tls) => {
                let name = ServerName::try_from(self.host.clone()).map_err(|error| error.to_string())?;
                Box::new(tls.connect(name, stream).await.map_err(|error| format!("TLS: {error}"))?)
            }
        };
        let mut builder = Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).keep_alive_interval(SILENCE).keep_alive_timeout(SILENCE);
        let (sender, connection) =
            builder.handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // It ends with its last sender, or with the server.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    pub(crate) fn unreachable(&self, why: String) -> Error {
        Error::Unreachable { server: self.authority(), why }
    }

    fn authority(&self) -> String {
        let Connection { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// Checks certificates against these authorities or else the system's. The provider is explicit: a library must not choose one for
/// the process.
fn encryption(authorities: Option<&[u8]>) -> Result<TlsConnector, Error> {
    let mut roots = RootCertStore::empty();
    match authorities {
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Some(pem) => {
            let wrong = |why: String| Error::Setting(format!("authorities: {why}; give certificates in PEM"));
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
                roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(wrong("there is no certificate in it".into()));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider speaks TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
