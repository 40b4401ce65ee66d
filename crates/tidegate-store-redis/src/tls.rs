//! TLS, if the build includes it (feature `tls`).

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tidegate_store::BoxError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::config::{ConfigError, TlsFiles};
use crate::url::Endpoint;

/// Encrypts connections.
#[derive(Clone)]
pub(crate) struct Tls(TlsConnector);

impl Tls {
    pub(crate) fn new(files: &TlsFiles) -> Result<Self, ConfigError> {
        Ok(Tls(TlsConnector::from(Arc::new(tls_config(files)?))))
    }

    pub(crate) async fn wrap(
        &self,
        endpoint: &Endpoint,
        stream: TcpStream,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + use<>, BoxError> {
        let name = ServerName::try_from(endpoint.host.clone())?;
        Ok(self.0.connect(name, stream).await?)
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
