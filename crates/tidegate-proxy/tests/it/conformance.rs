//! RFC 9113 on illegal input, frame by frame, on every listener with HTTP/2.
//!
//! The checks of `h2spec`, which no package registry has, reimplemented: a stream error may be answered as a connection
//! error (5.4.2), never with silence or an answer.

use std::net::SocketAddr;

use tidegate_testkit::Upstream;

use crate::listeners::World;
use crate::world::{Edge, Setup, target};
use tidegate_testkit::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PADDED, PING, PRIORITY, PUSH_PROMISE,
    Peer, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, head, post,
};

const RULES: &str = "{ domain: api, rules: [] }";

/// The required outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comes {
    /// The connection ends.
    ConnectionError,
    /// The stream ends, or the connection.
    StreamError,
    /// An answer on stream 1.
    Answer,
}

/// The actual outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    GoAway(u32),
    Reset(u32),
    Headers(u32),
    End,
}

fn outcome(peer: &mut Peer) -> Came {
    while let Some(frame) = peer.next() {
        let number = |at: usize| u32::from_be_bytes(frame.payload[at..at + 4].try_into().unwrap());
        match frame.kind {
            GOAWAY => return Came::GoAway(number(4)),
            RST_STREAM => return Came::Reset(number(0)),
            HEADERS => return Came::Headers(frame.stream),
            _ => {}
        }
    }
    Came::End
}

fn fits(comes: Comes, came: Came) -> bool {
    match (comes, came) {
        (_, Came::GoAway(0)) => false,
        (Comes::ConnectionError | Comes::StreamError, Came::GoAway(_) | Came::End) => true,
        (Comes::StreamError, Came::Reset(_)) => true,
        (Comes::Answer, Came::Headers(1)) => true,
        _ => false,
    }
}

struct Listeners {
    world: World,
    edge: Edge,
    _upstream: Upstream,
}

impl Listeners {
    fn start() -> Self {
        let upstream = Upstream::start();
        let edge = Setup::to(&[target(&upstream)]).start();
        Listeners { world: World::new(RULES), edge, _upstream: upstream }
    }

    fn all(&self) -> [(&'static str, SocketAddr); 3] {
        [("http", self.world.http()), ("grpc", self.world.grpc()), ("proxy", self.edge.addr())]
    }

    /// The outcome of these bytes after the preface and settings, on each listener.
    #[track_caller]
    fn check(&self, what: &str, bytes: &[u8], comes: Comes) {
        for (name, address) in self.all() {
            let mut peer = Peer::connect(address);
            peer.send(bytes);
            let came = outcome(&mut peer);
            assert!(fits(comes, came), "{what} on {name}: {comes:?} should come, {came:?} came");
        }
    }
}

/// A request without a body on this stream.
fn request(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &get())
}

fn get() -> Vec<u8> {
    head(&[(":method", "GET"), (":scheme", "http"), (":authority", "x"), (":path", "/x")])
}

#[test]
fn frames_that_are_illegal_anywhere_end_the_connection() {
    let listeners = Listeners::start();
    let open = frame(HEADERS, END_HEADERS, 1, &post("/x", &[]));
    let after_open = |more: Vec<u8>| [open.clone(), more].concat();
    let largest = [0x7f, 0xff, 0xff, 0xff];
    for (what, bytes) in [
        ("DATA on stream 0", frame(DATA, 0, 0, b"x")),
        ("DATA on an idle stream", frame(DATA, 0, 5, b"x")),
        ("DATA longer than the largest frame", after_open(frame(DATA, 0, 1, &[0; 16_385]))),
        ("DATA of padding alone that is too long", after_open(frame(DATA, PADDED, 1, &[9, 1, 2]))),
        ("HEADERS on stream 0", frame(HEADERS, END_HEADERS | END_STREAM, 0, &get())),
        ("HEADERS on an even stream", request(2)),
        ("HEADERS with padding that is too long", frame(HEADERS, END_HEADERS | PADDED, 1, &[200, 0x82])),
        ("PRIORITY on stream 0", frame(PRIORITY, 0, 0, &[0, 0, 0, 1, 1])),
        ("RST_STREAM on stream 0", frame(RST_STREAM, 0, 0, &[0; 4])),
        ("RST_STREAM on an idle stream", frame(RST_STREAM, 0, 9, &[0; 4])),
        ("RST_STREAM of three bytes", after_open(frame(RST_STREAM, 0, 1, &[0; 3]))),
        ("SETTINGS on a stream", frame(SETTINGS, 0, 1, &[])),
        ("SETTINGS of five bytes", frame(SETTINGS, 0, 0, &[0; 5])),
        ("SETTINGS acknowledged with settings", frame(SETTINGS, ACK, 0, &[0, 3, 0, 0, 0, 1])),
        ("SETTINGS that push by two", frame(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2])),
        ("SETTINGS with a window that is too large", frame(SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0])),
        ("SETTINGS with frames that are too small", frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1])),
        ("PUSH_PROMISE of a client", after_open(frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2, 0x82]))),
        ("PING on a stream", frame(PING, 0, 1, &[0; 8])),
        ("PING of seven bytes", frame(PING, 0, 0, &[0; 7])),
        ("GOAWAY on a stream", frame(GOAWAY, 0, 1, &[0; 8])),
        ("WINDOW_UPDATE of nothing", frame(WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("WINDOW_UPDATE of three bytes", frame(WINDOW_UPDATE, 0, 0, &[0; 3])),
        ("WINDOW_UPDATE on an idle stream", frame(WINDOW_UPDATE, 0, 7, &[0, 0, 0, 1])),
        ("a window beyond the largest", frame(WINDOW_UPDATE, 0, 0, &largest).repeat(2)),
        ("CONTINUATION of nothing", frame(CONTINUATION, END_HEADERS, 1, &get())),
        (
            "CONTINUATION on another stream",
            [frame(HEADERS, END_STREAM, 1, &get()), frame(CONTINUATION, END_HEADERS, 3, &[])].concat(),
        ),
        (
            "another frame amid a head",
            [frame(HEADERS, END_STREAM, 1, &get()), frame(PING, 0, 0, &[0; 8])].concat(),
        ),
        ("a head that names nothing", frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xff, 0xff, 0x7f])),
        (
            "a table larger than was allowed",
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x3f, 0xff, 0xff, 0x7f, 0x82]),
        ),
    ] {
        listeners.check(what, &bytes, Comes::ConnectionError);
    }
    // Other connections are not affected.
    listeners.check("an ordinary request", &request(1), Comes::Answer);
}

