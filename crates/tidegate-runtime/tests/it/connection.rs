//! HTTP on a connection: slow, large and wrong requests, and drains.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tidegate_runtime::connection::{self, HttpLimits, HttpVersions, Requests, read_body};
use tidegate_runtime::{Connection, DataPlane, Drained, IdleTimeouts, Listener, Protocol, Serving, Settings};

/// Answers with the body it received, or with the reason why there is none.
struct Echo {
    versions: HttpVersions,
    limits: HttpLimits,
}

impl Protocol for Echo {
    fn serve(&self, connection: Connection) -> Serving {
        let (limits, seat) = (self.limits, connection.seat.clone());
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let seat = seat.clone();
            async move {
                let body = read_body(request.into_body(), limits.max_body_bytes, &limits, &seat).await;
                let body = body.unwrap_or_else(|error| Bytes::from(error.to_string()));
                Ok::<_, Infallible>(Response::new(Full::new(body)))
            }
        });
        Box::pin(connection::serve(connection, self.versions, limits, service))
    }

    fn idle_timeouts(&self) -> IdleTimeouts {
        self.limits.idle_timeouts()
    }
}

/// Short enough to wait for, long enough for a busy machine to send a request in time.
const QUICK: HttpLimits = HttpLimits {
    head_timeout: Duration::from_millis(300),
    idle_timeout: Duration::from_millis(300),
    requests: Requests::Short,
    max_head_bytes: 8 * 1024,
    max_headers: 16,
    max_streams: 16,
    window_bytes: 1 << 20,
    max_body_bytes: 100,
    body_timeout: Duration::from_millis(300),
};

fn start(versions: HttpVersions) -> DataPlane {
    start_with(versions, QUICK)
}

fn start_with(versions: HttpVersions, limits: HttpLimits) -> DataPlane {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind("echo", any, move |_| Arc::new(Echo { versions, limits })).unwrap();
    DataPlane::start(&Settings::default(), vec![listener]).unwrap()
}

/// Sends `bytes` and reads until the server closes.
fn exchange(plane: &DataPlane, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(plane.addresses()[0].1).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // A reset after the answer is as good as a close: the server does not read what it rejected.
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn post(body: &str) -> String {
    format!("POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[track_caller]
fn check(answer: &str, status: &str, body: &str) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    assert!(answer.ends_with(body), "{answer}");
}

#[test]
fn a_body_is_read_whole_however_it_is_cut() {
    let plane = start(HttpVersions::Http1And2);
    check(&exchange(&plane, post("hello").as_bytes()), "200", "\r\n\r\nhello");
    let chunked = "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n\
                   2\r\nhe\r\n2\r\nll\r\n1\r\no\r\n0\r\n\r\n";
    check(&exchange(&plane, chunked.as_bytes()), "200", "\r\n\r\nhello");
}

#[test]
fn a_request_whose_first_bytes_resemble_http_2_is_still_http_1() {
    let plane = start(HttpVersions::Http1And2);
    let answer = exchange(&plane, post("hello").replacen("POST", "PRI", 1).as_bytes());
    check(&answer, "200", "\r\n\r\nhello");
}

#[test]
fn a_body_larger_than_the_limit_is_refused_announced_or_not() {
    let plane = start(HttpVersions::Http1And2);
    let large = "x".repeat(101);
    check(&exchange(&plane, post(&large).as_bytes()), "200", "the body is larger than 100 bytes");
    let chunked = format!(
        "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n65\r\n{large}\r\n0\r\n\r\n"
    );
    check(&exchange(&plane, chunked.as_bytes()), "200", "the body is larger than 100 bytes");
    check(&exchange(&plane, post(&large[1..]).as_bytes()), "200", &large[1..]);
}

#[test]
fn a_body_that_stops_half_way_is_given_up() {
    let plane = start(HttpVersions::Http1And2);
    let half = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhello";
    check(&exchange(&plane, half.as_bytes()), "200", "the body did not arrive within 300ms");
}

#[test]
fn a_client_that_sends_no_whole_head_is_let_go() {
    let plane = start(HttpVersions::Http1And2);
    for start in ["", "P", "PRI * HTTP/2.0\r\n", "GET / HTTP/1.1\r\nhost:"] {
        let answer = exchange(&plane, start.as_bytes());
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{start:?}: {answer}");
    }
}

#[test]
fn a_head_larger_than_the_limit_is_refused() {
    let plane = start(HttpVersions::Http1And2);
    let large = format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "x".repeat(9_000));
    let answer = exchange(&plane, large.as_bytes());
    // The server closes without reading the rest; the reset may overtake the answer.
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(17));
    check(&exchange(&plane, many.as_bytes()), "431", "");
}

#[test]
fn http_1_is_not_spoken_where_grpc_is() {
    assert_eq!(exchange(&start(HttpVersions::Http2Only), post("hello").as_bytes()), "");
}

#[test]
fn a_drain_closes_an_idle_keep_alive_connection_at_once() {
    // Timeouts that would not close it meanwhile.
    let plane = start_with(HttpVersions::Http1And2, HttpLimits::default());
    let mut stream = TcpStream::connect(plane.addresses()[0].1).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    assert_eq!(plane.drain(), Drained { cut: 0 });
    stream.read_to_end(&mut Vec::new()).unwrap();
}
