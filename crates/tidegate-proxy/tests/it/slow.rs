//! Uploads that hold a place in the proxy for as little as a client can send.

use std::num::NonZeroU64;
use std::time::Duration;

use tidegate_testkit::eventually;

use crate::world::{Edge, PATIENCE, Raw, Setup, Wire};

const HEAD: &str = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n";

/// A proxy that wants a kilobyte a second after the first 400 ms.
fn edge(upstream: &Raw) -> Edge {
    Setup::to(&[upstream.target()])
        .change(|settings| {
            settings.timeouts.upload_grace = Duration::from_millis(400);
            settings.limits.min_upload_rate = NonZeroU64::new(1_000).unwrap();
            settings.limits.max_in_flight = 5.try_into().unwrap();
        })
        .start()
}

/// Sends a byte every 50 ms until the proxy has had enough.
fn dribble(client: &mut Wire) {
    use std::io::Write as _;
    for _ in 0..200 {
        if client.stream().write_all(b"x").is_err() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
    panic!("two hundred bytes took ten seconds, and nobody minded");
}

#[test]
fn uploads_of_a_byte_now_and_then_do_not_hold_the_proxy() {
    let upstream = Raw::start(|mut wire| {
        wire.head();
        wire.rest();
    });
    let edge = edge(&upstream);
    let mut clients: Vec<Wire> = (0..5).map(|_| edge.connect()).collect();
    clients.iter_mut().for_each(|client| client.write(HEAD));
    eventually("they fill the proxy", PATIENCE, || edge.admission.in_flight() == 5);
    let dribbling: Vec<_> =
        clients.into_iter().map(|mut client| std::thread::spawn(move || dribble(&mut client))).collect();
    eventually("they have left", PATIENCE, || edge.admission.in_flight() == 0);
    dribbling.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn a_client_that_talks_slowly_with_a_server_that_answers_is_left_alone() {
    let upstream = Raw::start(|mut wire| {
        wire.head();
        wire.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n");
        assert_eq!(wire.exactly(12).len(), 12);
        wire.write("ok");
    });
    let edge = edge(&upstream);
    let mut client = edge.connect();
    client.write("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 12\r\n\r\n");
    client.head();
    for _ in 0..12 {
        client.write("x");
        std::thread::park_timeout(Duration::from_millis(100));
    }
    assert_eq!(client.exactly(2), "ok");
}
