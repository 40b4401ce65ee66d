//! TLS towards clients, from PEM files that can be reloaded.
//!
//! Ciphers and versions are rustls's defaults. A connection keeps its certificate; a reloaded one is for new connections,
//! and only if its files are usable. Sessions are not resumed across a reload, so a client whose authority is no longer
//! trusted must present a certificate again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use arc_swap::ArcSwap;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::stream::Stream;
use crate::validity::not_after;

/// PEM files of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate to present, with its intermediates.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities that must have signed a client's certificate; without them clients need none.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Every file, to be watched for changes.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.certificate, &self.key].into_iter().chain(&self.client_ca).map(PathBuf::as_path)
    }
}

/// Which protocols a listener offers inside TLS (ALPN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offers {
    /// HTTP/2 and HTTP/1.1.
    Http,
    /// Only HTTP/2, as gRPC needs.
    Http2,
    /// Only HTTP/1.1.
    Http1,
    /// None, for protocols without a name in ALPN, such as the Redis protocol.
    Nothing,
}

impl Offers {
    fn protocols(self) -> Vec<Vec<u8>> {
        let names: &[&[u8]] = match self {
            Offers::Http => &[b"h2", b"http/1.1"],
            Offers::Http2 => &[b"h2"],
            Offers::Http1 => &[b"http/1.1"],
            Offers::Nothing => &[],
        };
        names.iter().map(|name| name.to_vec()).collect()
    }
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing, or not a regular file.
    #[error("cannot read {what} from {path}")]
    Unreadable {
        /// What the file should contain.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file contains no PEM of the required kind.
    #[error("cannot read {what} from {path}")]
    NoPem {
        /// What the file should contain.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The parser's error.
        #[source]
        source: pem::Error,
    },
    /// The certificate and the key do not belong together, or are of a kind that is not supported.
    #[error("the certificate or its key cannot be used")]
    Unusable(#[source] rustls::Error),
    /// The authorities are not usable for checking clients.
    #[error("clients cannot be checked against these authorities")]
    NoVerifier(#[source] VerifierBuilderError),
}

/// The TLS configuration of one listener: its certificate, and the authorities for clients.
#[derive(Debug)]
pub struct ServerTls {
    files: TlsFiles,
    offers: Offers,
    current: ArcSwap<ServerConfig>,
    /// When the certificate expires, in seconds since 1970; 0 if unknown.
    ends_at: AtomicU64,
}

impl ServerTls {
    /// Reads `files`.
    ///
    /// # Errors
    /// They are not usable.
    pub fn load(files: TlsFiles, offers: Offers) -> Result<Self, TlsError> {
        let current = ArcSwap::new(read(&files, offers)?);
        let ends_at = AtomicU64::new(end_of(&files));
        Ok(ServerTls { files, offers, current, ends_at })
    }

    /// Reloads the files, for new connections.
    ///
    /// # Errors
    /// They are not usable; the old ones stay in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.current.store(read(&self.files, self.offers)?);
        self.ends_at.store(end_of(&self.files), Ordering::Relaxed);
        Ok(())
    }

    /// The files it is made from.
    #[must_use]
    pub fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// When the certificate expires, in seconds since 1970; `None` if unknown.
    #[must_use]
    pub fn ends_at_seconds(&self) -> Option<u64> {
        Some(self.ends_at.load(Ordering::Relaxed)).filter(|seconds| *seconds > 0)
    }

    /// Whether clients must present a certificate.
    #[must_use]
    pub fn checks_clients(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Performs the handshake. The caller bounds the time.
    ///
    /// # Errors
    /// The client does not speak TLS, or presents no acceptable certificate.
    pub async fn accept(&self, socket: TcpStream) -> io::Result<Stream> {
        let acceptor = TlsAcceptor::from(self.current.load_full());
        acceptor.accept(socket).await.map(|stream| Stream::Tls(Box::new(stream)))
    }
}

fn read(files: &TlsFiles, offers: Offers) -> Result<Arc<ServerConfig>, TlsError> {
    let (chain, secret) = own_certificate(&files.certificate, &files.key)?;
    let builder = ServerConfig::builder_with_provider(crypto())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Unusable)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(path)?), crypto()).build();
            builder.with_client_cert_verifier(verifier.map_err(TlsError::NoVerifier)?)
        }
    };
    let mut config = builder.with_single_cert(chain, secret).map_err(TlsError::Unusable)?;
    config.alpn_protocols = offers.protocols();
    Ok(Arc::new(config))
}

/// A certificate with its chain and its private key, from PEM files.
///
/// # Errors
/// A file contains none.
pub fn own_certificate(
    certificate: &Path,
    key: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = certificates("a certificate", certificate)?;
    let what = "a private key";
    let secret = PrivateKeyDer::from_pem_slice(&bytes(what, key)?).map_err(|source| TlsError::NoPem {
        what,
        path: key.to_owned(),
        source,
    })?;
    Ok((chain, secret))
}

fn end_of(files: &TlsFiles) -> u64 {
    let chain = certificates("a certificate", &files.certificate).unwrap_or_default();
    chain.first().and_then(|own| not_after(own)).unwrap_or_default()
}

/// The authorities in a PEM file.
///
/// # Errors
/// It contains none.
pub fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("a certificate authority", path)? {
        roots.add(certificate).map_err(TlsError::Unusable)?;
    }
    Ok(roots)
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let no_pem = |source| TlsError::NoPem { what, path: path.to_owned(), source };
    let bytes = bytes(what, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(no_pem)?;
    if found.is_empty() {
        return Err(no_pem(pem::Error::NoItemsFound));
    }
    Ok(found)
}

/// The bytes of a regular file: reading a pipe could block for ever.
fn bytes(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |source| TlsError::Unreadable { what, path: path.to_owned(), source };
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(unreadable(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
    }
    fs::read(path).map_err(unreadable)
}

/// The cryptography provider for all TLS.
#[must_use]
pub fn crypto() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
