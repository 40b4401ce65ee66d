//! Counts the large heads and the answers of HTTP/2 requests in the budget of their connection.
//!
//! A piece of an answer counts until h2 has written it: it carries its part of the budget along, and h2 drops both. The
//! first one that waits also carries what the request itself costs meanwhile, which for a small answer is most of it. A head
//! without a body has no piece: it counts until the socket has taken all there is.
//!
//! While answers fill the connection's budget, each of its requests has one piece at a time, so that what nobody reads is not
//! read from its source either, and no answer waits for another to be read.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::{HeaderMap, Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::Service;
use pin_project_lite::pin_project;

use super::streams::STREAM_BYTES;
use crate::{Held, HeldAnswer, Seat};

/// Smaller heads of requests are not counted: a thousand of them are a megabyte. An answer of one smaller piece is counted,
/// and needs no count of its pieces.
const SMALL_BYTES: usize = 1024;
/// What a header costs besides its text, and a piece of an answer besides its bytes.
const HEADER_BYTES: usize = 160;
const PIECE_BYTES: usize = 256;

/// A service whose requests and answers are counted.
pub(super) struct Charged<S> {
    service: S,
    seat: Arc<Seat>,
}

impl<S> Charged<S> {
    pub(super) fn new(service: S, seat: Arc<Seat>) -> Self {
        Charged { service, seat }
    }
}

impl<S, B> Service<Request<Incoming>> for Charged<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: Body,
{
    type Response = Response<ChargedBody<B>>;
    type Error = Infallible;
    type Future = Answering<S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let head = request.uri().path().len() + head_bytes(request.headers());
        let held = (head > SMALL_BYTES).then(|| {
            let mut held = self.seat.hold();
            held.owe(head);
            held
        });
        Answering { answer: self.service.call(request), held, seat: Arc::clone(&self.seat) }
    }
}

fn head_bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + HEADER_BYTES).sum()
}

pin_project! {
    /// The future of an answer.
    pub(super) struct Answering<F> {
        #[pin]
        answer: F,
        // What the request's head holds.
        held: Option<Held>,
        seat: Arc<Seat>,
    }
}

impl<F, B> Future for Answering<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body,
{
    type Output = Result<Response<ChargedBody<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.answer.poll(cx));
        *this.held = None;
        let seat = Arc::clone(this.seat);
        Poll::Ready(answer.map(|answer| {
            let head = head_bytes(answer.headers());
            if answer.body().is_end_stream() {
                seat.hold_head(STREAM_BYTES + head);
            }
            // A request that waits to be read keeps the memory of its whole future.
            let request = size_of::<F>() + STREAM_BYTES + head;
            answer.map(|body| ChargedBody { body, seat, request, unread: None })
        }))
    }
}

pin_project! {
    /// The body of a counted answer.
    pub(super) struct ChargedBody<B> {
        #[pin]
        body: B,
        seat: Arc<Seat>,
        // What the request costs while its answer waits.
        request: usize,
        // Once there was more than one small piece.
        unread: Option<Arc<UnreadAnswer>>,
    }
}

/// The pieces of one answer that are not written.
#[derive(Default)]
struct UnreadAnswer {
    pieces: AtomicUsize,
    waiter: AtomicWaker,
    /// What follows the last piece, and is written with it.
    trailers: OnceLock<HeldAnswer>,
}

/// One piece; h2 drops it when it is written, or when its stream ends.
struct Piece {
    bytes: Bytes,
    _held: HeldAnswer,
    // The last to be dropped: it wakes a body that looks whether there is room.
    _counted: Option<CountedPiece>,
}

struct CountedPiece(Arc<UnreadAnswer>);

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedPiece {
    fn drop(&mut self) {
        self.0.pieces.fetch_sub(1, Ordering::Relaxed);
        self.0.waiter.wake();
    }
}

