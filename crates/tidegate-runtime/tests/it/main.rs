//! The data plane's threads, sockets and connections, with protocols of a few lines.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod connection;
mod threads;
