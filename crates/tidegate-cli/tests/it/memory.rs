//! What peers can make the real process hold: by what the system says it holds, not by our own count.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tidegate_testkit::{TidegateServer, eventually};

use crate::access::{PATIENCE, serve};
use tidegate_testkit::frames::{
    ACK, DATA, END_HEADERS, END_STREAM, HEADERS, Peer, SETTINGS, WINDOW_UPDATE, frame, head, post,
};

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

/// A service that answers every request with two megabytes, and how many it was asked for.
fn generous() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, asked) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = asked.clone();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let counted = counted.clone();
            std::thread::spawn(move || {
                let _ = client.read(&mut [0; 4096]);
                counted.fetch_add(1, Ordering::SeqCst);
                let _ = client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2097152\r\n\r\n");
                while client.write_all(&[b'x'; 65_536]).is_ok() {}
            });
        }
    });
    (address, asked)
}

fn serve_with_proxy(dir: &std::path::Path) -> TidegateServer {
    serve_in_front_of(deaf(), dir)
}

fn serve_in_front_of(service: SocketAddr, dir: &std::path::Path) -> TidegateServer {
    let config = format!(
        "proxy:\n  listen: 127.0.0.1:0\n  domain: api\n\
         \x20 upstreams: [{{ name: a, targets: ['http://{service}'] }}]\n"
    );
    serve(dir, &config, &[("TIDEGATE_WORKERS", "2"), ("RUST_BACKTRACE", "0")])
}

/// How many bytes a peer may still send; a thread keeps count.
struct Window(Arc<AtomicI64>);

impl Window {
    fn of(peer: &Peer) -> Self {
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
        Window(window)
    }

    /// Whether so many bytes may be sent. A window that has not opened within two seconds is what holds us back.
    fn may_send(&self, bytes: i64) -> bool {
        let open = (0..400).any(|_| {
            let open = self.0.load(Ordering::SeqCst) >= bytes;
            if !open {
                std::thread::park_timeout(Duration::from_millis(5));
            }
            open
        });
        if open {
            self.0.fetch_sub(bytes, Ordering::SeqCst);
        }
        open
    }
}

/// Begins so many requests of 240 KB on one connection and ends none, as far as the server lets it.
fn hold(to: SocketAddr, requests: u32, path: &str, header: (&str, &str)) -> Peer {
    let mut peer = Peer::connect(to);
    peer.next_of(SETTINGS);
    peer.send(&frame(SETTINGS, ACK, 0, &[]));
    let window = Window::of(&peer);
    for stream in (1..2 * requests).step_by(2) {
        let begun = peer.0.write_all(&frame(HEADERS, END_HEADERS, stream, &post(path, &[header])));
        for _ in 0..15 {
            if begun.is_err() || !window.may_send(16_000) {
                return peer;
            }
            if peer.0.write_all(&frame(DATA, 0, stream, &[b' '; 16_000])).is_err() {
                return peer;
            }
        }
    }
    peer
}

/// What `one` does, on so many connections at once.
fn on_connections(connections: usize, one: impl Fn() -> Peer + Clone + Send + 'static) -> Vec<Peer> {
    let peers: Vec<_> = (0..connections).map(|_| std::thread::spawn(one.clone())).collect();
    peers.into_iter().map(|peer| peer.join().unwrap()).collect()
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
        let held = on_connections(connections, move || hold(address, 1_000, path, header));
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

/// What the process has grown by once it grows no more.
fn grown(server: &mut TidegateServer, before: u64) -> u64 {
    let (mut last, mut same) = (0, 0);
    for _ in 0..240 {
        std::thread::park_timeout(Duration::from_millis(250));
        let now = memory(server).saturating_sub(before);
        same = if now <= last + MIB { same + 1 } else { 0 };
        last = last.max(now);
        if same == 8 {
            break;
        }
    }
    last
}

#[test]
fn unread_answers_through_the_proxy_hold_little() {
    const CONNECTIONS: u64 = 3;
    const STREAMS: u32 = 128;
    let dir = tempfile::tempdir().unwrap();
    let (service, asked) = generous();
    let mut server = serve_in_front_of(service, dir.path());
    let proxy = server.addr("proxy");
    let before = memory(&mut server);
    let get = head(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "x")]);
    let _peers: Vec<Peer> = (0..CONNECTIONS)
        .map(|_| {
            // Windows as large as they can be: only the socket holds the server back.
            let mut peer = Peer::with_settings(proxy, &[(4, i32::MAX as u32)]);
            peer.send(&frame(WINDOW_UPDATE, 0, 0, &(i32::MAX as u32 - 65_535).to_be_bytes()));
            for number in 0..STREAMS {
                peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &get));
            }
            peer
        })
        .collect();
    let all = CONNECTIONS as usize * STREAMS as usize;
    eventually("all are asked for", BUSY_PATIENCE, || asked.load(Ordering::SeqCst) == all);
    let each = grown(&mut server, before) / CONNECTIONS;
    // 60 KiB for each request in flight in a debug build, and what it has read: without a bound 700 KiB.
    assert!(each < 30 * MIB, "{} MiB a connection", each / MIB);
}

