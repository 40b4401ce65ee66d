//! The section `proxy` of the real server.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use tempfile::TempDir;
use tidegate_testkit::{Certificates, Redis, Signal, TidegateServer, Upstream, eventually, http};

use crate::stub::{Stub, reply};

const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");
const PATIENCE: Duration = Duration::from_secs(20);
const FREE_PORTS: [&str; 8] =
    ["--http", "127.0.0.1:0", "--grpc", "off", "--resp", "off", "--admin", "127.0.0.1:0"];

const RULES: &str = "
domain: api
rules:
  - { name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 2, window: 1d }] }
";

/// A server with these rules, and this configuration.
fn serve(config: &str) -> (TidegateServer, TempDir) {
    serve_rules(RULES, config)
}

fn serve_rules(rules: &str, config: &str) -> (TidegateServer, TempDir) {
    let dir = written(config);
    fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    let file = dir.path().join("tidegate.yaml");
    let server =
        TidegateServer::start(BINARY, &[&FREE_PORTS[..], &["--config", file.to_str().unwrap()]].concat());
    (server, dir)
}

fn written(config: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yaml"), RULES).unwrap();
    fs::write(dir.path().join("tidegate.yaml"), format!("rules: {{ paths: [rules.yaml] }}\n{config}"))
        .unwrap();
    dir
}

fn proxy_to(upstream: SocketAddr) -> String {
    format!(
        "identity: {{ headers: {{ user: x-user }} }}\n\
         proxy: {{ listen: '127.0.0.1:0', domain: api, upstreams: [{{ name: a, targets: ['http://{upstream}'] }}] }}"
    )
}

/// The next connection, once a request came on it: an answer before that would be no answer.
fn asked(backend: &TcpListener) -> TcpStream {
    let (mut stream, _) = backend.accept().unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    stream
}

#[test]
fn it_forwards_what_rules_let_pass_and_is_counted() {
    let upstream = Upstream::start();
    let (mut server, _dir) = serve(&proxy_to(upstream.addr()));
    let proxy = server.addr("proxy");
    let get = |user| http::request(proxy, "GET", "/", &[("x-user", user)], b"").unwrap().status;
    assert_eq!([get("1"), get("1"), get("1"), get("2")], [200, 200, 429, 200]);
    assert_eq!(upstream.requests(), 3);
    let metrics = http::get(server.addr("admin"), "/metrics").text();
    let timed =
        metrics.lines().find(|line| line.contains("decision_duration_seconds_count{transport=\"proxy\"}"));
    assert!(timed.is_some_and(|line| line.ends_with(" 4")), "{metrics}");
    assert_eq!(server.terminate().code(), Some(0));
}

#[test]
fn told_to_stop_it_finishes_what_is_under_way() {
    let backend = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (mut server, _dir) = serve(&proxy_to(backend.local_addr().unwrap()));
    let proxy = server.addr("proxy");
    let mut client = TcpStream::connect(proxy).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut behind = asked(&backend);
    server.process().signal(Signal::TERM);
    eventually("nobody new is let in", PATIENCE, || TcpStream::connect(proxy).is_err());
    behind.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("done"), "{answer}");
    assert_eq!(server.process().wait_exit(PATIENCE).unwrap().code(), Some(0));
}

#[test]
fn mistakes_are_found_before_anything_listens() {
    let upstream = "upstreams: [{ name: a, targets: ['http://127.0.0.1:1'] }]";
    for (config, says) in [
        (format!("proxy: {{ listen: '127.0.0.1:0', domain: ape, {upstream} }}"), "did you mean `api`?"),
        ("proxy: { listen: '127.0.0.1:0', domain: api, upstreams: [] }".to_owned(), "proxy.upstreams"),
        (
            format!(
                "proxy: {{ listen: '127.0.0.1:0', domain: api, {upstream}, tls: {{ certificate: c, key: k }} }}"
            ),
            "cannot read a certificate from",
        ),
        (format!("proxy: {{ domain: api, {upstream} }}"), "listen"),
        (
            format!("proxy: {{ listen: '127.0.0.1:0', domain: api, {upstream}, speed: 9 }}"),
            "unknown field `speed`",
        ),
        ("identity: { trusted_proxies: [everywhere] }".to_owned(), "identity.trusted_proxies[0]"),
    ] {
        let dir = written(&config);
        let said =
            crate::run_in(dir.path(), &["serve", "--config", "tidegate.yaml", "--http", "127.0.0.1:0"]);
        assert!(said.starts_with("exit 1") && said.contains(says), "{config}: {said}");
        assert!(!said.contains("listening"), "{config}: {said}");
    }
}

