//! One open connection: whether it may leave for another, and how it is asked to.
//!
//! It may while it waits for its client: before a request's head, and inside a body that does not come. It may not while its
//! answer is made or written, which for an event stream is as long as the stream lasts.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use axum::http::Response;
use axum::http::header::CONTENT_TYPE;
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tidegate_access::{Answer, Answering, Occupant, PeerGroup};
use tokio::sync::Notify;

/// An open connection.
#[derive(Debug)]
pub(super) struct Seat {
    peer: PeerGroup,
    /// Whether a request has begun and its answer is not written.
    busy: AtomicBool,
    /// Whether that request waits for more of its body.
    awaits_body: AtomicBool,
    /// Grows with every request, and every piece of a body.
    progress: AtomicU64,
    progress_seen: AtomicU64,
    /// Whether that answer is a stream of events, which ends only with its client.
    endless: AtomicBool,
    removed: AtomicBool,
    pub(super) leave: Notify,
}

impl Seat {
    pub(super) fn new(peer: PeerGroup) -> Arc<Self> {
        Arc::new(Seat {
            peer,
            busy: AtomicBool::new(false),
            awaits_body: AtomicBool::new(false),
            progress: AtomicU64::new(0),
            progress_seen: AtomicU64::new(0),
            endless: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            leave: Notify::new(),
        })
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Whether its answer will have an end to wait for.
    pub(super) fn will_finish(&self) -> bool {
        self.is_busy() && !self.endless.load(Ordering::Relaxed)
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    fn waits(&self, awaits_body: bool) {
        self.awaits_body.store(awaits_body, Ordering::Relaxed);
        if !awaits_body {
            self.progress.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Begins a request.
    pub(super) fn begin(self: &Arc<Self>, answering: &Arc<Answering>) -> InFlight {
        self.busy.store(true, Ordering::Relaxed);
        self.endless.store(false, Ordering::Relaxed);
        self.waits(false);
        InFlight { seat: Arc::clone(self), _answer: answering.begin() }
    }
}

impl Occupant for Seat {
    fn peer(&self) -> PeerGroup {
        self.peer
    }

    fn could_leave(&self) -> bool {
        let progress = self.progress.load(Ordering::Relaxed);
        let is_used = self.progress_seen.swap(progress, Ordering::Relaxed) != progress;
        (!self.is_busy() || self.awaits_body.load(Ordering::Relaxed)) && !is_used
    }

    fn set_removed(&self) {
        self.removed.store(true, Ordering::Relaxed);
    }
}

/// A request in flight; dropping it ends it.
#[derive(Debug)]
pub(super) struct InFlight {
    seat: Arc<Seat>,
    _answer: Answer,
}

impl InFlight {
    /// The answer, in flight until its last byte.
    pub(super) fn until_written(self, answer: Response<axum::body::Body>) -> Response<Answered> {
        let kind = answer.headers().get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
        self.seat.endless.store(kind.starts_with(b"text/event-stream"), Ordering::Relaxed);
        answer.map(|body| Answered { body, _in_flight: self })
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.seat.busy.store(false, Ordering::Relaxed);
    }
}

/// The body of a request, which says when it waits for its client.
pub(super) struct Awaited {
    pub(super) body: Incoming,
    pub(super) seat: Arc<Seat>,
}

impl Body for Awaited {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.seat.waits(polled.is_pending());
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.seat.waits(false);
    }
}

/// The body of an answer, whose request is in flight until its last byte.
pub(super) struct Answered {
    body: axum::body::Body,
    _in_flight: InFlight,
}

impl Body for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_given_up_only_while_its_client_is_awaited() {
        let seat = Seat::new(PeerGroup::of([10, 0, 0, 1].into()));
        assert!(seat.could_leave());
        let answering = Arc::<Answering>::default();
        let in_flight = seat.begin(&answering);
        assert_eq!([seat.could_leave(), seat.could_leave()], [false; 2]);
        seat.waits(true);
        assert!(seat.could_leave());
        seat.waits(false);
        assert_eq!([seat.could_leave(), seat.could_leave()], [false; 2]);
        drop(in_flight);
        assert!(seat.could_leave());
    }
}
