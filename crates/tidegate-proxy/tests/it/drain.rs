//! Requests in flight when the proxy is drained.

use std::sync::mpsc;
use std::time::Duration;

use tidegate_runtime::Drained;
use tidegate_testkit::eventually;

use crate::world::{Edge, PATIENCE, Raw, Setup};

#[test]
fn an_answer_under_way_is_finished_and_the_connection_then_closed() {
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let upstream = Raw::start(move |mut wire| {
        wire.head();
        wire.write("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nbegun");
        wait.lock().unwrap().recv().unwrap();
        wire.write(" end");
    });
    let Edge { plane, admission, .. } = Setup::to(&[upstream.target()]).start();
    let addr = plane.addresses()[0].1;
    let mut client = crate::world::Wire::new(std::net::TcpStream::connect(addr).unwrap());
    client.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    client.head();
    assert_eq!(client.exactly(5), "begun");
    let draining = std::thread::spawn(move || plane.drain());
    eventually("nobody new is let in", PATIENCE, || std::net::TcpStream::connect(addr).is_err());
    assert_eq!(admission.in_flight(), 1);
    go_on.send(()).unwrap();
    assert_eq!(client.rest(), " end");
    assert_eq!(draining.join().unwrap(), Drained { cut: 0 });
}

#[test]
fn a_tunnel_may_go_on_until_the_deadline() {
    let upstream = Raw::start(|wire| {
        let mut socket = tungstenite::accept(wire.stream().try_clone().unwrap()).unwrap();
        while socket.read().and_then(|message| socket.send(message)).is_ok() {}
    });
    let edge = Setup::to(&[upstream.target()]).drain_deadline(Duration::from_secs(1)).start();
    let stream = edge.connect().stream().try_clone().unwrap();
    let (mut socket, _) = tungstenite::client(format!("ws://{}/", edge.addr()), stream).unwrap();
    let draining = std::thread::spawn(move || edge.plane.drain());
    socket.send(tungstenite::Message::text("still here")).unwrap();
    assert_eq!(socket.read().unwrap().into_text().unwrap().as_str(), "still here");
    assert_eq!(draining.join().unwrap(), Drained { cut: 1 });
    assert!(socket.read().is_err());
}
