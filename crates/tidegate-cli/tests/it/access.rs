//! Who may ask a running server, and how it stops: the real binary on real sockets.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tidegate_testkit::resp::Client;
use tidegate_testkit::{Certificates, TidegateServer, Upstream, eventually, http};

use crate::{run_in, tidegate};

const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");
const PATIENCE: Duration = Duration::from_secs(20);
const FREE: [&str; 8] =
    ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
const TOKEN: &str = "a-token-of-the-gateways";
/// `printf %s another-token-of-theirs | sha256sum`
const OTHER: &str = "another-token-of-theirs";

/// A server with this configuration, on free ports.
fn serve(dir: &Path, config: &str, env: &[(&str, &str)]) -> TidegateServer {
    let file = dir.join("tidegate.yaml");
    fs::write(&file, config).unwrap();
    let args = [&["--config", file.to_str().unwrap()][..], &FREE].concat();
    TidegateServer::start_with_env(BINARY, &args, &[&[("TIDEGATE_DRAIN__DELAY", "0s")], env].concat())
}

/// What a TLS client gets back for `bytes`: at least one byte, or an error.
fn ask_over_tls(
    to: SocketAddr,
    trusts: &Certificates,
    shows: Option<&Certificates>,
    alpn: &str,
    bytes: &[u8],
) -> io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&trusts.ca).unwrap()).unwrap();
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
    let mut stream = StreamOwned::new(connection, socket);
    stream.write_all(bytes)?;
    let mut answer = [0; 4096];
    match stream.read(&mut answer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        read => Ok(String::from_utf8_lossy(&answer[..read]).into_owned()),
    }
}

const HTTP: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
const HTTP_2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

#[test]
fn every_listener_speaks_tls_and_can_want_a_certificate() {
    let (dir, others) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (own, strange) = (Certificates::for_loopback(dir.path()), Certificates::for_loopback(others.path()));
    let upstream = Upstream::start();
    let files = "{ certificate: cert.pem, key: key.pem, client_ca: ca.pem }";
    let config = format!(
        "tls: {{ http: {files}, grpc: {files}, resp: {files}, admin: {files} }}\n\
         proxy:\n  listen: 127.0.0.1:0\n  domain: api\n  tls: {files}\n\
         \x20 upstreams: [{{ name: a, targets: ['http://{}'] }}]\n",
        upstream.addr()
    );
    let mut server = serve(dir.path(), &config, &[]);
    for (listener, alpn, asks, answers) in [
        ("http", "http/1.1", HTTP, "HTTP/1.1 200"),
        ("http", "h2", HTTP_2, "\0\0"),
        ("grpc", "h2", HTTP_2, "\0\0"),
        ("resp", "", b"PING\r\n", "+PONG"),
        ("admin", "http/1.1", HTTP, "HTTP/1.1 200"),
        ("proxy", "http/1.1", HTTP, "HTTP/1.1 200"),
    ] {
        let address = server.addr(listener);
        let answer = ask_over_tls(address, &own, Some(&own), alpn, asks).unwrap();
        assert!(answer.starts_with(answers), "{listener} {alpn}: {answer:?}");
        assert!(ask_over_tls(address, &own, None, alpn, asks).is_err(), "{listener} without a certificate");
        assert!(ask_over_tls(address, &own, Some(&strange), alpn, asks).is_err(), "{listener}: a stranger's");
        assert!(ask_over_tls(address, &strange, Some(&own), alpn, asks).is_err(), "{listener}: not trusted");
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
fn certificates_are_reloaded_on_sighup_and_on_change_and_a_broken_one_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let first = Certificates::for_loopback(dir.path());
    let upstream = Upstream::start();
    let files = "{ certificate: cert.pem, key: key.pem }";
    let config = format!(
        "tls: {{ http: {files} }}\nproxy:\n  listen: 127.0.0.1:0\n  domain: api\n  tls: {files}\n\
         \x20 upstreams: [{{ name: a, targets: ['http://{}'] }}]\n",
        upstream.addr()
    );
    let mut server = serve(dir.path(), &config, &[]);
    let (http, proxy) = (server.addr("http"), server.addr("proxy"));
    let trusted = |by: &Certificates| {
        [http, proxy].map(|address| ask_over_tls(address, by, None, "http/1.1", HTTP).is_ok())
    };
    assert_eq!(trusted(&first), [true, true]);
    let old = dir.path().join("old.pem");
    fs::copy(&first.ca, &old).unwrap();
    let old = Certificates { ca: old, ..first.clone() };
    let second = Certificates::for_loopback(dir.path());
    eventually("the new certificate is shown", PATIENCE, || trusted(&second) == [true, true]);
    assert_eq!(trusted(&old), [false, false]);
    fs::write(&second.cert, "no certificate").unwrap();
    server.reload();
    eventually("the log says so", PATIENCE, || server.stderr().contains("certificate not reloaded"));
    assert_eq!(trusted(&second), [true, true]);
}

#[test]
fn a_token_is_needed_where_tokens_are_configured_and_any_of_them_will_do() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tokens"), format!("{OTHER}\n")).unwrap();
    let config = format!("access: {{ tokens: [{TOKEN}], tokens_file: tokens }}");
    let mut server = serve(dir.path(), &config, &[]);
    let address = server.addr("http");
    let body = br#"{"domain":"api","attributes":{"user":"42"}}"#;
    let ask = |header: Option<(&str, &str)>, path: &str| {
        let headers = [header, Some(("content-type", "application/json"))];
        let headers: Vec<_> = headers.into_iter().flatten().collect();
        http::request(address, "POST", path, &headers, body).unwrap()
    };
    let bearer = |token: &str| format!("Bearer {token}");
    assert_eq!(ask(Some(("authorization", &bearer(TOKEN))), "/v1/check").status, 200);
    assert_eq!(ask(Some(("authorization", &bearer(OTHER))), "/v1/check").status, 200);
    assert_eq!(ask(Some(("x-tidegate-token", TOKEN)), "/v1/check").status, 200);
    for wrong in [None, Some(("authorization", "Bearer wrong")), Some(("x-tidegate-token", "wrong"))] {
        let refused = ask(wrong, "/v1/check");
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
        assert_eq!(refused.json()["type"], "urn:tidegate:problem:unauthorized");
        assert!(refused.json()["hint"].as_str().unwrap().contains("Bearer"), "{}", refused.text());
    }
    // What a gateway asks about has its client's Authorization, so ours stands elsewhere.
    assert_eq!(ask(Some(("authorization", &bearer(TOKEN))), "/v1/auth?domain=api").status, 401);
    assert_ne!(ask(Some(("x-tidegate-token", TOKEN)), "/v1/auth?domain=api").status, 401);
    assert_eq!(http::get(address, "/readyz").status, 200);
    // Rotation: the file alone changes.
    fs::write(dir.path().join("tokens"), "a-third-token-of-them\n").unwrap();
    eventually("the new one is accepted", PATIENCE, || {
        ask(Some(("authorization", &bearer("a-third-token-of-them"))), "/v1/check").status == 200
    });
    assert_eq!(ask(Some(("authorization", &bearer(OTHER))), "/v1/check").status, 401);
    let metrics = http::get(server.addr("admin"), "/metrics").text();
    assert!(metrics.contains("tidegate_refused_logins_total{listener=\"http_grpc\"}"), "{metrics}");
    assert!(server.stderr().contains("refused: "), "{}", server.stderr());
}

