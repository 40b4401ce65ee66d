//! HTTP/2 frame by frame, for peers that no client library can imitate.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// What a client sends first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A type of frames.
pub const DATA: u8 = 0;
/// A type of frames.
pub const HEADERS: u8 = 1;
/// A type of frames.
pub const PRIORITY: u8 = 2;
/// A type of frames.
pub const RST_STREAM: u8 = 3;
/// A type of frames.
pub const SETTINGS: u8 = 4;
/// A type of frames.
pub const PUSH_PROMISE: u8 = 5;
/// A type of frames.
pub const PING: u8 = 6;
/// A type of frames.
pub const GOAWAY: u8 = 7;
/// A type of frames.
pub const WINDOW_UPDATE: u8 = 8;
/// A type of frames.
pub const CONTINUATION: u8 = 9;

/// A flag of frames.
pub const ACK: u8 = 1;
/// A flag of frames.
pub const END_STREAM: u8 = 1;
/// A flag of frames.
pub const END_HEADERS: u8 = 4;
/// A flag of frames.
pub const PADDED: u8 = 8;

/// A frame's bytes.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a test's frame is short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The head of a POST to `path`, without Huffman and without the dynamic table.
pub fn post(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let literal = |text: &str| {
        [&[u8::try_from(text.len()).expect("a test's header is short")], text.as_bytes()].concat()
    };
    // :method POST and :scheme http are in the static table; so are the names of the others.
    let mut block = vec![0x83, 0x86];
    block.extend([&[0x04][..], &literal(path), &[0x01], &literal("x")].concat());
    for (name, value) in more {
        block.extend([&[0x00][..], &literal(name), &literal(value)].concat());
    }
    block
}

/// A head of exactly these fields, pseudo headers included, whatever they are.
pub fn head(fields: &[(&str, &str)]) -> Vec<u8> {
    let literal = |text: &str| {
        [&[u8::try_from(text.len()).expect("a test's header is short")], text.as_bytes()].concat()
    };
    let field = |(name, value): &(&str, &str)| [vec![0x00], literal(name), literal(value)].concat();
    fields.iter().flat_map(field).collect()
}

/// A frame that was received.
pub struct Frame {
    /// Its type.
    pub kind: u8,
    /// Its stream; 0 for the connection.
    pub stream: u32,
    /// What follows its head.
    pub payload: Vec<u8>,
}

/// One connection, its preface and settings sent.
pub struct Peer(pub TcpStream);

impl Peer {
    /// Connects, and sends the preface and empty settings.
    pub fn connect(to: SocketAddr) -> Self {
        Peer::with_settings(to, &[])
    }

    /// The same, with settings: each an identifier and a value.
    pub fn with_settings(to: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut peer = Peer::silent(to);
        let pairs = settings
            .iter()
            .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()[..]].concat());
        let pairs: Vec<u8> = pairs.collect();
        peer.send(&[PREFACE, &frame(SETTINGS, 0, 0, &pairs)].concat());
        peer
    }

    /// A connection on which nothing was sent.
    pub fn silent(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout above zero");
        stream.set_write_timeout(Some(Duration::from_secs(10))).expect("a timeout above zero");
        stream.set_nodelay(true).expect("a socket takes the option");
        Peer(stream)
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("the server reads");
    }

    /// The next frame, or nothing at the end.
    #[expect(clippy::should_implement_trait, reason = "nobody iterates over a connection")]
    pub fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).ok()?;
        Some(Frame { kind: head[3], stream, payload })
    }

    /// The next frame of this kind; others are passed over.
    #[track_caller]
    pub fn next_of(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.next().unwrap_or_else(|| panic!("no frame of kind {kind} came"));
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// Reads until the server closes; a server that does not within ten seconds fails the test.
    #[track_caller]
    pub fn expect_end(&mut self) {
        let mut rest = Vec::new();
        if let Err(error) = self.0.read_to_end(&mut rest) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the server did not close");
        }
    }
}
