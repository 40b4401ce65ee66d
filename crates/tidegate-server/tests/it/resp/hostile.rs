//! Peers that are broken, slow, greedy or malicious.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use tidegate_server::resp::RespSettings;
use tidegate_server::resp::parse::Bounds;

use super::world::{World, ask};

#[test]
fn what_came_before_a_malformed_frame_is_answered_and_then_the_connection_ends() {
    let world = World::new();
    world
        .raw()
        .send("*1\r\n$4\r\nPING\r\n*1\r\n#4\r\nPING\r\n*1\r\n$4\r\nPING\r\n")
        .expect_end("+PONG\r\n-ERR Protocol error: expected '$', got '#'\r\n");
}

#[test]
fn lengths_beyond_the_bounds_end_the_connection_before_anything_is_kept() {
    let world = World::new();
    for (bytes, problem) in [
        ("*257\r\n", "invalid multibulk length, at most 256 arguments are allowed"),
        ("*1000000000\r\n$1000000000\r\n", "invalid multibulk length, at most 256 arguments are allowed"),
        ("*99999999999999999999\r\n", "invalid multibulk length"),
        ("*2\r\n$4\r\nECHO\r\n$65537\r\n", "invalid bulk length, at most 65536 bytes are allowed"),
        ("*2\r\n$4\r\nECHO\r\n$9223372036854775807\r\n", "invalid bulk length"),
    ] {
        world.raw().send(bytes).expect_end(format!("-ERR Protocol error: {problem}\r\n"));
    }
    let word = format!("$65536\r\n{}\r\n", "x".repeat(65_536));
    world
        .raw()
        .send(format!("*3\r\n{word}{word}$1\r\n"))
        .expect_end("-ERR Protocol error: too big request, at most 131072 bytes are allowed\r\n");
    world
        .raw()
        .send("x".repeat(16 * 1024 + 1))
        .expect_end("-ERR Protocol error: too big inline request, at most 16384 bytes are allowed\r\n");
}

#[test]
fn a_peer_that_goes_on_sending_after_its_mistake_still_reads_what_it_was() {
    let world = World::new();
    let mut peer = world.raw();
    peer.send("*2\r\n$4\r\nECHO\r\n$400000\r\n");
    // More than the socket's buffers might hold unread.
    peer.send("x".repeat(400_000));
    peer.expect_end("-ERR Protocol error: invalid bulk length, at most 65536 bytes are allowed\r\n");
}

#[test]
fn a_browser_that_was_tricked_into_sending_commands_gets_none_answered() {
    let world = World::new();
    world
        .raw()
        .send("POST / HTTP/1.1\r\nHost: localhost\r\n\r\nCL.THROTTLE k 1 1 1\r\n")
        .expect_end("-ERR Protocol error: this is not an HTTP port\r\n");
}

#[test]
fn a_command_that_comes_byte_by_byte_is_answered() {
    let world = World::new();
    let mut peer = world.raw();
    for byte in b"*2\r\n$4\r\nECHO\r\n$5\r\nhello\r\n" {
        peer.send([*byte]);
    }
    peer.expect("$5\r\nhello\r\n");
    for byte in b"ECHO 'by hand'\r\n" {
        peer.send([*byte]);
    }
    peer.expect("$7\r\nby hand\r\n");
}

#[test]
fn the_longest_command_is_answered_and_the_connection_goes_on() {
    let world = World::new();
    let mut peer = world.raw();
    let long = "x".repeat(65_536);
    for _ in 0..3 {
        peer.send(format!("*2\r\n$4\r\nECHO\r\n$65536\r\n{long}\r\n*1\r\n$4\r\nPING\r\n"));
        peer.expect(format!("$65536\r\n{long}\r\n+PONG\r\n"));
    }
}

#[test]
fn half_a_command_is_not_waited_for_forever() {
    let timeout = Duration::from_millis(50);
    let settings = RespSettings { command_timeout: timeout, ..RespSettings::default() };
    let world = World::with_settings(settings);
    let mut idle = world.client();
    world.raw().send("PING\r\n*2\r\n$4\r\nECHO\r\n$10\r\nhel").expect_end("+PONG\r\n");
    // One that has sent nothing may be silent for as long as it likes.
    assert_eq!(ask(&mut idle, "PING").text(), "PONG");
}

#[test]
fn bounds_are_those_of_the_settings() {
    let bounds = Bounds { max_words: 3, ..Bounds::default() };
    let world = World::with_settings(RespSettings { bounds, ..RespSettings::default() });
    world
        .raw()
        .send("*4\r\n")
        .expect_end("-ERR Protocol error: invalid multibulk length, at most 3 arguments are allowed\r\n");
}

#[test]
fn a_peer_that_does_not_read_is_not_read_from_and_loses_nothing() {
    let world = World::new();
    let mut greedy = world.raw();
    let payload = "x".repeat(30_000);
    let command = format!("*2\r\n$4\r\nECHO\r\n$30000\r\n{payload}\r\n").into_bytes();
    greedy.0.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let most = 200 << 20;
    let mut sent = 0;
    let blocked = loop {
        let rest = &command[sent % command.len()..];
        match greedy.0.write(rest) {
            Ok(more) => sent += more,
            Err(error) => break error,
        }
        assert!(sent < most, "the server takes whatever it is sent");
    };
    assert!(matches!(blocked.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{blocked}");
    assert_eq!(ask(&mut world.client(), "PING").text(), "PONG");

    // It is all answered once it is read.
    let commands = sent / command.len();
    let reply = format!("$30000\r\n{payload}\r\n").into_bytes();
    let mut found = vec![0; reply.len()];
    for _ in 0..commands {
        greedy.0.read_exact(&mut found).unwrap();
        assert!(found == reply);
    }
}

#[test]
fn a_flood_on_one_connection_leaves_turns_to_others() {
    let world = World::new();
    let mut flood = world.raw();
    let mut reading = flood.0.try_clone().unwrap();
    let pings = "*1\r\n$4\r\nPING\r\n".repeat(10_000);
    let writer = std::thread::spawn(move || while flood.0.write_all(pings.as_bytes()).is_ok() {});
    let reader = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while reading.read(&mut buffer).is_ok_and(|more| more > 0) {}
    });
    let mut client = world.client();
    for _ in 0..200 {
        assert_eq!(ask(&mut client, "PING").text(), "PONG");
    }
    let _ = world.plane.drain();
    writer.join().unwrap();
    reader.join().unwrap();
}

#[test]
fn a_drain_answers_what_came_and_closes_the_rest() {
    let world = World::new();
    let mut busy = world.raw();
    let mut idle = world.raw();
    let mut half = world.raw();
    idle.send("PING\r\n").expect("+PONG\r\n");
    half.send("PING\r\n*1\r\n$4\r\nPI").expect("+PONG\r\n");
    busy.send("PING\r\n").expect("+PONG\r\n");
    busy.send("ECHO last\r\n");
    let drained = world.plane.drain();
    assert_eq!(drained.cut, 0);
    busy.expect_end("$4\r\nlast\r\n");
    idle.expect_end("");
    half.expect_end("");
}

#[test]
fn a_peer_that_closes_its_half_is_answered() {
    let world = World::new();
    let mut peer = world.raw();
    peer.send("PING\r\nCL.THROTTLE k 1 1 1\r\n");
    peer.0.shutdown(std::net::Shutdown::Write).unwrap();
    peer.expect_end("+PONG\r\n*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:1\r\n");
}