#[test]
fn guessing_a_password_is_slowed_down_logged_and_limited() {
    let dir = tempfile::tempdir().unwrap();
    let users = "resp: { users: [{ name: app, passwords: [old-one, sha256:\
                 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad] }] }";
    let mut server = serve(dir.path(), users, &[]);
    let address = server.addr("resp");
    for right in ["old-one", "abc"] {
        let mut client = Client::connect(address);
        assert_eq!(client.cmd(&["AUTH", "app", right]).text(), "OK");
    }
    // A hundred guesses in one packet on each of five connections: three of each are looked at, ten in all.
    let guesses = "AUTH app wrong\r\n".repeat(100);
    let connections: Vec<_> = (0..5)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(guesses.as_bytes()).unwrap();
            stream
        })
        .collect();
    let replies: usize = connections
        .into_iter()
        .map(|mut stream| {
            let mut told = Vec::new();
            let _ = stream.read_to_end(&mut told);
            String::from_utf8(told).unwrap().matches("WRONGPASS").count()
        })
        .sum();
    assert!(replies <= 15, "{replies} guesses were answered");
    let refused = Client::connect(address).cmd(&["AUTH", "app", "old-one"]);
    assert!(refused.text().contains("too many wrong passwords"), "{}", refused.text());
    let log = server.stderr();
    assert_eq!(log.matches("wrong password").count(), 1, "{log}");
    let metrics = http::get(server.addr("admin"), "/metrics").text();
    assert!(metrics.contains("tidegate_refused_logins_total{listener=\"resp\"}"), "{metrics}");
}

#[test]
fn an_admin_listener_beyond_loopback_is_refused_without_a_token_and_wants_it_with_one() {
    let dir = tempfile::tempdir().unwrap();
    let refused = run_in(dir.path(), &["serve", "--admin", "0.0.0.0:0", "--http", "127.0.0.1:0"]);
    assert!(refused.contains("exit 1") && refused.contains("admin.tokens"), "{refused}");
    fs::write(dir.path().join("tidegate.yaml"), format!("admin: {{ tokens: [{TOKEN}] }}")).unwrap();
    let config = dir.path().join("tidegate.yaml");
    let args = ["--config", config.to_str().unwrap(), "--admin", "0.0.0.0:0", "--http", "127.0.0.1:0"];
    let args = [&args[..], &["--grpc", "off", "--resp", "off"]].concat();
    let mut server = TidegateServer::start(BINARY, &args);
    let address = SocketAddr::from(([127, 0, 0, 1], server.addr("admin").port()));
    assert_eq!(http::get(address, "/metrics").status, 401);
    assert_eq!(http::get(address, "/healthz").status, 200);
    let bearer = format!("Bearer {TOKEN}");
    let metrics = http::request(address, "GET", "/metrics", &[("authorization", &bearer)], b"").unwrap();
    assert_eq!(metrics.status, 200);
}

