//! Answers an HTTP/1 client that has closed its half of the connection.
//!
//! `nc`, and clients that send `Connection: close`, often say everything, close their half, and read. hyper either takes
//! that for the end of the connection and drops the request, or does not look, and then never notices a client that is gone.
//! Only a write shows which of the two it is. So an end that comes while a request is answered is kept back from hyper until
//! the answer is written, or nothing of it was for [`LAST_WORDS`].

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// The longest time without a byte to a client that has closed its half: most such clients are gone.
pub const LAST_WORDS: Duration = Duration::from_secs(5);

/// A stream whose end is reported only between requests.
#[derive(Debug)]
pub struct HalfClosed<S> {
    stream: S,
    answering: Arc<Answering>,
    /// Set once the peer has closed its half.
    patience: Option<Pin<Box<Sleep>>>,
}

/// Whether the connection's request is being answered: from its head to the last byte of its answer.
#[derive(Debug, Default)]
pub struct Answering(AtomicBool);

/// A request that is being answered; dropping it ends it.
#[derive(Debug)]
pub struct Answer(Arc<Answering>);

impl Answering {
    /// Begins a request. HTTP/1 has one at a time.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> Answer {
        self.0.store(true, Ordering::Relaxed);
        Answer(Arc::clone(self))
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Relaxed);
    }
}

impl<S> HalfClosed<S> {
    /// Wraps `stream`, whose requests `answering` knows.
    pub fn new(stream: S, answering: Arc<Answering>) -> Self {
        HalfClosed { stream, answering, patience: None }
    }

    /// A written byte was taken: the peer may still read.
    fn wrote(&mut self, written: &Poll<io::Result<usize>>) {
        if let (Some(patience), Poll::Ready(Ok(1..))) = (&mut self.patience, written) {
            patience.as_mut().reset(Instant::now() + LAST_WORDS);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HalfClosed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let patience = match &mut this.patience {
            Some(patience) => patience,
            none => {
                let room = buffer.remaining();
                ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
                if room == 0 || buffer.remaining() < room {
                    return Poll::Ready(Ok(()));
                }
                none.insert(Box::pin(tokio::time::sleep(LAST_WORDS)))
            }
        };
        if this.answering.0.load(Ordering::Relaxed) {
            ready!(patience.as_mut().poll(cx));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HalfClosed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.wrote(&written);
        written
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    const STEP: Duration = Duration::from_secs(4);

    #[tokio::test(start_paused = true)]
    async fn an_end_is_kept_back_while_the_peer_takes_its_answer() {
        let (mut peer, ours) = duplex(64);
        let answering = Arc::<Answering>::default();
        let mut stream = HalfClosed::new(ours, Arc::clone(&answering));
        peer.shutdown().await.unwrap();
        let answer = answering.begin();
        let mut buffer = [0; 8];
        for _ in 0..3 {
            assert!(tokio::time::timeout(STEP, stream.read(&mut buffer)).await.is_err());
            stream.write_all(b"part").await.unwrap();
        }
        let began = Instant::now();
        assert_eq!(stream.read(&mut buffer).await.unwrap(), 0);
        assert_eq!(began.elapsed(), LAST_WORDS);
        drop(answer);
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_between_requests_is_an_end_at_once() {
        let (peer, ours) = duplex(64);
        let answering = Arc::<Answering>::default();
        let mut stream = HalfClosed::new(ours, Arc::clone(&answering));
        drop((peer, answering.begin()));
        let began = Instant::now();
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
