//! Bodies: streamed as they arrive, with backpressure if nobody reads, and truncated where they are truncated.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use tidegate_testkit::{Upstream, eventually};

use crate::world::{PATIENCE, Raw, Setup, target};

#[test]
fn the_first_byte_of_an_answer_arrives_before_the_last_is_sent() {
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let upstream = Raw::start(move |mut wire| {
        wire.head();
        wire.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n");
        wait.lock().unwrap().recv().unwrap();
        wire.write("4\r\nlast\r\n0\r\n\r\n");
    });
    let edge = Setup::to(&[upstream.target()]).start();
    let mut client = edge.connect();
    client.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(client.head()[0].contains("200"));
    assert_eq!(client.chunk(), "first");
    go_on.send(()).unwrap();
    assert_eq!(client.chunk(), "last");
}

#[test]
fn the_first_byte_of_a_request_arrives_before_the_last_is_sent() {
    let (tell, heard) = mpsc::channel();
    let upstream = Raw::start(move |mut wire| {
        wire.head();
        tell.send(wire.chunk()).unwrap();
        tell.send(wire.chunk()).unwrap();
        wire.write("HTTP/1.1 204 No Content\r\n\r\n");
    });
    let edge = Setup::to(&[upstream.target()]).start();
    let mut client = edge.connect();
    client.write("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n");
    assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), "first");
    client.write("4\r\nlast\r\n0\r\n\r\n");
    assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), "last");
    assert!(client.head()[0].contains("204"));
}

#[test]
fn an_upstream_is_held_back_while_the_client_does_not_read() {
    const WHOLE: u64 = 256 << 20;
    let sent = Arc::new(AtomicU64::new(0));
    let counting = sent.clone();
    let upstream = Raw::start(move |mut wire| {
        wire.head();
        wire.write(&format!("HTTP/1.1 200 OK\r\ncontent-length: {WHOLE}\r\n\r\n"));
        let piece = vec![b'x'; 64 << 10];
        while counting.load(Ordering::SeqCst) < WHOLE {
            // If the proxy is gone, the test notices.
            if wire.0.get_mut().write_all(&piece).is_err() {
                return;
            }
            counting.fetch_add(piece.len() as u64, Ordering::SeqCst);
        }
    });
    let edge = Setup::to(&[upstream.target()]).start();
    let mut client = edge.connect();
    client.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(client.head()[0].contains("200"));
    // The system's buffers fill, on both sides, and then nothing moves.
    let mut before = u64::MAX;
    eventually("the upstream is held back", PATIENCE, || {
        std::thread::park_timeout(Duration::from_millis(200));
        let now = sent.load(Ordering::SeqCst);
        std::mem::replace(&mut before, now) == now && now > 0
    });
    assert!(sent.load(Ordering::SeqCst) < WHOLE / 4, "{} bytes were taken", sent.load(Ordering::SeqCst));
    let mut read = 0;
    let mut buffer = vec![0; 1 << 20];
    while read < WHOLE {
        let got = client.0.read(&mut buffer).unwrap() as u64;
        assert!(got > 0, "cut after {read}");
        read += got;
    }
    edge.eventually_idle();
}

#[test]
fn a_request_that_breaks_off_is_not_completed_towards_the_upstream() {
    let (tell, heard) = mpsc::channel();
    let upstream = Raw::start(move |mut wire| {
        wire.head();
        tell.send(wire.rest()).unwrap();
    });
    let edge = Setup::to(&[upstream.target()]).start();
    let mut client = edge.connect();
    client.write("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf");
    eventually("it is under way", PATIENCE, || edge.admission.in_flight() == 1);
    client.stream().shutdown(Shutdown::Both).unwrap();
    // Four bytes and the end of the connection: nobody takes that for ten.
    assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), "half");
    edge.eventually_idle();
}

#[test]
fn an_answer_that_breaks_off_is_not_completed_towards_the_client() {
    for cut in [
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ] {
        let upstream = Raw::start(move |mut wire| {
            wire.head();
            wire.write(cut);
        });
        let edge = Setup::to(&[upstream.target()]).start();
        let error = tidegate_testkit::http::request(edge.addr(), "GET", "/", &[], b"");
        assert!(error.is_err(), "{error:?}");
        edge.eventually_idle();
    }
}

#[test]
fn a_body_that_is_too_large_is_refused_at_once_if_it_says_so_and_later_if_not() {
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)]).change(|settings| settings.limits.max_body_bytes = 10).start();
    let said = edge.send("POST", "/", &[], b"eleven byte");
    assert_eq!((said.status, said.header("content-type")), (413, Some("application/problem+json")));
    assert_eq!(edge.send("POST", "/", &[], b"ten  bytes").status, 200);
    let mut wire = edge.connect();
    wire.write(
        "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nb\r\neleven byte\r\n0\r\n\r\n",
    );
    assert!(wire.head()[0].contains("413"));
    assert_eq!(upstream.requests(), 1);
}

#[test]
fn a_body_that_stops_coming_is_given_up() {
    let quick =
        |setup: Setup| setup.change(|settings| settings.timeouts.idle = Duration::from_millis(200)).start();
    let upstream = Upstream::start();
    let edge = quick(Setup::to(&[target(&upstream)]));
    let mut client = edge.connect();
    client.write("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf");
    assert!(client.head()[0].contains("408"));
    edge.eventually_idle();

    let stuck = Raw::start(|mut wire| {
        wire.head();
        wire.write("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf");
        wire.rest();
    });
    let edge = quick(Setup::to(&[stuck.target()]));
    let mut client = edge.connect();
    client.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(client.head()[0].contains("200"));
    assert_eq!(client.rest(), "half");
    edge.eventually_idle();
}

#[test]
fn who_expects_100_continue_gets_it_when_the_upstream_takes_the_body() {
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)]).start();
    let mut client = edge.connect();
    client.write("POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 4\r\nconnection: close\r\n\r\n");
    assert!(client.head()[0].contains("100"));
    client.write("body");
    assert!(client.rest().contains(r#""body":"body""#));
}