#[test]
fn a_stop_first_says_not_ready_then_accepts_nobody_then_says_that_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve(dir.path(), "", &[("TIDEGATE_DRAIN__DELAY", "2s")]);
    let (http, admin) = (server.addr("http"), server.addr("admin"));
    assert_eq!(http::get(http, "/readyz").text(), "ready\n");
    eventually("the start says where counters live", PATIENCE, || {
        server.stderr().contains("store=\"memory:\"")
    });
    let idle = TcpStream::connect(http).unwrap();
    server.process().signal(tidegate_testkit::Signal::TERM);
    eventually("it says that it is not ready", PATIENCE, || http::get(http, "/readyz").status == 503);
    // It still serves those who have not heard.
    let check = r#"{"domain":"api","attributes":{"user":"42"}}"#;
    assert_eq!(http::post_json(http, "/v1/check", check).status, 200);
    assert_eq!(http::get(admin, "/healthz").status, 200);
    eventually("it accepts nobody", PATIENCE, || TcpStream::connect(http).is_err());
    let status = server.process().wait_exit(PATIENCE).expect("it ends");
    assert!(status.success());
    let log = server.stderr();
    assert_eq!(log.matches("stopped").count(), 1, "{log}");
    drop(idle);
}

#[test]
fn a_store_that_is_required_and_cannot_be_used_fails_the_start_without_its_password() {
    let dir = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("redis://user@{free}");
    let output = tidegate(&["serve", "--store", &url, "--http", "127.0.0.1:0"])
        .env("TIDEGATE_STORE__REQUIRED", "true")
        .env("TIDEGATE_STORE__PASSWORD", "hunter2")
        .current_dir(dir.path())
        .output()
        .unwrap();
    let told = crate::ran(&output);
    assert!(told.contains("exit 1"), "{told}");
    assert!(told.contains(&format!("the store redis://{free}/0 cannot be used")), "{told}");
    assert!(!told.contains("hunter2"), "{told}");
}

#[test]
fn a_pipe_that_nobody_writes_to_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let made = std::process::Command::new("mkfifo").arg(dir.path().join("rules.yaml")).status().unwrap();
    assert!(made.success());
    for args in [
        &["validate", "rules.yaml"][..],
        &["validate", "--config", "rules.yaml"],
        &["serve", "--rules", "rules.yaml"],
        &["serve", "--config", "rules.yaml"],
    ] {
        let told = run_in(dir.path(), args);
        assert!(told.contains("exit 1") && told.contains("not a regular file"), "{args:?}: {told}");
    }
}

#[test]
fn few_files_are_shared_between_listeners_and_none_of_them_is_locked_out() {
    let dir = tempfile::tempdir().unwrap();
    // The shell lowers both limits, so that the server cannot raise its own.
    let script = format!("ulimit -n 700; exec {BINARY} serve {}", FREE.join(" "));
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).env("TIDEGATE_WORKERS", "1").env("TIDEGATE_DRAIN__DELAY", "0s");
    command.env("TIDEGATE_DATA", dir.path().join("data"));
    let mut process = tidegate_testkit::Process::spawn("few-files", &command, dir.path());
    let address = |process: &tidegate_testkit::Process, what: &str| -> Option<SocketAddr> {
        let line = format!("listening {what} ");
        process.stdout().lines().find_map(|said| said.strip_prefix(&line)?.parse().ok())
    };
    let found = process.ready(PATIENCE, |process| {
        Some([address(process, "http")?, address(process, "grpc")?, address(process, "admin")?])
    });
    let [http, grpc, admin] = found.unwrap();
    assert!(process.stderr().contains("too few open files"), "{}", process.stderr());
    // More connections than all listeners together may have, on one of them, none of which sends anything.
    let flood: Vec<_> = (0..600).filter_map(|_| TcpStream::connect(http).ok()).collect();
    assert_eq!(http::get(http, "/healthz").status, 200);
    assert_eq!(http::get(admin, "/metrics").status, 200);
    let mut other = TcpStream::connect(grpc).unwrap();
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    other.write_all(HTTP_2).unwrap();
    assert!(other.read(&mut [0; 9]).unwrap() > 0);
    let log = process.stderr();
    assert!(log.lines().count() < 12, "{log}");
    drop(flood);
}
