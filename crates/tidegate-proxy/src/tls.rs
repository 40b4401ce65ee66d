//! TLS towards upstream servers.
//!
//! Ciphers and versions are rustls's defaults.

use std::path::Path;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use tidegate_access::{TlsError, authorities, crypto};

const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// Why TLS to upstream servers cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ClientTlsError {
    /// The file with authorities is not usable.
    #[error(transparent)]
    Authorities(#[from] TlsError),
    /// The library refuses the configuration.
    #[error("TLS cannot be set up")]
    Unusable(#[source] rustls::Error),
    /// The system trusts no authority.
    #[error("no certificate authority is trusted here")]
    NoAuthority,
}

/// Trusts the authorities in this file, or those of the system.
pub fn client_config(ca: Option<&Path>) -> Result<ClientTls, ClientTlsError> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => roots = authorities(path)?,
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(ClientTlsError::NoAuthority);
    }
    let config = ClientConfig::builder_with_provider(crypto())
        .with_safe_default_protocol_versions()
        .map_err(ClientTlsError::Unusable)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let offering = |protocols: &[&[u8]]| {
        let mut config = config.clone();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    };
    Ok(ClientTls { any: offering(&[H2, HTTP_1_1]), http1: offering(&[HTTP_1_1]) })
}

/// The TLS configuration for upstream servers.
#[derive(Clone, Debug)]
pub struct ClientTls {
    /// Offers HTTP/2 and HTTP/1.1.
    pub(crate) any: Arc<ClientConfig>,
    /// Offers only HTTP/1.1: a WebSocket needs it.
    pub(crate) http1: Arc<ClientConfig>,
}