#[test]
fn requests_that_are_illegal_are_not_answered_as_if_they_were_not() {
    let listeners = Listeners::start();
    let [method, scheme, authority, path] =
        [(":method", "GET"), (":scheme", "http"), (":authority", "x"), (":path", "/x")];
    let usual = [method, scheme, authority, path];
    let and = |more: (&'static str, &'static str)| [&usual[..], &[more]].concat();
    for (what, fields) in [
        ("no method", vec![scheme, authority, path]),
        ("no scheme", vec![method, authority, path]),
        ("no path", vec![method, scheme, authority]),
        ("an empty path", vec![method, scheme, authority, (":path", "")]),
        ("a path without a slash", vec![method, scheme, authority, (":path", "x")]),
        ("a path that is a whole address", vec![method, scheme, authority, (":path", "http://y/x")]),
        ("a path with a space", vec![method, scheme, authority, (":path", "/x y")]),
        (
            "a path that ends the first line",
            vec![method, scheme, authority, (":path", "/x HTTP/1.1\r\na: b")],
        ),
        ("two methods", and(method)),
        ("two paths", and(path)),
        ("a pseudo header that nobody knows", and((":x", "y"))),
        ("a pseudo header of answers", and((":status", "200"))),
        ("a pseudo header that comes late", vec![method, scheme, authority, ("a", "b"), path]),
        ("a name in capitals", and(("Accept", "x"))),
        ("a name with a space", and(("a b", "x"))),
        ("a name with a colon", and(("a:b", "x"))),
        ("a value that ends its line", and(("a", "b\r\nc: d"))),
        ("a value with a zero", and(("a", "b\0c"))),
        ("connection", and(("connection", "x-a"))),
        ("transfer-encoding", and(("transfer-encoding", "chunked"))),
        ("keep-alive", and(("keep-alive", "1"))),
        ("upgrade", and(("upgrade", "websocket"))),
        ("te that is not trailers", and(("te", "gzip"))),
        ("a length without a body", and(("content-length", "5"))),
    ] {
        let bytes = frame(HEADERS, END_HEADERS | END_STREAM, 1, &head(&fields));
        listeners.check(what, &bytes, Comes::StreamError);
    }
    for (what, more) in [
        ("a stream that waits for itself", frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 1])),
        ("WINDOW_UPDATE of nothing", frame(WINDOW_UPDATE, 0, 1, &[0; 4])),
        ("a window beyond the largest", frame(WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff])),
    ] {
        let open = frame(HEADERS, END_HEADERS, 1, &post("/x", &[]));
        listeners.check(what, &[open, more].concat(), Comes::StreamError);
    }
}

#[test]
fn what_is_unknown_is_passed_over_and_what_is_split_is_joined() {
    let listeners = Listeners::start();
    let (first, rest) = (&get()[..3], &get()[3..]);
    let split = [
        frame(HEADERS, END_STREAM, 1, first),
        frame(CONTINUATION, 0, 1, &[]),
        frame(CONTINUATION, END_HEADERS, 1, rest),
    ];
    for (what, bytes) in [
        ("a frame of an unknown kind", [frame(0x16, 0xff, 0, b"whatever"), request(1)].concat()),
        (
            "a setting of an unknown kind",
            [frame(SETTINGS, 0, 0, &[0xff, 0xff, 0, 0, 0, 1]), request(1)].concat(),
        ),
        ("unknown flags", frame(HEADERS, END_HEADERS | END_STREAM | 0x40, 1, &get())),
        ("a head in three frames", split.concat()),
        ("PRIORITY before a request", [frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 1]), request(1)].concat()),
    ] {
        listeners.check(what, &bytes, Comes::Answer);
    }
    for (name, address) in listeners.all() {
        let mut peer = Peer::connect(address);
        peer.send(&frame(PING, 0, 0, b"12345678"));
        assert_eq!(peer.next_of(PING).payload, b"12345678", "{name}");
    }
}
