//! TLS on every listener, from files that are read again while connections go on.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tidegate_testkit::{Certificates, TidegateServer, Upstream, eventually};

use crate::access::{BINARY, PATIENCE, serve};
use crate::{ran, tidegate};

const HTTP: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
pub(crate) const HTTP_2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
/// A ping of HTTP/2, which is answered in kind.
const PING: &[u8] = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00still on";

/// A listener: what is spoken there, what to ask, how the answer begins, and what to ask again on the same connection.
type Spoken = (&'static str, &'static str, &'static [u8], &'static str, &'static [u8]);

const LISTENERS: [Spoken; 6] = [
    ("http", "http/1.1", HTTP, "HTTP/1.1 200", HTTP),
    ("http", "h2", HTTP_2, "\0\0", PING),
    ("grpc", "h2", HTTP_2, "\0\0", PING),
    ("resp", "", b"PING\r\n", "+PONG", b"PING\r\n"),
    ("admin", "http/1.1", HTTP, "HTTP/1.1 200", HTTP),
    ("proxy", "http/1.1", HTTP, "HTTP/1.1 200", HTTP),
];

type TlsClient = StreamOwned<ClientConnection, TcpStream>;

/// A client of an address, which trusts one authority and may show a certificate; nothing has been sent.
fn connect(to: SocketAddr, trusts: &Path, shows: Option<&Certificates>, alpn: &str) -> io::Result<TlsClient> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusts).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match shows {
        None => builder.with_no_client_auth(),
        Some(files) => {
            let chain = vec![CertificateDer::from_pem_file(&files.cert).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&files.key).unwrap()).unwrap()
        }
    };
    config.alpn_protocols = if alpn.is_empty() { Vec::new() } else { vec![alpn.as_bytes().to_vec()] };
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let socket = TcpStream::connect(to)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(StreamOwned::new(connection, socket))
}

/// What comes back for `bytes`: at least one byte, or an error.
fn ask(client: &mut TlsClient, bytes: &[u8]) -> io::Result<String> {
    client.write_all(bytes)?;
    let mut answer = [0; 4096];
    match client.read(&mut answer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        read => Ok(String::from_utf8_lossy(&answer[..read]).into_owned()),
    }
}

/// A server with TLS on every listener, and the service behind its proxy.
fn serve_over_tls(dir: &Path, files: &str) -> (TidegateServer, Upstream) {
    let upstream = Upstream::start();
    let config = format!(
        "tls: {{ http: {files}, grpc: {files}, resp: {files}, admin: {files} }}\n\
         proxy:\n  listen: 127.0.0.1:0\n  domain: api\n  tls: {files}\n\
         \x20 upstreams: [{{ name: a, targets: ['http://{}'] }}]\n",
        upstream.addr()
    );
    (serve(dir, &config, &[]), upstream)
}

#[test]
fn every_listener_speaks_tls_and_can_want_a_certificate() {
    let (dir, others) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (own, strange) = (Certificates::for_loopback(dir.path()), Certificates::for_loopback(others.path()));
    let files = "{ certificate: cert.pem, key: key.pem, client_ca: ca.pem }";
    let (mut server, _upstream) = serve_over_tls(dir.path(), files);
    for (listener, alpn, asks, answers, _) in LISTENERS {
        let address = server.addr(listener);
        let told = |trusts: &Certificates, shows: Option<&Certificates>| {
            connect(address, &trusts.ca, shows, alpn).and_then(|mut client| ask(&mut client, asks))
        };
        let answer = told(&own, Some(&own)).unwrap();
        assert!(answer.starts_with(answers), "{listener} {alpn}: {answer:?}");
        assert!(told(&own, None).is_err(), "{listener} without a certificate");
        assert!(told(&own, Some(&strange)).is_err(), "{listener}: a stranger's");
        assert!(told(&strange, Some(&own)).is_err(), "{listener}: not trusted");
        // In the clear there is nothing here.
        let mut plain = TcpStream::connect(address).unwrap();
        plain.set_read_timeout(Some(PATIENCE)).unwrap();
        plain.write_all(asks).unwrap();
        let mut told = Vec::new();
        let _ = plain.read_to_end(&mut told);
        assert!(!String::from_utf8_lossy(&told).starts_with(answers), "{listener} in the clear");
    }
}

#[test]
fn a_new_certificate_is_shown_on_every_listener_and_old_connections_live_on() {
    let dir = tempfile::tempdir().unwrap();
    let first = Certificates::for_loopback(dir.path());
    let (mut server, _upstream) = serve_over_tls(dir.path(), "{ certificate: cert.pem, key: key.pem }");
    let addresses = LISTENERS.map(|(listener, ..)| server.addr(listener));
    let trusted = |authority: &Path| {
        let asked = LISTENERS.iter().zip(addresses).map(|((_, alpn, asks, ..), address)| {
            connect(address, authority, None, alpn).and_then(|mut client| ask(&mut client, asks)).is_ok()
        });
        asked.collect::<Vec<bool>>()
    };
    let mut old: Vec<TlsClient> = LISTENERS
        .iter()
        .zip(addresses)
        .map(|((_, alpn, asks, answers, _), address)| {
            let mut client = connect(address, &first.ca, None, alpn).unwrap();
            assert!(ask(&mut client, asks).unwrap().starts_with(answers));
            client
        })
        .collect();
    let old_authority = dir.path().join("old.pem");
    fs::copy(&first.ca, &old_authority).unwrap();
    // On change: nobody says anything to the server.
    let second = Certificates::for_loopback(dir.path());
    eventually("the new certificate is shown", PATIENCE, || trusted(&second.ca) == [true; 6]);
    assert_eq!(trusted(&old_authority), [false; 6]);
    for ((listener, alpn, _, _, again), client) in LISTENERS.iter().zip(&mut old) {
        let answer = ask(client, again).unwrap_or_else(|error| panic!("{listener} {alpn}: {error}"));
        assert!(!answer.is_empty(), "{listener} {alpn}");
    }
    // On SIGHUP: every listener reads its files again, though none has changed.
    let reloaded = |server: &TidegateServer, listener: &str| {
        let line = format!("certificate reloaded listener=\"{listener}\"");
        server.stderr().matches(&line).count()
    };
    let names = ["http", "grpc", "resp", "admin", "proxy"];
    let before = names.map(|name| reloaded(&server, name));
    server.reload();
    eventually("all have been read again", PATIENCE, || {
        names.iter().zip(before).all(|(name, before)| reloaded(&server, name) > before)
    });
    // A broken one changes nothing.
    fs::write(&second.cert, "no certificate").unwrap();
    server.reload();
    eventually("the log says so", PATIENCE, || {
        server.stderr().matches("certificate not reloaded").count() >= names.len()
    });
    assert_eq!(trusted(&second.ca), [true; 6]);
}

