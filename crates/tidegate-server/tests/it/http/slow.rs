//! Clients that are slow, leave, or send all they can.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::json;
use tidegate_rules::Format;
use tidegate_runtime::connection::HttpLimits;
use tidegate_server::service::ServiceSettings;

use super::PER_USER;
use crate::world::World;

fn impatient() -> World {
    let limits = HttpLimits { body_timeout: Duration::from_millis(200), ..HttpLimits::default() };
    World::with(PER_USER, Format::Native, ServiceSettings { limits, ..ServiceSettings::default() })
}

/// Sends `bytes` and reads until the server closes.
fn exchange(world: &World, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(world.http()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

const HALF: &[u8] =
    b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 43\r\n\r\n{\"domain\":\"api\",\"attributes\":{\"user\":";

#[test]
fn a_body_that_does_not_come_is_given_up_with_a_problem() {
    let answer = exchange(&impatient(), HALF);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("urn:tidegate:problem:body-too-slow"), "{answer}");
}

#[test]
fn slow_bodies_hold_up_nobody_and_spend_nothing() {
    let world = World::new(PER_USER);
    let slow: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(world.http()).unwrap();
            stream.write_all(HALF).unwrap();
            stream
        })
        .collect();
    assert_eq!(world.check(&json!({ "user": "42" })).status, 200);
    drop(slow);
    assert_eq!(world.left(), 2);
}

#[test]
fn a_body_in_single_bytes_is_read_whole() {
    let world = World::new(PER_USER);
    let body = br#"{"domain":"api","attributes":{"user":"42"}}"#;
    let mut stream = TcpStream::connect(world.http()).unwrap();
    stream.set_nodelay(true).unwrap();
    let head = format!("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).unwrap();
    for byte in body {
        stream.write_all(&[*byte]).unwrap();
    }
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
}

#[test]
fn an_endless_body_is_cut_off_at_the_limit() {
    let world = World::new(PER_USER);
    let mut stream = TcpStream::connect(world.http()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(b"POST /v1/check HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    let chunk = [b"10000\r\n", &vec![b' '; 0x10000][..], b"\r\n"].concat();
    // The server answers after 256 KiB and closes; what is sent beyond that meets a closed connection.
    let sent = (0..1_000).take_while(|_| stream.write_all(&chunk).is_ok()).count();
    assert!(sent < 1_000, "{sent} chunks of 64 KiB were taken");
    assert_eq!(world.left(), 3);
}

#[test]
fn half_closed_clients_are_answered_on_check() {
    let world = World::new(PER_USER);
    let body = br#"{"domain":"api","attributes":{"user":"42"},"cost":0}"#;
    let head = format!("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    let answered = (0..40).filter(|_| {
        let mut stream = TcpStream::connect(world.http()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).is_ok_and(|_| answer.starts_with("HTTP/1.1 200"))
    });
    assert_eq!(answered.count(), 40);
}
