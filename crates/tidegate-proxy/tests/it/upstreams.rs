//! Upstream servers that are down, slow, unhealthy or forgetful.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::Micros;
use tidegate_proxy::{Ejection, HealthCheck};
use tidegate_testkit::{Upstream, eventually};

use crate::world::{PATIENCE, Raw, Setup, nobody, ok, target};

#[test]
fn an_upstream_that_is_down_is_a_bad_gateway_that_says_so() {
    let edge = Setup::to(&[nobody()]).start();
    let answer = edge.get("/");
    assert_eq!((answer.status, answer.header("content-type")), (502, Some("application/problem+json")));
    // The rate limit headers report what was spent anyway.
    assert!(answer.header("x-ratelimit-remaining").is_some());
    edge.eventually_idle();
}

#[test]
fn an_upstream_that_does_not_answer_is_a_gateway_timeout() {
    let upstream = Raw::start(|mut wire| {
        wire.head();
        wire.rest();
    });
    let edge = Setup::to(&[upstream.target()])
        .change(|settings| settings.timeouts.head = Duration::from_millis(200))
        .start();
    assert_eq!(edge.get("/").status, 504);
    edge.eventually_idle();
}

#[test]
fn an_upload_that_moves_is_waited_for_longer_than_a_silent_upstream() {
    // A machine may stand still for most of it.
    const SILENCE: Duration = Duration::from_secs(3);
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)]).change(|settings| settings.timeouts.head = SILENCE).start();
    let mut client = edge.connect();
    client.write("POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 20\r\n\r\n");
    for _ in 0..20 {
        std::thread::park_timeout(SILENCE / 15);
        client.write("x");
    }
    let answer = client.rest();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn an_upstream_that_speaks_something_else_is_a_bad_gateway() {
    let upstream = Raw::start(|mut wire| {
        wire.head();
        wire.write("SSH-2.0-OpenSSH_9.2\r\n");
    });
    assert_eq!(Setup::to(&[upstream.target()]).start().get("/").status, 502);
}

#[test]
fn requests_go_to_the_server_that_is_up_bodies_included() {
    let upstream = Upstream::start();
    let edge = Setup::to(&[nobody(), target(&upstream)]).start();
    for number in 0..10 {
        let answer = edge.send("POST", "/", &[], b"body");
        assert_eq!(answer.status, 200, "request {number}");
        assert_eq!(answer.json()["body"], "body");
    }
}

#[test]
fn a_server_that_fails_is_left_alone_for_a_while_and_tried_again() {
    let failing = Raw::start(|mut wire| drop(wire.head()));
    let upstream = Upstream::start();
    let edge = Setup::to(&[failing.target(), target(&upstream)])
        .change(|settings| {
            settings.upstreams[0].ejection = Ejection { failures: 2, lasts: Duration::from_secs(10) };
        })
        .start();
    // It closes the connection after receiving a request: one that is not idempotent is not retried.
    let failed = || (0..12).filter(|_| edge.send("POST", "/", &[], b"x").status == 502).count();
    assert_eq!(failed(), 2);
    assert_eq!(failed(), 0);
    edge.advance(Micros::from_secs(10));
    // On probation: one failure, and it is ejected again.
    assert_eq!(failed(), 1);
}

#[test]
fn work_is_shared_among_servers() {
    let upstreams = [Upstream::start(), Upstream::start(), Upstream::start()];
    let edge = Setup::to(&upstreams.each_ref().map(target)).start();
    (0..30).for_each(|_| assert_eq!(edge.get("/").status, 200));
    assert_eq!(upstreams.each_ref().map(Upstream::requests), [10, 10, 10]);
}

#[test]
fn an_active_check_takes_a_server_out_and_brings_it_back() {
    let (well, checked) = (Upstream::start(), Upstream::start());
    checked.set_status(500);
    let edge = Setup::to(&[target(&well), target(&checked)])
        .change(|settings| {
            let (every, within) = (Duration::from_millis(50), Duration::from_secs(5));
            settings.upstreams[0].check = Some(HealthCheck { path: "/healthz".to_owned(), every, within });
        })
        .start();
    let statuses = || (0..6).map(|_| edge.get("/").status).collect::<Vec<u16>>();
    eventually("the server is out", PATIENCE, || statuses() == [200; 6]);
    checked.set_status(204);
    well.set_status(500);
    eventually("the other is out", PATIENCE, || statuses() == [204; 6]);
}

#[test]
fn a_connection_that_the_server_closed_meanwhile_costs_no_request() {
    // Each connection answers once, and does not announce its end.
    let upstream = Raw::start(|mut wire| {
        wire.head();
        wire.write(&ok("once"));
    });
    let edge = Setup::to(&[upstream.target()]).start();
    let mut client = edge.connect();
    for number in 0..20 {
        client.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        assert!(client.head()[0].contains("200"), "request {number}");
        assert_eq!(client.exactly(4), "once");
    }
}

#[test]
fn a_request_that_may_do_harm_twice_is_never_sent_twice() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counting = seen.clone();
    // Answers the first request of a connection, and closes it after reading the second.
    let upstream = Raw::start(move |mut wire| {
        wire.head();
        wire.write(&ok("once"));
        if wire.head().first().is_some_and(|line| line.starts_with("post")) {
            counting.fetch_add(1, Ordering::SeqCst);
        }
    });
    let edge = Setup::to(&[upstream.target()]).start();
    let mut client = edge.connect();
    client.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    client.head();
    client.exactly(4);
    client.write("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
    assert!(client.head()[0].contains("502"));
    assert_eq!(seen.load(Ordering::SeqCst), 1);
}

#[test]
fn a_server_that_accepts_and_says_nothing_does_not_hold_tls_for_ever() {
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let target = format!("https://{}", silent.local_addr().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let certificates = tidegate_testkit::Certificates::for_loopback(dir.path());
    let edge = Setup::to(&[target])
        .change(|settings| {
            settings.timeouts.connect = Duration::from_millis(200);
            settings.upstreams[0].tls = Some(tidegate_proxy::client_config(Some(&certificates.ca)).unwrap());
        })
        .start();
    assert_eq!(edge.get("/").status, 504);
}
