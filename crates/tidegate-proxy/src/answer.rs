//! Answers to the client: an upstream's body, or one of our own, and the resources held until it is sent.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use tidegate_core::Micros;
use tidegate_http::Held;

use crate::admit::Entered;
use crate::balance::Chosen;
use crate::body::ResponseBody;
use crate::outlive;
use tidegate_http::problem::Problem;
use tidegate_runtime::connection::BoxError;

pub(crate) type ProxyAnswer = Response<AnswerBody>;

/// The resources of a request in flight; dropping it releases them.
#[derive(Debug)]
pub(crate) struct InFlight {
    _entered: Entered,
    held: Held,
    target: Option<Chosen>,
}

impl InFlight {
    pub(crate) fn new(entered: Entered) -> Self {
        InFlight { _entered: entered, held: Held::default(), target: None }
    }

    /// Holds what the gate returned.
    pub(crate) fn hold(&mut self, held: Held) {
        self.held = held;
    }

    /// How long a server that works on may keep what this holds once the client has left; `None` if it may not.
    pub(crate) fn outlives_client(&self) -> Option<Duration> {
        self.held.outlives_client()
    }

    /// Gives up what the rules say is free when the client leaves.
    pub(crate) fn client_left(&self) {
        self.held.client_left();
    }

    /// Records how long the upstream server took to answer.
    pub(crate) fn answered(&self, took: Micros) {
        self.held.answered(took);
    }

    /// Counts a request for a target whose answer has no body to hold the count.
    pub(crate) fn hold_target(&mut self, target: Chosen) {
        self.target = Some(target);
    }
}

/// The body of an answer.
pub(crate) struct AnswerBody {
    from: Source,
    in_flight: Option<InFlight>,
}

enum Source {
    Upstream(ResponseBody),
    Own(Full<Bytes>),
}

impl AnswerBody {
    pub(crate) fn upstream(body: ResponseBody, in_flight: InFlight) -> Self {
        AnswerBody { from: Source::Upstream(body), in_flight: Some(in_flight) }
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        let from = std::mem::replace(&mut self.from, Source::Own(Full::default()));
        if let (Source::Upstream(body), Some(in_flight)) = (from, self.in_flight.take()) {
            outlive::read_on(body, in_flight);
        }
    }
}

impl From<Bytes> for AnswerBody {
    /// A body of our own.
    fn from(body: Bytes) -> Self {
        AnswerBody { from: Source::Own(Full::new(body)), in_flight: None }
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

/// A problem with these headers.
pub(crate) fn problem_answer(problem: &Problem, headers: HeaderMap) -> ProxyAnswer {
    let mut answer: ProxyAnswer = problem.to_response();
    answer.headers_mut().extend(headers);
    answer
}
