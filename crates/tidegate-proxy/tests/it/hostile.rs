//! Clients that are slow, loud or up to no good.

use std::net::Shutdown;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_access::{Offers, ServerTls, TlsFiles};
use tidegate_testkit::{Certificates, Upstream, eventually};

use crate::world::{PATIENCE, Raw, Setup, target};

#[test]
fn a_client_that_drips_its_head_is_cut_off_and_holds_nothing() {
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)])
        .change(|settings| settings.limits.http.head_timeout = Duration::from_millis(300))
        .start();
    let mut drips: Vec<_> = (0..50).map(|_| edge.connect()).collect();
    for drip in &mut drips {
        drip.write("GET / HTTP/1.1\r\nhost: x\r\nx-a: ");
    }
    assert_eq!(edge.get("/").status, 200);
    for drip in &mut drips {
        // Cut, or told that it took too long; never served.
        let answer = drip.rest();
        assert!(answer.is_empty() || answer.contains("408"), "{answer}");
    }
    assert_eq!(upstream.requests(), 1);
    let open = |load: tidegate_runtime::ListenerLoad| load.open.iter().sum::<usize>();
    eventually("their places are free", PATIENCE, || edge.plane.loads().read().map(open).sum::<usize>() == 0);
}

#[test]
fn a_head_that_is_too_large_is_refused_with_431() {
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)]).start();
    let large = "x".repeat(40_000);
    assert_eq!(edge.send("GET", "/", &[("x-large", &large)], b"").status, 431);
    let mut many = edge.connect();
    let lines: String = (0..200).map(|number| format!("x-{number}: y\r\n")).collect();
    many.write(&format!("GET / HTTP/1.1\r\nhost: x\r\n{lines}\r\n"));
    assert!(many.head()[0].contains("431"));
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn a_client_that_closed_its_half_is_not_waited_for_forever() {
    let upstream = Raw::start(|mut wire| {
        wire.head();
        wire.rest();
    });
    let edge = Setup::to(&[upstream.target()]).start();
    let mut client = edge.connect();
    client.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    eventually("it is under way", PATIENCE, || edge.admission.in_flight() == 1);
    client.stream().shutdown(Shutdown::Write).unwrap();
    edge.eventually_idle();
}

#[test]
fn half_closed_clients_are_answered_by_the_proxy() {
    let upstream = Raw::saying("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
    let edge = Setup::to(&[upstream.target()]).start();
    let answered = (0..40).filter(|_| {
        let mut client = edge.connect();
        client.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        client.stream().shutdown(Shutdown::Write).unwrap();
        client.rest().ends_with("hello")
    });
    assert_eq!(answered.count(), 40);
}

#[test]
fn a_request_whose_length_can_be_read_in_two_ways_is_refused() {
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)]).start();
    for framing in [
        "content-length: 4\r\ncontent-length: 5",
        "content-length: 4, 5",
        "transfer-encoding: chunked, identity",
        "transfer-encoding: xchunked",
        "content-length: +4",
        "content-length: 04",
        "transfer-encoding: gzip, chunked",
        "transfer-encoding: chunked, chunked",
        "transfer-encoding: identity, chunked",
        "transfer-encoding: x\r\ntransfer-encoding: chunked",
    ] {
        let mut client = edge.connect();
        client
            .write(&format!("POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{framing}\r\n\r\n0\r\n\r\n"));
        let head = client.head();
        assert!(head.first().is_none_or(|line| line.contains("400")), "{framing}: {head:?}");
    }
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn a_body_with_two_framings_never_reaches_the_upstream_with_both() {
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)]).start();
    let mut client = edge.connect();
    client.write(
        "POST /first HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n\
         0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n",
    );
    let answer = client.rest();
    // Refused, or read as chunked, which ends before the second request; then that one is one of the client's own.
    assert!(!answer.contains("smuggled") || answer.matches("HTTP/1.1 200").count() == 2, "{answer}");
    assert!(upstream.requests() <= 2);
}

