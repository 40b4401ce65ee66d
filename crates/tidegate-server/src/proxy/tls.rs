//! TLS towards clients and towards upstream servers, made from PEM files.
//!
//! Nothing here chooses ciphers or versions: those are rustls's defaults. Both ends offer HTTP/2 and HTTP/1.1.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not there, or holds no PEM of the kind that is needed.
    #[error("cannot read {what} from {path}")]
    File {
        /// What was looked for.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: pem::Error,
    },
    /// The certificate and the key do not belong together, or are of a kind that is not supported.
    #[error("the certificate or its key cannot be used")]
    Unusable(#[source] rustls::Error),
    /// The system trusts no authority.
    #[error("no certificate authority is trusted here")]
    NoAuthority,
}

/// What clients are shown.
pub fn server_config(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates("a certificate", certificate)?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::File {
        what: "a private key",
        path: key.to_owned(),
        source,
    })?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Unusable)?;
    let mut config =
        builder.with_no_client_auth().with_single_cert(chain, secret).map_err(TlsError::Unusable)?;
    config.alpn_protocols = vec![H2.to_vec(), HTTP_1_1.to_vec()];
    Ok(Arc::new(config))
}

/// Whom upstream servers are checked against: the authorities in this file, or those that the system trusts.
pub fn client_config(authorities: Option<&Path>) -> Result<ClientTls, TlsError> {
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(path) => {
            for certificate in certificates("a certificate authority", path)? {
                roots.add(certificate).map_err(TlsError::Unusable)?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(TlsError::NoAuthority);
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Unusable)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let offering = |protocols: &[&[u8]]| {
        let mut config = config.clone();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    };
    Ok(ClientTls { any: offering(&[H2, HTTP_1_1]), http1: offering(&[HTTP_1_1]) })
}

/// How upstream servers are talked to over TLS.
#[derive(Clone, Debug)]
pub struct ClientTls {
    /// Offers HTTP/2 and HTTP/1.1.
    pub(super) any: Arc<ClientConfig>,
    /// Offers HTTP/1.1 alone: a WebSocket needs it.
    pub(super) http1: Arc<ClientConfig>,
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |source| TlsError::File { what, path: path.to_owned(), source };
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(unreadable)?.collect();
    let found = found.map_err(unreadable)?;
    if found.is_empty() {
        return Err(unreadable(pem::Error::NoItemsFound));
    }
    Ok(found)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
