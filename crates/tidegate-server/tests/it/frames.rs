//! HTTP/2 frame by frame, for peers that no client library can imitate.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;

/// A frame's bytes.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The head of a POST to `path`, without Huffman and without the dynamic table.
pub(crate) fn post(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let literal = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    // :method POST and :scheme http are in the static table; so are the names of the others.
    let mut block = vec![0x83, 0x86];
    block.extend([&[0x04][..], &literal(path), &[0x01], &literal("x")].concat());
    for (name, value) in more {
        block.extend([&[0x00][..], &literal(name), &literal(value)].concat());
    }
    block
}

/// A head of exactly these fields, pseudo headers included, whatever they are.
pub(crate) fn head(fields: &[(&str, &str)]) -> Vec<u8> {
    let literal = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let field = |(name, value): &(&str, &str)| [vec![0x00], literal(name), literal(value)].concat();
    fields.iter().flat_map(field).collect()
}

pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// One connection, its preface and settings sent.
pub(crate) struct Peer(pub(crate) TcpStream);

impl Peer {
    pub(crate) fn connect(to: SocketAddr) -> Self {
        Peer::with_settings(to, &[])
    }

    /// The same, with settings: each an identifier and a value.
    pub(crate) fn with_settings(to: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut peer = Peer::silent(to);
        let pairs = settings
            .iter()
            .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()[..]].concat());
        let pairs: Vec<u8> = pairs.collect();
        peer.send(&[PREFACE, &frame(SETTINGS, 0, 0, &pairs)].concat());
        peer
    }

    /// A connection on which nothing was sent.
    pub(crate) fn silent(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.set_nodelay(true).unwrap();
        Peer(stream)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// The next frame, or nothing at the end.
    pub(crate) fn next(&mut self) -> Option<Frame> {
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
    pub(crate) fn next_of(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.next().unwrap_or_else(|| panic!("no frame of kind {kind} came"));
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// Reads until the server closes; a server that does not within ten seconds fails the test.
    #[track_caller]
    pub(crate) fn expect_end(&mut self) {
        let mut rest = Vec::new();
        if let Err(error) = self.0.read_to_end(&mut rest) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the server did not close");
        }
    }
}
