//! Floods of frames that cost a peer little: each ends its own connection, or waits until the peer reads, and affects no
//! other connection.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use tidegate_testkit::{Upstream, eventually, http};

use crate::listeners::World;
use crate::world::{Setup, target};
use tidegate_testkit::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PRIORITY, Peer, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame, post,
};

const RULES: &str = "{ domain: api, rules: [] }";
const JSON: (&str, &str) = ("content-type", "application/json");
const PATIENCE: Duration = Duration::from_secs(20);
/// More than any honest peer sends without purpose.
const FRAMES: u32 = 50_000;

/// The frame of a flood at this index.
type Flood = fn(u32) -> Vec<u8>;

/// Sends a flood, and returns whether the server ended it.
fn send(to: SocketAddr, first: &[u8], flood: Flood) -> bool {
    let mut peer = Peer::connect(to);
    peer.0.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    peer.send(first);
    for batch in 0..FRAMES / 500 {
        let frames: Vec<u8> = (batch * 500..(batch + 1) * 500).flat_map(flood).collect();
        match peer.0.write_all(&frames) {
            Ok(()) => {}
            // It waits until we read its answers.
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        }
    }
    // It may still be processing what was sent.
    let _ = peer.0.shutdown(Shutdown::Write);
    peer.0.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut said = Vec::new();
    match peer.0.read_to_end(&mut said) {
        Ok(_) => ends_with_an_error(&said),
        // Closed while there was more to read.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
        Err(error) => panic!("the server neither went on nor ended: {error}"),
    }
}

/// Whether one of these frames is a GOAWAY that states the error.
fn ends_with_an_error(mut said: &[u8]) -> bool {
    while let Some((head, rest)) = said.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        if head[3] == GOAWAY && payload[4..8] != [0; 4] {
            return true;
        }
        said = rest;
    }
    false
}

fn reset_at_once(number: u32) -> Vec<u8> {
    let stream = 2 * number + 1;
    let head = frame(HEADERS, END_HEADERS, stream, &post("/v1/check", &[JSON]));
    [head, frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
}

/// A head that repeats one short field from the table: 14,000 bytes on the wire, half a megabyte decoded.
fn bomb(number: u32) -> Vec<u8> {
    let stream = 2 * number + 1;
    let name = [&[0x40, 0x01, b'a', 0x20][..], &[b'v'; 32]].concat();
    let first = if number == 0 { name } else { Vec::new() };
    let head = [&[0x82, 0x86, 0x84, 0x01, 0x01, b'x'][..], &first, &[0xbe; 14_000]].concat();
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &head)
}

#[test]
fn a_flood_of_cheap_frames_ends_or_waits_and_others_are_answered() {
    let upstream = Upstream::start();
    let (world, edge) = (World::new(RULES), Setup::to(&[target(&upstream)]).start());
    let open = frame(HEADERS, END_HEADERS, 1, &post("/v1/check", &[JSON]));
    let half = frame(HEADERS, END_STREAM, 1, &post("/v1/check", &[JSON]));
    let floods: [(&str, &[u8], Flood, bool); 9] = [
        ("requests that are reset at once", b"", reset_at_once, true),
        ("a head without an end", &half, |_| frame(CONTINUATION, 0, 1, &[0, 1, b'a', 1, b'b']), true),
        ("a head that goes on with nothing", &half, |_| frame(CONTINUATION, 0, 1, &[]), true),
        ("a body of nothing", &open, |_| frame(DATA, 0, 1, &[]), true),
        ("heads that swell", b"", bomb, true),
        ("pings", b"", |_| frame(PING, 0, 0, &[7; 8]), false),
        ("settings", b"", |_| frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 1]), false),
        ("priorities", b"", |number| frame(PRIORITY, 0, 2 * (number % 999) + 1, &[0, 0, 0, 0, 1]), false),
        ("windows", b"", |_| frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), false),
    ];
    for (what, first, flood, must_end) in floods {
        std::thread::scope(|scope| {
            let sending = [world.http(), edge.addr()].map(|to| scope.spawn(move || send(to, first, flood)));
            for _ in 0..5 {
                assert_eq!(http::get(world.http(), "/healthz").status, 200, "{what}");
                assert_eq!(edge.get("/").status, 200, "{what}");
            }
            let ended = sending.map(|sending| sending.join().unwrap());
            assert!(!must_end || ended == [true, true], "{what} did not end: {ended:?}");
        });
    }
    for plane in [&world.plane, &edge.plane] {
        eventually("nothing is left of them", PATIENCE, || {
            plane.loads().held_bytes() == 0
                && plane.loads().read().all(|load| load.open.iter().sum::<usize>() == 0)
        });
    }
}
