//! What the client gets: an upstream's body, or one of our own, and what must be held until it has it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use tidegate_core::Micros;
use tidegate_limiter::Place;
use tidegate_tower::Hold;

use super::admit::Entered;
use super::balance::Chosen;
use super::body::{BoxError, ResponseBody};
use crate::problem::Problem;

pub(super) type Answer = Response<AnswerBody>;

/// What a request holds while it is in flight; dropped, all of it is given back.
#[derive(Debug)]
pub(super) struct Held {
    _entered: Entered,
    place: Option<Place>,
    lease: Option<Hold>,
    target: Option<Chosen>,
}

impl Held {
    pub(super) fn new(entered: Entered) -> Self {
        Held { _entered: entered, place: None, lease: None, target: None }
    }

    /// Keeps a place among the workers of whoever is behind.
    pub(super) fn take_place(&mut self, place: Place) {
        self.place = Some(place);
    }

    /// Waits for its turn, which keeps no worker busy.
    pub(super) async fn wait(&mut self, span: Duration) {
        self.place.iter_mut().for_each(Place::step_aside);
        tokio::time::sleep(span).await;
        self.place.iter_mut().for_each(Place::come_back);
    }

    /// The upstream server answered so long after the request went to it.
    pub(super) fn answered(&self, took: Micros) {
        self.place.iter().for_each(|place| place.answered(took));
    }

    /// Keeps the lease of a concurrency limit.
    pub(super) fn hold(&mut self, lease: Hold) {
        self.lease = Some(lease);
    }

    /// Counts a request for a target whose answer has no body to count it by.
    pub(super) fn hold_target(&mut self, target: Chosen) {
        self.target = Some(target);
    }
}

/// The body of an answer.
pub(super) struct AnswerBody {
    from: Source,
    _held: Option<Held>,
}

enum Source {
    Upstream(ResponseBody),
    Own(Full<Bytes>),
}

impl AnswerBody {
    pub(super) fn upstream(body: ResponseBody, held: Held) -> Self {
        AnswerBody { from: Source::Upstream(body), _held: Some(held) }
    }
}

impl From<Bytes> for AnswerBody {
    /// A body of our own.
    fn from(body: Bytes) -> Self {
        AnswerBody { from: Source::Own(Full::new(body)), _held: None }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.from {
            Source::Upstream(body) => Pin::new(body).poll_frame(cx),
            Source::Own(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.from {
            Source::Upstream(body) => body.is_end_stream(),
            Source::Own(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.from {
            Source::Upstream(body) => body.size_hint(),
            Source::Own(body) => body.size_hint(),
        }
    }
}

/// A problem, with whatever headers it comes with.
pub(super) fn problem_answer(problem: &Problem, headers: HeaderMap) -> Answer {
    let mut answer: Answer = problem.to_response();
    answer.headers_mut().extend(headers);
    answer
}
