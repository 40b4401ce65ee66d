//! Limits over xDS and TLS, from the management server of `xds`, which wants a certificate as Envoy Gateway does.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;
use tidegate_testkit::{Certificates, eventually};
use tokio_rustls::TlsAcceptor;

use crate::redis_world::PATIENCE;
use crate::xds::{Management, limit_of, limits, start_with};

/// A management server that admits who has a certificate of its authority, and that authority's files.
fn management() -> (Management, Certificates, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let files = Certificates::for_loopback(dir.path());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build().unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![CertificateDer::from_pem_file(&files.cert).unwrap()],
            PrivateKeyDer::from_pem_file(&files.key).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    (Management::over(Some(acceptor), limits(&["user"], 5)), files, dir)
}

fn shows(files: &Certificates) -> String {
    format!("certificate: '{}', key: '{}'", files.cert.display(), files.key.display())
}

fn trusts(ca: &Path) -> String {
    format!("ca: '{}'", ca.display())
}

#[test]
fn limits_come_over_tls_to_who_shows_a_certificate() {
    let (management, files, _keys) = management();
    let tls = format!("{}, {}, server_name: localhost", trusts(&files.ca), shows(&files));
    let (mut server, _dir) = start_with(&format!("address: '{}', tls: {{ {tls} }}", management.address));
    assert_eq!(limit_of(&mut server), Some(5));
    eventually("the answer is acknowledged", PATIENCE, || management.asked().len() == 2);
}

#[test]
fn wrong_certificate_or_name_is_logged_with_its_reason_and_nothing_is_asked() {
    let (management, files, _keys) = management();
    let others = tempfile::tempdir().unwrap();
    let strange = Certificates::for_loopback(others.path());
    let (ca, own) = (trusts(&files.ca), shows(&files));
    // Both authorities have the same name, so it is the signature that is wrong. Whether the alert of a server that refuses a
    // certificate arrives before the connection is closed is a matter of luck.
    for (tls, reason, hint) in [
        (format!("{}, {own}", trusts(&strange.ca)), "invalid peer certificate: BadSignature", "check `ca`"),
        (format!("{ca}, {own}, server_name: gateway.example"), "not valid for name", "`server_name`"),
        (ca.clone(), "unavailable", "check `certificate` and `key`"),
        (format!("{ca}, {}", shows(&strange)), "unavailable", "check `certificate` and `key`"),
    ] {
        let (server, _dir) = start_with(&format!("address: '{}', tls: {{ {tls} }}", management.address));
        let log = || {
            let log = server.stderr();
            let line = log.lines().find(|line| line.contains("the xDS server is unavailable"));
            line.map(str::to_owned)
        };
        eventually("the log says that there are no limits", PATIENCE, || log().is_some());
        let line = log().unwrap();
        assert!(line.contains(reason) && line.contains(hint), "{tls}: {line}");
        assert_eq!(management.asked().len(), 0, "{tls}");
    }
}