impl UnreadAnswer {
    /// Ready if there is nothing of this answer to read, or the connection has room for more.
    fn poll_room(&self, seat: &Seat, cx: &mut Context<'_>) -> Poll<()> {
        let has_room = || self.pieces.load(Ordering::Relaxed) == 0 || !seat.has_unread_answers();
        if has_room() {
            return Poll::Ready(());
        }
        self.waiter.register(cx.waker());
        if has_room() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<B: Body<Data = Bytes>> Body for ChargedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.project();
        if let Some(unread) = this.unread {
            ready!(unread.poll_room(this.seat, cx));
        }
        let frame = ready!(this.body.poll_frame(cx));
        let Some(Ok(frame)) = frame else { return Poll::Ready(frame) };
        if let Some(trailers) = frame.trailers_ref() {
            count_trailers(head_bytes(trailers), this.unread.as_deref(), this.seat);
        }
        Poll::Ready(Some(Ok(frame.map_data(|bytes| {
            let mut cost = bytes.len() + PIECE_BYTES;
            if this.unread.is_none() && bytes.len() < SMALL_BYTES {
                let _held = this.seat.hold_answer(cost + *this.request);
                return Bytes::from_owner(Piece { bytes, _held, _counted: None });
            }
            let unread = Arc::clone(this.unread.get_or_insert_default());
            if unread.pieces.fetch_add(1, Ordering::Relaxed) == 0 {
                cost += *this.request;
            }
            let _held = this.seat.hold_answer(cost);
            Bytes::from_owner(Piece { bytes, _held, _counted: Some(CountedPiece(unread)) })
        }))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Trailers wait behind the pieces that are not written. Small ones are part of what a request costs.
fn count_trailers(bytes: usize, unread: Option<&UnreadAnswer>, seat: &Seat) {
    if bytes <= SMALL_BYTES {
        return;
    }
    match unread {
        Some(unread) if unread.pieces.load(Ordering::Relaxed) > 0 => {
            unread.trailers.get_or_init(|| seat.hold_answer(bytes));
        }
        _ => seat.hold_head(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::time::Duration;

    use http_body_util::Empty;
    use hyper::server::conn::http2;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;
    use crate::connection::prefix;
    use crate::connection::streams::Streams;

    const HEADS: usize = 200;
    const PATIENCE: Duration = Duration::from_secs(10);

    async fn serve_empty_answers(socket: DuplexStream, seat: Arc<Seat>) {
        let (_, io) = prefix::detect(socket).await.unwrap();
        let streams = Streams::new(Arc::clone(&seat), io.jammed());
        let service = service_fn(async |_| Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())));
        let connection = http2::Builder::new(streams.clone())
            .serve_connection(TokioIo::new(io), Charged::new(service, seat));
        let mut connection = pin!(connection);
        let _ = poll_fn(|cx| streams.drive(connection.as_mut(), cx)).await;
    }

    #[tokio::test]
    async fn heads_that_the_socket_does_not_take_count_until_it_does() {
        let (ours, mut theirs) = tokio::io::duplex(256);
        let seat = Seat::with_budget(16 << 20);
        tokio::spawn(serve_empty_answers(ours, Arc::clone(&seat)));
        theirs.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        for number in 0..HEADS {
            // GET / of x, all but the name from HPACK's static table.
            let mut head = *b"\0\0\x06\x01\x05\0\0\0\0\x82\x86\x84\x01\x01x";
            head[5..9].copy_from_slice(&u32::try_from(2 * number + 1).unwrap().to_be_bytes());
            theirs.write_all(&head).await.unwrap();
        }
        // The socket has room for some of the heads, and h2 has written those.
        let counted = async {
            while seat.held() < HEADS / 2 * STREAM_BYTES {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, counted).await.expect("the others count");
        let taken = async {
            while seat.held() > 0 {
                assert!(theirs.read(&mut [0; 4096]).await.unwrap() > 0);
            }
        };
        tokio::time::timeout(PATIENCE, taken).await.expect("all are written");
    }
}