#[test]
fn hosts_that_differ_or_are_missing_are_refused() {
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)]).start();
    for hosts in
        ["host: a\r\nhost: b\r\n", "host: \r\n", "", "host: a b\r\n", "host: me@a\r\n", "host: a/b\r\n"]
            .into_iter()
            .chain([
                "host: a;b\r\n",
                "host: a:99999\r\n",
                "host: a..\r\n",
                "host: [::1\r\n",
                "host: a%2e\r\n",
            ])
    {
        let mut client = edge.connect();
        client.write(&format!("GET / HTTP/1.1\r\nconnection: close\r\n{hosts}\r\n"));
        assert!(client.head()[0].contains("400"), "{hosts:?}");
    }
    let mut elsewhere = edge.connect();
    elsewhere.write("GET ftp://x/ HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(elsewhere.head()[0].contains("400"));
    let mut tunnel = edge.connect();
    tunnel.write("CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n");
    assert!(tunnel.head()[0].contains("405"));
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn hosts_in_their_usual_forms_are_served() {
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)]).start();
    for host in
        ["shop.example", "Shop.Example:8080", "shop_1.example.", "127.0.0.1:80", "[::1]", "[::1]:80", "x:"]
    {
        let answer = edge.send("GET", "/", &[("host", host)], b"");
        assert_eq!((answer.status, answer.json()["headers"]["host"].as_str()), (200, Some(host)));
    }
}

#[test]
fn half_a_tls_handshake_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let Certificates { cert, key, .. } = Certificates::for_loopback(dir.path());
    let files = TlsFiles { certificate: cert, key, client_ca: None };
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)])
        .over_tls(ServerTls::load(files, Offers::Http).unwrap())
        .handshake_timeout(Duration::from_millis(400))
        .start();
    let mut halves: Vec<_> =
        ["", "\u{16}\u{3}\u{1}\u{2}", "GET / HTTP/1.1\r\n\r\n"].map(|bytes| (bytes, edge.connect())).into();
    for (bytes, half) in &mut halves {
        half.write(bytes);
    }
    for (bytes, half) in &mut halves {
        // An alert at most, and never an answer; a server that waits fails the read.
        assert!(!half.rest().contains("HTTP"), "{bytes:?}");
    }
    let open = |load: tidegate_runtime::ListenerLoad| load.open.iter().sum::<usize>();
    eventually("their places are free", PATIENCE, || edge.plane.loads().read().map(open).sum::<usize>() == 0);
}

#[test]
fn one_request_too_many_is_turned_away_with_503() {
    let upstream = Raw::start(|mut wire| {
        wire.head();
        wire.rest();
    });
    let edge = Setup::to(&[upstream.target()])
        .change(|settings| settings.limits.max_in_flight = std::num::NonZeroUsize::MIN)
        .start();
    let mut first = edge.connect();
    first.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    eventually("it is under way", PATIENCE, || edge.admission.in_flight() == 1);
    let second = edge.get("/");
    assert_eq!((second.status, second.header("content-type")), (503, Some("application/problem+json")));
    assert_eq!(edge.admission.turned_away(), 1);
    drop(first);
    edge.eventually_idle();
}

#[tokio::test]
async fn a_client_that_takes_no_answers_over_http_2_is_cut_off() {
    let body = "x".repeat(1 << 20);
    let upstream = Raw::start(move |mut wire| {
        while !wire.head().is_empty() {
            wire.write(&crate::world::ok(&body));
        }
    });
    let edge = Setup::to(&[upstream.target()])
        .change(|settings| settings.timeouts.stall = Duration::from_millis(500))
        .in_real_time()
        .start();
    let stream = tokio::net::TcpStream::connect(edge.addr()).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let mut untaken = Vec::new();
    for _ in 0..5 {
        let request = http::Request::get("http://x/").body(Empty::<Bytes>::new()).unwrap();
        untaken.push(sender.send_request(request).await.unwrap());
    }
    assert_eq!(edge.admission.in_flight(), 5);
    // The proxy ends the connection; nothing was read, and nothing is kept.
    let _ = tokio::time::timeout(PATIENCE, connection).await.expect("the connection is cut");
    edge.eventually_idle();
}
