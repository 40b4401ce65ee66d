//! Reads a connection's first bytes to detect the HTTP version, and replays them to the protocol.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// What every HTTP/2 connection begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Http1,
    Http2,
}

/// Reads until the first bytes are the HTTP/2 preface, or cannot become it.
///
/// The caller bounds the time: a peer may send half a preface and stop.
pub(super) async fn detect<T: AsyncRead + Unpin>(mut stream: T) -> io::Result<(Version, Prefixed<T>)> {
    let mut head = [0; PREFACE.len()];
    let mut filled = 0;
    let version = loop {
        match stream.read(&mut head[filled..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => filled += read,
        }
        if head[..filled] != PREFACE[..filled] {
            break Version::Http1;
        }
        if filled == PREFACE.len() {
            break Version::Http2;
        }
    };
    Ok((version, Prefixed { head, unread: 0..filled, stream, jammed: Arc::default() }))
}

/// A stream that replays bytes which were already read.
pub(super) struct Prefixed<T> {
    head: [u8; PREFACE.len()],
    unread: std::ops::Range<usize>,
    stream: T,
    /// Whether the stream took nothing of what was last written to it.
    jammed: Arc<AtomicBool>,
}

impl<T> Prefixed<T> {
    pub(super) fn jammed(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.jammed)
    }

    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.jammed.store(written.is_pending(), Ordering::Relaxed);
        written
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Prefixed<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let give = self.unread.len().min(buffer.remaining());
        let start = self.unread.start;
        buffer.put_slice(&self.head[start..start + give]);
        self.unread.start += give;
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Prefixed<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
