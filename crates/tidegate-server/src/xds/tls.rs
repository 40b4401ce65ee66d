//! TLS towards a management server, which often asks for a certificate.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tidegate_access::{TlsError, authorities, crypto, own_certificate};

/// How a connection to the server is encrypted.
#[derive(Clone, Debug)]
pub struct XdsTls {
    pub(super) config: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
}

/// Why TLS to the server cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum XdsTlsError {
    /// A file is not usable, or the library refuses what is in it.
    #[error(transparent)]
    Files(#[from] TlsError),
    /// The server's name is none.
    #[error("`{0}` is not the name of a server")]
    Name(String),
}

impl XdsTls {
    /// Trusts the authorities in `ca`, or those of the system, for a server of this name; shows the certificate and uses the
    /// key in `own`, if given.
    ///
    /// # Errors
    /// A file or the name is not usable.
    pub fn new(ca: Option<&Path>, own: Option<(&Path, &Path)>, name: &str) -> Result<Self, XdsTlsError> {
        let roots = match ca {
            Some(path) => authorities(path)?,
            None => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                roots
            }
        };
        let builder = ClientConfig::builder_with_provider(crypto())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Unusable)?
            .with_root_certificates(roots);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let (chain, key) = own_certificate(certificate, key)?;
                builder.with_client_auth_cert(chain, key).map_err(TlsError::Unusable)?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let server = ServerName::try_from(name.to_owned()).map_err(|_| XdsTlsError::Name(name.to_owned()))?;
        Ok(XdsTls { config: Arc::new(config), name: server })
    }
}