#[test]
fn half_a_handshake_ends_on_every_listener() {
    let dir = tempfile::tempdir().unwrap();
    let _ = Certificates::for_loopback(dir.path());
    let (mut server, _upstream) = serve_over_tls(dir.path(), "{ certificate: cert.pem, key: key.pem }");
    // All at once: each has ten seconds.
    let halves = ["http", "grpc", "resp", "admin", "proxy"].map(|listener| {
        let mut half = TcpStream::connect(server.addr(listener)).unwrap();
        half.set_read_timeout(Some(PATIENCE * 2)).unwrap();
        // The beginning of a client's first words.
        half.write_all(b"\x16\x03\x01\x02\x00\x01\x00").unwrap();
        (listener, half)
    });
    for (listener, mut half) in halves {
        let ended = half.read_to_end(&mut Vec::new());
        let reset = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset;
        assert!(
            ended.as_ref().is_ok_and(|read| *read < 64) || ended.as_ref().is_err_and(reset),
            "{listener}: {ended:?}"
        );
    }
}

#[test]
fn an_admin_listener_beyond_loopback_tells_browsers_to_stay_with_tls() {
    let dir = tempfile::tempdir().unwrap();
    let files = Certificates::for_loopback(dir.path());
    let given = format!("{{ certificate: {}, key: {} }}", files.cert.display(), files.key.display());
    let config = format!("tls: {{ admin: {given} }}\nadmin: {{ tokens: [0123456789abcdef] }}\n");
    fs::write(dir.path().join("tidegate.yaml"), config).unwrap();
    let config = dir.path().join("tidegate.yaml");
    let args = ["--config", config.to_str().unwrap(), "--admin", "0.0.0.0:0", "--http", "127.0.0.1:0"];
    let args = [&args[..], &["--grpc", "off", "--resp", "off"]].concat();
    let mut server = TidegateServer::start(BINARY, &args);
    let address = SocketAddr::from(([127, 0, 0, 1], server.addr("admin").port()));
    let answer = ask(&mut connect(address, &files.ca, None, "http/1.1").unwrap(), HTTP).unwrap();
    assert!(answer.contains("strict-transport-security: max-age=2592000"), "{answer}");
    // Who signs in here gets a cookie that the browser never sends in the clear.
    let body = r#"{"token":"0123456789abcdef"}"#;
    let sign_in = format!(
        "POST /admin/v1/session HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut client = connect(address, &files.ca, None, "http/1.1").unwrap();
    let answer = ask(&mut client, sign_in.as_bytes()).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(
        cookie.starts_with("tidegate_session=") && cookie.ends_with("; HttpOnly; SameSite=Strict; Secure"),
        "{cookie}"
    );
    assert!(!server.stderr().contains("in the clear beyond"), "{}", server.stderr());
}

#[test]
fn commands_ask_over_tls_whom_they_trust() {
    let (dir, others) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (own, strange) = (Certificates::for_loopback(dir.path()), Certificates::for_loopback(others.path()));
    let (mut server, _upstream) = serve_over_tls(dir.path(), "{ certificate: cert.pem, key: key.pem }");
    let (admin, http) =
        (format!("https://{}", server.addr("admin")), format!("https://{}", server.addr("http")));
    let told = |trusts: Option<&Certificates>, words: &[&str]| {
        let mut command = tidegate(words);
        command.env("HOME", others.path()).env("TIDEGATE_TOKEN", "not-the-token-of-anybody");
        if let Some(trusts) = trusts {
            command.env("TIDEGATE_CA", &trusts.ca);
        }
        ran(&command.output().unwrap())
    };
    let list = ["rules", "list", "--admin", &*admin];
    // Who gets as far as this was heard.
    assert!(told(Some(&own), &list).contains("token"), "{}", told(Some(&own), &list));
    let by_flag = [&list[..], &["--ca", own.ca.to_str().unwrap()]].concat();
    assert_eq!(told(None, &by_flag), told(Some(&own), &list));
    for trusts in [Some(&strange), None] {
        let told = told(trusts, &list);
        assert!(told.contains("cannot connect") && told.contains("hint: name a PEM file"), "{told}");
    }
    let check = ["check", "--server", &*http, "--domain", "api", "user=1"];
    assert!(told(Some(&own), &check).contains("exit 0"), "{}", told(Some(&own), &check));
    assert!(told(Some(&strange), &check).contains("exit 2"));
    let plain = ["rules", "list", "--admin", &admin.replace("https", "http")];
    assert!(told(Some(&own), &plain).contains("exit 1"), "in the clear there is nothing");
}
