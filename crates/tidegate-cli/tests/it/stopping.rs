//! How a server stops: not ready first, then nobody new, then what is under way, then the end.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::json;
use tidegate_testkit::{Signal, eventually, http};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::access::{PATIENCE, serve};
use crate::control_world::{Node, TOKEN, rules_of};

/// What gRPC's health service says, by its number: 1 is serving, 2 not serving. Nothing where nobody answers.
pub(crate) fn grpc_health(address: SocketAddr) -> Option<i32> {
    grpc_health_of(address, "")
}

fn grpc_health_of(address: SocketAddr, service: &str) -> Option<i32> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.ok()?;
        let request = HealthCheckRequest { service: service.to_owned() };
        Some(HealthClient::new(channel).check(request).await.ok()?.into_inner().status)
    })
}

#[test]
fn a_stop_first_says_not_ready_on_http_and_grpc_and_still_serves() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve(dir.path(), "", &[("TIDEGATE_DRAIN__DELAY", "10m")]);
    let (http, admin, grpc) = (server.addr("http"), server.addr("admin"), server.addr("grpc"));
    assert_eq!(http::get(http, "/readyz").text(), "ready\n");
    assert_eq!([grpc_health(grpc), grpc_health_of(grpc, "ratelimit")], [Some(1); 2]);
    server.process().signal(Signal::TERM);
    eventually("it says that it is not ready", PATIENCE, || http::get(http, "/readyz").status == 503);
    assert_eq!(
        [grpc_health(grpc), grpc_health_of(grpc, "ratelimit")],
        [Some(2); 2],
        "as envoyproxy/ratelimit calls itself"
    );
    // It still serves those who have not heard.
    let check = r#"{"domain":"api","attributes":{"user":"42"}}"#;
    assert_eq!(http::post_json(http, "/v1/check", check).status, 200);
    assert_eq!(http::get(admin, "/healthz").status, 200);
    // Who asks twice does not wait.
    server.process().signal(Signal::TERM);
    assert!(server.process().wait_exit(PATIENCE).expect("it ends").success());
}

#[test]
fn a_stop_then_accepts_nobody_and_says_once_that_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve(dir.path(), "", &[("TIDEGATE_DRAIN__DELAY", "500ms")]);
    let http = server.addr("http");
    eventually("the start says where counters live", PATIENCE, || {
        server.stderr().contains("store=\"memory:\"")
    });
    let idle = TcpStream::connect(http).unwrap();
    server.process().signal(Signal::TERM);
    eventually("it accepts nobody", PATIENCE, || TcpStream::connect(http).is_err());
    let status = server.process().wait_exit(PATIENCE).expect("it ends");
    assert!(status.success());
    let log = server.stderr();
    assert_eq!(log.matches(" stopped ").count(), 1, "{log}");
    // Nothing that ends with the server is taken for a failure.
    let after = log.split(" stopping").nth(1).unwrap();
    assert!(!after.contains(" WARN ") && !after.contains(" ERROR "), "{log}");
    drop(idle);
}

/// A service that changes protocols as it is asked to, and then says everything back.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // It ends with the test's process.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut bytes = [0; 1024];
                let switching =
                    b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
                if stream.read(&mut bytes).is_err() || stream.write_all(switching).is_err() {
                    return;
                }
                while let Ok(read @ 1..) = stream.read(&mut bytes) {
                    if stream.write_all(&bytes[..read]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Says something through a tunnel, and whether it came back.
fn echoes(tunnel: &mut TcpStream) -> bool {
    let mut said = [0; 5];
    tunnel.write_all(b"hello").is_ok() && tunnel.read_exact(&mut said).is_ok() && said == *b"hello"
}

#[test]
fn a_websocket_has_its_stated_time_at_a_stop_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "drain: {{ tunnels: 3s, timeout: 60s }}\nproxy:\n  listen: 127.0.0.1:0\n  domain: api\n\
         \x20 upstreams: [{{ name: a, targets: ['http://{}'] }}]\n",
        echo()
    );
    let mut server = serve(dir.path(), &config, &[]);
    let proxy = server.addr("proxy");
    let mut tunnel = TcpStream::connect(proxy).unwrap();
    tunnel.set_read_timeout(Some(PATIENCE)).unwrap();
    tunnel
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        tunnel.read_exact(&mut byte).unwrap();
        answer.extend(byte);
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
    assert!(echoes(&mut tunnel));
    server.process().signal(Signal::TERM);
    eventually("it accepts nobody", PATIENCE, || TcpStream::connect(proxy).is_err());
    assert!(echoes(&mut tunnel), "its time has just begun");
    // Far less than the minute that requests would have.
    let status = server.process().wait_exit(Duration::from_secs(30)).expect("a tunnel does not hold a stop");
    assert!(status.success());
    assert!(!echoes(&mut tunnel));
}

/// Whether the process has a thread for work that requests must not wait for.
fn works(node: &mut Node) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", node.server.process().pid())).unwrap();
    let name =
        |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.flatten().any(|task| name(task) == "low-priority\n")
}

#[test]
fn neither_health_nor_a_stop_waits_for_a_preview_of_many_rules() {
    // Many seconds of work, which the stop does not wait for.
    const RULES: usize = 50_000;
    let mut node = Node::start("decision_log: {}");
    let mut text = rules_of(3);
    for number in 0..RULES {
        let _ = writeln!(
            text,
            "  - {{ name: r{number}, match: {{ path: '/v1/{number}/*' }}, key: [user], limits: [5/s] }}"
        );
    }
    let proposed = json!({ "documents": [{ "domain": "api", "text": text }] }).to_string();
    eventually("the start is over", PATIENCE, || !works(&mut node));
    let mut preview = TcpStream::connect(node.admin).unwrap();
    let asked = format!(
        "POST /admin/v1/replay HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{proposed}",
        proposed.len()
    );
    preview.write_all(asked.as_bytes()).unwrap();
    preview.set_nonblocking(true).unwrap();
    let is_unanswered =
        |preview: &TcpStream| preview.peek(&mut [0]).is_err_and(|why| why.kind() == ErrorKind::WouldBlock);
    eventually("it is worked on", PATIENCE, || works(&mut node));
    for _ in 0..3 {
        assert_eq!(http::get(node.admin, "/healthz").status, 200);
    }
    assert!(is_unanswered(&preview), "health was answered only after it");
    node.server.process().signal(Signal::TERM);
    eventually("the stop has begun", PATIENCE, || node.server.stderr().contains(" stopping: "));
    assert!(is_unanswered(&preview), "the stop began only after it");
    let status = node.server.process().wait_exit(PATIENCE).expect("it ends");
    assert!(status.success());
}
