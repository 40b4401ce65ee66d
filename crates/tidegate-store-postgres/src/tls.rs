//! TLS, if the build includes it (feature `tls`).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

use crate::config::{ConfigError, TlsFiles};

/// Encrypts connections.
#[derive(Clone)]
pub(crate) struct Tls(TlsConnector);

/// Encrypts connections to one host.
pub(crate) struct ToHost {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// An encrypted connection.
pub(crate) struct Encrypted<S>(tokio_rustls::client::TlsStream<S>);

impl Tls {
    pub(crate) fn new(files: &TlsFiles) -> Result<Self, ConfigError> {
        Ok(Tls(TlsConnector::from(Arc::new(tls_config(files)?))))
    }
}

impl<S> MakeTlsConnect<S> for Tls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type TlsConnect = ToHost;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<ToHost, Self::Error> {
        Ok(ToHost { connector: self.0.clone(), name: ServerName::try_from(host.to_owned())? })
    }
}

impl<S> TlsConnect<S> for ToHost
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Encrypted<S>>>;

    fn connect(self, stream: S) -> Self::Future {
        async move { self.connector.connect(self.name, stream).await.map(Encrypted) }.boxed()
    }
}

impl<S> TlsStream for Encrypted<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    /// None: the certificate is checked instead.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
/// Trust roots and client certificate. The provider is explicit: a library must not choose one for the process.
fn tls_config(files: &TlsFiles) -> Result<ClientConfig, ConfigError> {
    let mut roots = RootCertStore::empty();
    match &files.ca {
        Some(path) => {
            let unreadable = |problem: String| ConfigError {
                field: "tls.ca",
                problem: format!("{}: {problem}", path.display()),
                hint: "name a PEM file with at least one certificate",
            };
            let certificates =
                CertificateDer::pem_file_iter(path).map_err(|error| unreadable(error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
                roots.add(certificate).map_err(|error| unreadable(error.to_string()))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(ConfigError {
            field: "tls.ca",
            problem: "there is no authority to trust".to_owned(),
            hint: "name a PEM file with the certificate of the authority that signed the server's",
        });
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider speaks TLS 1.2 and 1.3")
        .with_root_certificates(roots);
    match (&files.certificate, &files.key) {
        (None, None) => Ok(config.with_no_client_auth()),
        (Some(certificate), Some(key)) => {
            let unusable = |problem: String| ConfigError {
                field: "tls.certificate",
                problem,
                hint: "name a PEM file with a certificate, and under tls.key one with its private key",
            };
            let chain: Result<Vec<_>, _> =
                CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
            let chain = chain.map_err(|error| unusable(error.to_string()))?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(error.to_string()))?;
            config.with_client_auth_cert(chain, key).map_err(|error| unusable(error.to_string()))
        }
        _ => Err(ConfigError {
            field: "tls.certificate",
            problem: "a certificate and its key go together".to_owned(),
            hint: "name both tls.certificate and tls.key, or neither",
        }),
    }
}