/// Two workers, each with its budget for requests, and for each connection the bytes that came ahead of being read.
fn table_of_bounds(connections: u64) -> u64 {
    2 * 64 * MIB + connections * MIB
}

#[test]
fn unfinished_requests_on_many_connections_hold_what_the_table_says() {
    const CONNECTIONS: usize = 150;
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve_with_proxy(dir.path());
    let http = server.addr("http");
    let before = memory(&mut server);
    // 700 MiB, if nobody refused any of it.
    let _held = on_connections(CONNECTIONS, move || hold(http, 20, "/v1/check", JSON));
    let grown = memory(&mut server).saturating_sub(before);
    let most = table_of_bounds(CONNECTIONS as u64);
    assert!(grown < most, "{} MiB of {}", grown / MIB, most / MIB);
}

/// Asks for a thousand batches on one connection, and takes nothing of the answers' bodies.
fn leave_batches_untaken(to: SocketAddr) -> Peer {
    const CHECK: &str = r#"{"domain":"api","attributes":{"user":"1"},"cost":0}"#;
    let body = format!(r#"{{"checks":[{}]}}"#, [CHECK; 100].join(","));
    let mut peer = Peer::with_settings(to, &[(4, 0)]);
    let window = Window::of(&peer);
    for stream in (1..2_000).step_by(2) {
        let head = frame(HEADERS, END_HEADERS, stream, &post("/v1/check/batch", &[JSON]));
        let asked = [head, frame(DATA, END_STREAM, stream, body.as_bytes())].concat();
        if !window.may_send(body.len().try_into().unwrap()) || peer.0.write_all(&asked).is_err() {
            break;
        }
    }
    peer
}

#[test]
fn untaken_answers_of_batches_hold_little() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve_with_proxy(dir.path());
    let http = server.addr("http");
    let before = memory(&mut server);
    let _held = leave_batches_untaken(http);
    let grown = grown(&mut server, before);
    // Half of the connection's budget in answers, and requests that wait; 33 MiB in a debug build if nobody counted.
    assert!(grown < 28 * MIB, "{} MiB", grown / MIB);
}

/// Asks for as many small answers on one connection as the server accepts, and takes no byte of their bodies, or one.
fn leave_untaken(to: SocketAddr, taken: u32, path: &str, header: (&str, &str), body: &[u8]) -> Peer {
    let mut peer = Peer::with_settings(to, &[(4, taken)]);
    let window = Window::of(&peer);
    for stream in (1..2_048).step_by(2) {
        let head = frame(HEADERS, END_HEADERS, stream, &post(path, &[header]));
        let asked = [head, frame(DATA, END_STREAM, stream, body)].concat();
        if !window.may_send(body.len().try_into().unwrap()) || peer.0.write_all(&asked).is_err() {
            break;
        }
    }
    peer
}

#[test]
fn small_untaken_answers_hold_what_the_table_says() {
    const CONNECTIONS: usize = 10;
    const CHECK: &[u8] = br#"{"domain":"api","attributes":{"user":"1"},"cost":0}"#;
    const CALL: &[u8] = b"\0\0\0\0\x05\x0a\x03api";
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve_with_proxy(dir.path());
    let [http, grpc] = ["http", "grpc"].map(|listener| server.addr(listener));
    ordinary_requests(http);
    for (what, to, taken, path, header, body) in [
        ("checks", http, 0, "/v1/check", JSON, CHECK),
        ("checks of which a byte was taken", http, 1, "/v1/check", JSON, CHECK),
        ("authorisations", http, 0, "/v1/auth?domain=none", ("x-forwarded-uri", "/"), b""),
        ("calls", grpc, 0, RLS, GRPC, CALL),
    ] {
        let before = memory(&mut server);
        let _held = on_connections(CONNECTIONS, move || leave_untaken(to, taken, path, header, body));
        let grown = grown(&mut server, before);
        // The budget of each connection and the bytes that came ahead of being read, and in each worker a thousand requests
        // that came at once and were reset: the allocator keeps their pages for a while. 12 MiB each if nobody counted.
        let most = CONNECTIONS as u64 * 5 * MIB + 2 * 20 * MIB;
        assert!(grown < most, "{what}: {} MiB of {}", grown / MIB, most / MIB);
    }
}

