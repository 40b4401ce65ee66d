//! The upstream tells what reached it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tidegate_testkit::{Upstream, http};

#[test]
fn an_upstream_counts_and_echoes_requests() {
    let upstream = Upstream::start();
    let headers = [("x-a", "1"), ("X-A", "2"), ("host", "example.test")];
    let response = http::request(upstream.addr(), "PUT", "/a/b?c=d", &headers, b"some body").unwrap();
    assert_eq!(response.status, 200);
    let echo = response.json();
    assert_eq!(echo["method"], "PUT");
    assert_eq!(echo["path"], "/a/b?c=d");
    assert_eq!(echo["headers"]["x-a"], "1, 2");
    assert_eq!(echo["headers"]["host"], "example.test");
    assert_eq!(echo["body"], "some body");
    assert_eq!(upstream.requests(), 1);
}

#[test]
fn an_upstream_reads_chunked_bodies_and_keeps_the_connection() {
    let upstream = Upstream::start();
    let mut stream = TcpStream::connect(upstream.addr()).unwrap();
    stream
        .write_all(
            b"POST /1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        )
        .unwrap();
    stream.write_all(b"GET /2 HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert!(answers.contains(r#""body":"abcde""#), "{answers}");
    assert!(answers.contains(r#""path":"/2""#), "{answers}");
    assert_eq!(upstream.requests(), 2);
}

#[test]
fn an_upstream_answers_with_the_status_it_is_told() {
    let upstream = Upstream::start();
    upstream.set_status(503);
    assert_eq!(http::get(upstream.addr(), "/").status, 503);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a delay is measured against the real clock")]
fn an_upstream_waits_as_long_as_it_is_told() {
    let upstream = Upstream::start();
    let delay = Duration::from_millis(60);
    upstream.set_delay(delay);
    let start = Instant::now();
    assert_eq!(http::get(upstream.addr(), "/").status, 200);
    assert!(start.elapsed() >= delay);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it is real time that the workers take")]
fn an_upstream_works_on_no_more_requests_at_once_than_it_has_workers() {
    let upstream = Upstream::with_workers(2);
    upstream.set_delay(Duration::from_millis(100));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert_eq!(http::get(upstream.addr(), "/").status, 200));
        }
    });
    assert!(began.elapsed() >= Duration::from_millis(300), "six by two, a tenth of a second each");
}
