//! Connections that leave HTTP, with WebSockets as others implement them on both ends.

use std::net::TcpStream;

use serde_json::json;
use tidegate_testkit::{Upstream, eventually};
use tungstenite::{Message, WebSocket};

use crate::world::{Edge, PATIENCE, Raw, Setup, Wire, target};

/// A WebSocket server that says everything back.
fn echo() -> Raw {
    Raw::start(|wire: Wire| {
        let Ok(mut socket) = tungstenite::accept(wire.stream().try_clone().unwrap()) else { return };
        while let Ok(message) = socket.read() {
            if (message.is_text() || message.is_binary()) && socket.send(message).is_err() {
                break;
            }
        }
    })
}

fn open(edge: &Edge) -> WebSocket<TcpStream> {
    let wire = edge.connect();
    let stream = wire.stream().try_clone().unwrap();
    tungstenite::client(format!("ws://{}/chat", edge.addr()), stream).unwrap().0
}

#[test]
fn a_websocket_goes_through_both_ways() {
    let upstream = echo();
    let edge = Setup::to(&[upstream.target()]).start();
    let mut socket = open(&edge);
    for text in ["hello", "", &"x".repeat(200_000)] {
        socket.send(Message::text(text)).unwrap();
        assert_eq!(socket.read().unwrap().into_text().unwrap().as_str(), text);
    }
    assert_eq!(edge.admission.in_flight(), 1);
    socket.close(None).unwrap();
    while socket.read().is_ok() {}
    drop(socket);
    edge.eventually_idle();
}

#[test]
fn a_websocket_holds_its_lease_for_as_long_as_it_is_open() {
    let rules = "
        domain: edge
        rules: [{ name: sockets, key: [], limits: [{ algorithm: concurrency, limit: 1, ttl: 60s }] }]";
    let upstream = echo();
    let edge = Setup::to(&[upstream.target()]).rules(rules).start();
    let first = open(&edge);
    let second = edge.connect();
    let refused = tungstenite::client(format!("ws://{}/", edge.addr()), second.stream().try_clone().unwrap());
    assert!(refused.unwrap_err().to_string().contains("429"));
    drop(first);
    eventually("the lease is given back", PATIENCE, || {
        let wire = edge.connect();
        let stream = wire.stream().try_clone().unwrap();
        tungstenite::client(format!("ws://{}/", edge.addr()), stream).is_ok()
    });
}

#[test]
fn an_upstream_that_goes_away_ends_the_tunnel() {
    let upstream = Raw::start(|wire| drop(tungstenite::accept(wire.stream().try_clone().unwrap())));
    let edge = Setup::to(&[upstream.target()]).start();
    let mut socket = open(&edge);
    assert!(socket.read().is_err());
    edge.eventually_idle();
}

#[test]
fn an_upstream_that_does_not_change_protocols_is_answered_for_as_usual() {
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)]).start();
    let asks = [("connection", "upgrade"), ("upgrade", "websocket")];
    let answer = edge.send("GET", "/", &asks, b"");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["headers"]["upgrade"], json!("websocket"));
}

#[test]
fn a_change_of_protocols_that_nobody_asked_for_is_a_bad_gateway() {
    let upstream =
        Raw::saying("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n");
    let edge = Setup::to(&[upstream.target()]).start();
    assert_eq!(edge.get("/").status, 502);
}

#[test]
fn a_tunnel_that_would_carry_requests_past_the_limits_is_not_made() {
    let upstream = Raw::start(|mut wire| {
        // As willing as a server can be.
        let asked = wire.head().iter().any(|line| line.starts_with("upgrade:"));
        let answer = if asked {
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
        } else {
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
        };
        wire.write(answer);
        wire.rest();
    });
    let edge = Setup::to(&[upstream.target()]).start();
    let asks =
        [("connection", "upgrade, http2-settings"), ("upgrade", "h2c"), ("http2-settings", "AAMAAABk")];
    let mut wire = edge.connect();
    let lines: String = asks.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    wire.write(&format!("GET / HTTP/1.1\r\nhost: x\r\n{lines}\r\n"));
    assert!(wire.head()[0].contains("200"));
}
