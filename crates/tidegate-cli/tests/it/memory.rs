//! What peers can make the real process hold: by what the system says it holds, not by our own count.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tidegate_testkit::{TidegateServer, eventually};

use crate::access::{PATIENCE, serve};
use crate::frames::{ACK, DATA, END_HEADERS, HEADERS, Peer, SETTINGS, WINDOW_UPDATE, frame, post};

const MIB: u64 = 1 << 20;
/// For what takes seconds of the server's own work, on a machine that others keep busy.
const BUSY_PATIENCE: Duration = Duration::from_secs(180);
const RLS: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const JSON: (&str, &str) = ("content-type", "application/json");
const GRPC: (&str, &str) = ("content-type", "application/grpc");

/// Bytes of memory of its own that a process holds now. Pages of its program do not count: a debug build is large.
fn memory(server: &mut TidegateServer) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process().pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

/// A service that accepts connections and never reads from them.
fn deaf() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // It ends with the test's process.
    std::thread::spawn(move || {
        let _kept: Vec<TcpStream> = listener.incoming().flatten().collect();
    });
    address
}

fn serve_with_proxy(dir: &std::path::Path) -> TidegateServer {
    let config = format!(
        "proxy:\n  listen: 127.0.0.1:0\n  domain: api\n\
         \x20 upstreams: [{{ name: a, targets: ['http://{}'] }}]\n",
        deaf()
    );
    serve(dir, &config, &[("TIDEGATE_WORKERS", "2"), ("RUST_BACKTRACE", "0")])
}

/// Begins a thousand requests of 240 KB on one connection and ends none, as far as the server lets it.
fn hold(to: SocketAddr, path: &str, header: (&str, &str)) -> Peer {
    let mut peer = Peer::connect(to);
    peer.next_of(SETTINGS);
    peer.send(&frame(SETTINGS, ACK, 0, &[]));
    let window = Arc::new(AtomicI64::new(65_535));
    let (grows, mut reader) = (window.clone(), Peer(peer.0.try_clone().unwrap()));
    std::thread::spawn(move || {
        while let Some(frame) = reader.next() {
            if (frame.kind, frame.stream) == (WINDOW_UPDATE, 0) {
                let more = u32::from_be_bytes(frame.payload[..4].try_into().unwrap());
                grows.fetch_add(i64::from(more), Ordering::SeqCst);
            }
        }
    });
    // A window that has not opened within two seconds is what holds us back.
    let may_send = || {
        (0..400).any(|_| {
            let open = window.load(Ordering::SeqCst) >= 16_000;
            if !open {
                std::thread::park_timeout(Duration::from_millis(5));
            }
            open
        })
    };
    for stream in (1..2_000).step_by(2) {
        let begun = peer.0.write_all(&frame(HEADERS, END_HEADERS, stream, &post(path, &[header])));
        for _ in 0..15 {
            if begun.is_err() || !may_send() {
                return peer;
            }
            window.fetch_sub(16_000, Ordering::SeqCst);
            if peer.0.write_all(&frame(DATA, 0, stream, &[b' '; 16_000])).is_err() {
                return peer;
            }
        }
    }
    peer
}

/// The same on so many connections at once.
fn hold_on(
    connections: usize,
    to: SocketAddr,
    path: &'static str,
    header: (&'static str, &'static str),
) -> Vec<Peer> {
    let holding: Vec<_> =
        (0..connections).map(|_| std::thread::spawn(move || hold(to, path, header))).collect();
    holding.into_iter().map(|one| one.join().unwrap()).collect()
}

/// Ordinary requests, on connections of which every worker has some: with them goes what was freed.
fn ordinary_requests(to: SocketAddr) {
    let body = r#"{"domain":"api","attributes":{"user":"42"},"cost":0}"#;
    let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: ";
    let request = format!("{head}{}\r\n\r\n{body}", body.len());
    let mut clients: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(to).unwrap()).collect();
    for _ in 0..5 {
        for client in &mut clients {
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.write_all(request.repeat(20).as_bytes()).unwrap();
        }
        for client in &mut clients {
            let (mut answered, mut bytes) = (0, [0; 16_384]);
            while answered < 20 {
                let read = client.read(&mut bytes).unwrap();
                answered += String::from_utf8_lossy(&bytes[..read]).matches("HTTP/1.1 ").count();
            }
        }
    }
}

#[test]
fn a_thousand_unfinished_requests_on_a_connection_hold_little_and_all_of_it_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve_with_proxy(dir.path());
    let [http, grpc, proxy] = ["http", "grpc", "proxy"].map(|listener| server.addr(listener));
    ordinary_requests(http);
    let at_first = memory(&mut server);
    // Without a budget one connection would hold 229 MiB, and five 1.1 GiB.
    for (listener, address, path, header, connections, most) in [
        ("http", http, "/v1/check", JSON, 1, 64 * MIB),
        ("http", http, "/v1/check", JSON, 5, 192 * MIB),
        ("grpc", grpc, RLS, GRPC, 5, 192 * MIB),
        ("proxy", proxy, "/", JSON, 5, 192 * MIB),
    ] {
        let before = memory(&mut server);
        let held = hold_on(connections, address, path, header);
        let grown = memory(&mut server).saturating_sub(before);
        assert!(grown < most, "{connections} on {listener} hold {} MiB", grown / MIB);
        drop(held);
        eventually("it comes back", BUSY_PATIENCE, || {
            ordinary_requests(http);
            memory(&mut server).saturating_sub(at_first) < 32 * MIB
        });
    }
}

#[test]
fn uploads_to_a_service_that_does_not_read_hold_little() {
    const UPLOADS: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve_with_proxy(dir.path());
    let proxy = server.addr("proxy");
    let before = memory(&mut server);
    let uploads: Vec<_> = (0..UPLOADS)
        .map(|_| {
            std::thread::spawn(move || {
                let mut upload = TcpStream::connect(proxy).unwrap();
                upload.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
                upload.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n\r\n").unwrap();
                // Until nobody takes any more.
                while upload.write_all(&[0; 65_536]).is_ok() {}
                upload
            })
        })
        .collect();
    let _uploads: Vec<TcpStream> = uploads.into_iter().map(|upload| upload.join().unwrap()).collect();
    let each = memory(&mut server).saturating_sub(before) / UPLOADS as u64;
    // A buffer of 64 KiB on each side, and what is under way between them; with hyper's own bounds it is 1,250 KiB.
    assert!(each < 512 * 1024, "{} KiB each", each / 1024);
}
