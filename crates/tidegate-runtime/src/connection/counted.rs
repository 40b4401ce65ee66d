//! Counts each HTTP/1 request as in flight, from its head to the last byte of its answer.

use crate::{Seat, UnderWay};
use http::{Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::Service;
use pin_project_lite::pin_project;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tidegate_access::{Answer, Answering};

/// A service whose requests are counted.
pub(super) struct Counted<S> {
    service: S,
    seat: Arc<Seat>,
    answering: Arc<Answering>,
}

impl<S> Counted<S> {
    pub(super) fn new(service: S, seat: Arc<Seat>, answering: Arc<Answering>) -> Self {
        Counted { service, seat, answering }
    }
}

impl<S, B> Service<Request<Incoming>> for Counted<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
{
    type Response = Response<CountedBody<B>>;
    type Error = Infallible;
    type Future = AnswerFuture<S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let under_way = Some((self.seat.begin(), self.answering.begin()));
        AnswerFuture { under_way, answer: self.service.call(request) }
    }
}

pin_project! {
    /// The future of an answer.
    pub(super) struct AnswerFuture<F> {
        under_way: Option<(UnderWay, Answer)>,
        #[pin]
        answer: F,
    }
}

impl<F, B> Future for AnswerFuture<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
{
    type Output = Result<Response<CountedBody<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.answer.poll(cx));
        let _under_way = this.under_way.take();
        Poll::Ready(answer.map(|answer| answer.map(|body| CountedBody { body, _under_way })))
    }
}

pin_project! {
    /// The body of a counted answer.
    pub(super) struct CountedBody<B> {
        #[pin]
        body: B,
        _under_way: Option<(UnderWay, Answer)>,
    }
}

impl<B: Body> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
