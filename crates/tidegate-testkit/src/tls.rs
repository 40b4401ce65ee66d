//! A throw-away certificate authority, and a certificate for 127.0.0.1 and localhost that it signed.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// PEM files of an authority that only this test trusts, and of a server on loopback.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The authority's certificate: what a client must trust.
    pub ca: PathBuf,
    /// The server's certificate.
    pub cert: PathBuf,
    /// The server's private key.
    pub key: PathBuf,
}

impl Certificates {
    /// Makes new ones in `dir`.
    ///
    /// # Panics
    /// When `dir` cannot be written.
    #[must_use]
    pub fn for_loopback(dir: &Path) -> Self {
        let mut authority = CertificateParams::new(Vec::new()).expect("no names to refuse");
        // Named apart, or OpenSSL takes the server's certificate for one that signed itself.
        authority.distinguished_name.push(DnType::CommonName, "tidegate test authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority_key = KeyPair::generate().expect("the system has randomness");
        let ca_pem = authority.self_signed(&authority_key).expect("an authority signs itself").pem();
        let issuer = Issuer::new(authority, authority_key);

        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut server = CertificateParams::new(names).expect("both are valid names");
        server.distinguished_name.push(DnType::CommonName, "tidegate test server");
        let server_key = KeyPair::generate().expect("the system has randomness");
        let cert_pem = server.signed_by(&server_key, &issuer).expect("an authority signs a server").pem();

        let write = |name: &str, text: String| {
            let path = dir.join(name);
            fs::write(&path, text).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
            path
        };
        Self {
            ca: write("ca.pem", ca_pem),
            cert: write("cert.pem", cert_pem),
            key: write("key.pem", server_key.serialize_pem()),
        }
    }
}