/// Sends an upload to its last byte but one, as far as the server takes it, and keeps the connection.
fn upload(to: SocketAddr, token: &str) -> TcpStream {
    const BYTES: usize = 31 << 20;
    let head = format!(
        "POST /admin/v1/replay/log HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {BYTES}\r\n\r\n{{\"log\":\""
    );
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_write_timeout(Some(BUSY_PATIENCE)).unwrap();
    let mut left = BYTES - "{\"log\":\"".len() - 1;
    // What is refused may be read all the same, and discarded.
    let mut taken = stream.write_all(head.as_bytes()).is_ok();
    while taken && left > 0 {
        let written = stream.write(&[b'x'; 65_536][..left.min(65_536)]);
        taken = written.map(|written| left -= written).is_ok();
    }
    stream
}

/// One is kept, which announced 31 MiB; the others are refused before a byte of them is read.
#[test]
fn unfinished_uploads_of_one_caller_hold_what_the_table_says() {
    const TOKEN: &str = "a-token-of-twenty-or-more";
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve(dir.path(), "", &[("TIDEGATE_ADMIN__TOKENS", TOKEN)]);
    let admin = server.addr("admin");
    let before = memory(&mut server);
    let uploads: Vec<_> = (0..30).map(|_| std::thread::spawn(move || upload(admin, TOKEN))).collect();
    let mut most = 0;
    eventually("all are taken or refused", BUSY_PATIENCE, || {
        most = most.max(memory(&mut server));
        uploads.iter().all(|upload| upload.is_finished())
    });
    let _held: Vec<TcpStream> = uploads.into_iter().map(|upload| upload.join().unwrap()).collect();
    let held = memory(&mut server).max(most).saturating_sub(before);
    assert!(held < 64 * MIB, "30 uploads of 31 MiB hold {} MiB", held / MIB);
}

/// Sends a log of 25 MB to be replayed, and waits for the report.
fn replay(to: SocketAddr, token: &str) {
    let line = |user: u64| {
        let time_us = 1_800_057_600_000_000 + user;
        format!(
            r#"{{"time_us":{time_us},"domain":"api","verdict":"admitted","n":1,"attributes":{{"user":"u{user}"}}}}"#
        )
    };
    let rules = "{ domain: api, rules: [{ name: r, key: [user], limits: [5/minute] }] }";
    let log = (0..220_000).map(line).collect::<Vec<_>>().join("\n");
    let body = json!({ "documents": [{ "domain": "api", "text": rules }], "log": log }).to_string();
    let head = format!(
        "POST /admin/v1/replay/log HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    assert!((23 << 20..31 << 20).contains(&body.len()), "{} bytes", body.len());
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(BUSY_PATIENCE)).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// As many as are worked on at once, each of another caller.
#[test]
fn finished_uploads_that_are_worked_on_hold_what_the_table_says() {
    const TOKENS: [&str; 2] = ["a-token-of-twenty-or-more", "another-token-of-that-length"];
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve(dir.path(), "", &[("TIDEGATE_ADMIN__TOKENS", &TOKENS.join(" "))]);
    let admin = server.addr("admin");
    let before = memory(&mut server);
    let uploads = TOKENS.map(|token| std::thread::spawn(move || replay(admin, token)));
    let mut most = 0;
    eventually("both are answered", BUSY_PATIENCE, || {
        most = most.max(memory(&mut server));
        uploads.iter().all(|upload| upload.is_finished())
    });
    uploads.into_iter().for_each(|upload| upload.join().unwrap());
    let held = most.saturating_sub(before);
    println!("two logs of 25 MB that are replayed hold {} MiB", held / MIB);
    assert!(held < 2 * 150 * MIB, "two logs of 25 MB that are replayed hold {} MiB", held / MIB);
}
