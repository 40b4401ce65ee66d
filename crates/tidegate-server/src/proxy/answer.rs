//! What the client gets: an upstream's body, or one of our own, and what must be held until it has it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response};
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};

use super::admit::Entered;
use super::balance::Chosen;
use super::body::{BoxError, ResponseBody};
use crate::problem::{PROBLEM_JSON, Problem};

pub(super) type Answer = Response<AnswerBody>;

/// What a request holds while it is in flight; dropped, all of it is given back.
#[derive(Debug)]
pub(super) struct Held {
    _entered: Entered,
    target: Option<Chosen>,
}

impl Held {
    pub(super) fn new(entered: Entered) -> Self {
        Held { _entered: entered, target: None }
    }

    /// Counts a request for a target whose answer has no body to count it by.
    pub(super) fn hold_target(&mut self, target: Chosen) {
        self.target = Some(target);
    }
}

/// The body of an answer.
pub(super) struct AnswerBody {
    from: From,
    _held: Option<Held>,
}

enum From {
    Upstream(ResponseBody),
    Own(Full<Bytes>),
}

impl AnswerBody {
    pub(super) fn upstream(body: ResponseBody, held: Held) -> Self {
        AnswerBody { from: From::Upstream(body), _held: Some(held) }
    }

    pub(super) fn own(body: impl Into<Bytes>) -> Self {
        AnswerBody { from: From::Own(Full::new(body.into())), _held: None }
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
            From::Upstream(body) => Pin::new(body).poll_frame(cx),
            From::Own(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.from {
            From::Upstream(body) => body.is_end_stream(),
            From::Own(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.from {
            From::Upstream(body) => body.size_hint(),
            From::Own(body) => body.size_hint(),
        }
    }
}

/// A problem, with whatever headers it comes with.
pub(super) fn problem_answer(problem: &Problem, headers: HeaderMap) -> Answer {
    let mut answer = Response::new(AnswerBody::own(problem.to_json()));
    *answer.status_mut() = problem.kind().status();
    *answer.headers_mut() = headers;
    answer.headers_mut().insert(CONTENT_TYPE, PROBLEM_JSON);
    answer
}
