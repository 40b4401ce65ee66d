//! Counts the large heads and the answers of HTTP/2 requests in the budget of their connection.
//!
//! A piece of an answer counts until h2 has written it: it carries its part of the budget along, and h2 drops both. While
//! answers fill the connection's budget, each of its requests has one piece at a time, so that what nobody reads is not
//! read from its source either, and no answer waits for another to be read.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::{HeaderMap, Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::Service;
use pin_project_lite::pin_project;

use crate::runtime::{Held, HeldAnswer, Seat};

/// Smaller heads, and answers of one smaller piece, are not counted: a thousand of them are a megabyte.
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
{
    type Output = Result<Response<ChargedBody<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.answer.poll(cx));
        *this.held = None;
        let seat = Arc::clone(this.seat);
        Poll::Ready(answer.map(|answer| answer.map(|body| ChargedBody { body, seat, unread: None })))
    }
}

pin_project! {
    /// The body of a counted answer.
    pub(super) struct ChargedBody<B> {
        #[pin]
        body: B,
        seat: Arc<Seat>,
        // Once there was a piece to count.
        unread: Option<Arc<UnreadAnswer>>,
    }
}

/// The pieces of one answer that are not written.
#[derive(Default)]
struct UnreadAnswer {
    pieces: AtomicUsize,
    waiter: AtomicWaker,
}

/// One piece; h2 drops it when it is written, or when its stream ends.
struct Piece {
    bytes: Bytes,
    _held: HeldAnswer,
    // The last to be dropped: it wakes a body that looks whether there is room.
    _counted: CountedPiece,
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
        Poll::Ready(frame.map(|frame| {
            frame.map(|frame| {
                frame.map_data(|bytes| {
                    if this.unread.is_none() && bytes.len() < SMALL_BYTES {
                        return bytes;
                    }
                    let unread = Arc::clone(this.unread.get_or_insert_default());
                    unread.pieces.fetch_add(1, Ordering::Relaxed);
                    let held = this.seat.hold_answer(bytes.len() + PIECE_BYTES);
                    Bytes::from_owner(Piece { bytes, _held: held, _counted: CountedPiece(unread) })
                })
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
