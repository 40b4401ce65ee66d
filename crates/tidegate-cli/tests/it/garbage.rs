//! A flood of garbage on one listener, while somebody asks another.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_testkit::http;
use tokio::time::Instant;

use crate::access::{PATIENCE, serve};

/// Some that no protocol takes, and some that one takes for its beginning.
const GARBAGE: [&[u8]; 5] = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"*1000000000\r\n$1000000000\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
];
const FLOODERS: usize = 4;
const ASKED: usize = 400;

/// Sends garbage on new connections until it is told to stop.
fn flood(to: SocketAddr, stop: &AtomicBool) {
    for garbage in GARBAGE.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut stream) = TcpStream::connect(to) else { continue };
        let _ = stream.set_read_timeout(Some(Duration::from_millis(20)));
        let _ = stream.write_all(&garbage.repeat(1_000));
        let _ = stream.read(&mut [0; 4096]);
    }
}

/// Somebody who takes as much and makes nothing of it: what flooders cost the machine, without our part of it.
fn sink() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // It ends with the test's process.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.set_read_timeout(Some(Duration::from_millis(20)));
            let _ = stream.read(&mut [0; 65_536]);
        }
    });
    address
}

/// How long the slowest of a hundred answers takes, while flooders are at `flooded`.
fn p99(asked: SocketAddr, flooded: SocketAddr) -> Duration {
    let stop = Arc::new(AtomicBool::new(false));
    let flooders: Vec<_> = (0..FLOODERS)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || flood(flooded, &stop))
        })
        .collect();
    let body = r#"{"domain":"api","attributes":{"user":"42"},"cost":0}"#;
    let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: ";
    let request = format!("{head}{}\r\n\r\n{body}", body.len());
    let mut client = TcpStream::connect(asked).unwrap();
    client.set_nodelay(true).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut took: Vec<Duration> = (0..ASKED)
        .map(|_| {
            let began = Instant::now();
            client.write_all(request.as_bytes()).unwrap();
            let read = client.read(&mut [0; 4096]).unwrap();
            assert!(read > 0, "the server closed");
            began.elapsed()
        })
        .collect();
    stop.store(true, Ordering::Relaxed);
    flooders.into_iter().for_each(|flooder| flooder.join().unwrap());
    took.sort_unstable();
    took[ASKED * 99 / 100]
}

/// A machine with others on it is slow now and then; a server that stands still is slow every time.
const ATTEMPTS: usize = 5;
const MOST_TIMES: u32 = 10;

#[test]
fn a_flood_of_garbage_on_one_listener_leaves_the_others_answering() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = serve(dir.path(), "", &[]);
    let (http, nobody) = (server.addr("http"), sink());
    for listener in ["resp", "grpc", "admin", "http"] {
        let flooded = server.addr(listener);
        let mut seen = Vec::new();
        let held = (0..ATTEMPTS).any(|_| {
            let (calm, during) = (p99(http, nobody), p99(http, flooded));
            seen.push((calm, during));
            during <= calm * MOST_TIMES
        });
        assert!(held, "p99 of /v1/check beside a flood elsewhere and on {listener}: {seen:?}");
        assert_eq!(http::get(http, "/healthz").status, 200);
    }
    assert_eq!(server.stderr().matches("panicked").count(), 0);
}