#[test]
fn tokens_are_verified_with_the_keys_that_the_issuer_publishes() {
    let key = rcgen::KeyPair::generate().unwrap();
    let point = key.public_key_raw().to_vec();
    let coordinate =
        |bytes: &[u8]| base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, bytes);
    let (x, y) = (coordinate(&point[1..33]), coordinate(&point[33..65]));
    let keys =
        format!(r#"{{"keys":[{{"kty":"EC","crv":"P-256","alg":"ES256","kid":"k","x":"{x}","y":"{y}"}}]}}"#);
    let issuer = Stub::start(move |_, _| reply("200 OK", &keys));
    let upstream = Upstream::start();
    let (mut server, _dir) = serve(&format!(
        "identity: {{ jwt: {{ jwks: 'http://{}/keys' }} }}\n\
         proxy: {{ listen: '127.0.0.1:0', domain: api, upstreams: [{{ name: a, targets: ['http://{}'] }}] }}",
        issuer.address,
        upstream.addr()
    ));
    let mut header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::ES256);
    header.kid = Some("k".to_owned());
    let signing = jsonwebtoken::EncodingKey::from_ec_der(&key.serialize_der());
    let claims = serde_json::json!({ "sub": "42", "exp": 4_000_000_000_u64 });
    let token = format!("Bearer {}", jsonwebtoken::encode(&header, &claims, &signing).unwrap());
    let proxy = server.addr("proxy");
    let get = |token: &str| http::request(proxy, "GET", "/", &[("authorization", token)], b"").unwrap();
    // The rule counts by user. Whoever brings a token that cannot be verified counts by its address: twice, then no more.
    // Of the last character only two bits count: with another one the signature might still be the same.
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let other = if signature.starts_with('A') { 'B' } else { 'A' };
    let forged = format!("{signed}.{other}{}", &signature[1..]);
    assert_eq!([0; 3].map(|_| get(&forged).status), [200, 200, 429]);
    eventually("the keys are here", PATIENCE, || get(&token).status == 200);
    assert_eq!([get(&token).status, get(&token).status], [200, 429]);
    assert_eq!(get(&forged).status, 429);
}

#[test]
fn the_configuration_in_the_guide_is_one() {
    let guide =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/proxy.md")).unwrap();
    let blocks = guide.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let config = blocks.clone().find(|block| block.contains("proxy:")).expect("the guide shows one");
    let dir = tempfile::tempdir().unwrap();
    // What it points to: rules of both domains, and a certificate.
    let rules = format!("{RULES}---{}", RULES.replace("api", "grpc"));
    fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    fs::write(dir.path().join("tidegate.yaml"), config).unwrap();
    let _certificates = Certificates::for_loopback(dir.path());
    let said = crate::run_in(dir.path(), &["validate", "--config", "tidegate.yaml"]);
    assert!(said.starts_with("exit 0"), "{said}");
}

/// Two proxies on one Redis, one request at a time between them.
#[test]
fn a_lease_is_renewed_while_an_answer_lasts_and_ends_with_the_node_that_held_it() {
    let (redis, backend) = (Redis::start(), TcpListener::bind(("127.0.0.1", 0)).unwrap());
    let config = format!(
        "store: {{ url: 'redis://{}', timeout: 2s }}\n\
         proxy: {{ listen: '127.0.0.1:0', domain: slots, upstreams: [{{ name: a, targets: ['http://{}'] }}] }}",
        redis.addr(),
        backend.local_addr().unwrap()
    );
    let rules =
        "domain: slots\nrules: [{ name: one, limits: [{ algorithm: concurrency, limit: 1, ttl: 1s }] }]";
    let [(mut first, _one), (mut second, _two)] = [(); 2].map(|()| serve_rules(rules, &config));
    let get = |proxy: SocketAddr| http::request(proxy, "GET", "/", &[], b"").unwrap().status;

    // An answer through the first that begins and does not end.
    let mut client = TcpStream::connect(first.addr("proxy")).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut behind = asked(&backend);
    behind.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nbeg").unwrap();
    let mut begun = Vec::new();
    while !begun.ends_with(b"beg") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        begun.push(byte[0]);
    }
    // Much longer than the lease lives unless renewed: nobody else gets in, on either node.
    let proxy = second.addr("proxy");
    let until = tokio::time::Instant::now() + Duration::from_secs(3);
    while tokio::time::Instant::now() < until {
        assert_eq!(get(proxy), 429);
        std::thread::park_timeout(Duration::from_millis(100));
    }
    // Nobody releases it now. It ends by itself.
    first.process().kill();
    let answering = std::thread::spawn(move || {
        let mut behind = asked(&backend);
        behind.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    });
    eventually("the dead node's lease has ended", PATIENCE, || get(proxy) == 200);
    answering.join().unwrap();
}

#[test]
fn one_proxy_reaches_another_over_tls() {
    let (upstream, dir) = (Upstream::start(), tempfile::tempdir().unwrap());
    let files = Certificates::for_loopback(dir.path());
    let (mut inner, _inner) = serve(&format!(
        "proxy: {{ listen: '127.0.0.1:0', domain: api, tls: {{ certificate: '{}', key: '{}' }}, \
         upstreams: [{{ name: a, targets: ['http://{}'] }}] }}",
        files.cert.display(),
        files.key.display(),
        upstream.addr()
    ));
    let (mut outer, _outer) = serve(&format!(
        "proxy: {{ listen: '127.0.0.1:0', domain: api, \
         upstreams: [{{ name: b, targets: ['https://localhost:{}'], ca: '{}' }}] }}",
        inner.addr("proxy").port(),
        files.ca.display()
    ));
    let answer = http::request(outer.addr("proxy"), "GET", "/x", &[("host", "shop.example")], b"").unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let seen = &answer.json()["headers"];
    assert_eq!(
        (&seen["host"], &seen["x-forwarded-for"]),
        (&"shop.example".into(), &"127.0.0.1, 127.0.0.1".into())
    );
}
