//! The framing of a stream of quotas: reports in, assignments out.
//!
//! The answer's body pulls: it reads a report only when the last one is answered and h2 has taken the answer. So a stream holds one
//! report, and a peer that does not read is not read from.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use prost::Message as _;
use tokio::time::{Instant, Sleep};
use tonic::Status;

use super::unary::{FRAME_HEAD, GRPC, GRPC_STATUS, GrpcBody, OK, compressed, framed};
use crate::rlqs::{MAX_REPORT_BYTES, QuotaSession, RateLimitQuotaUsageReports};
use tidegate_runtime::{Drain, Held, Seat};

/// A stream without a whole report for this long has ended: Envoy reports every five seconds.
const SILENT_FOR: Duration = Duration::from_secs(60);

/// The answer's body.
pub(super) struct QuotaStream {
    reports: Incoming,
    session: QuotaSession,
    /// The part of a report that has arrived, and its memory.
    arrived: BytesMut,
    held: Held,
    silence: Pin<Box<Sleep>>,
    drained: Pin<Box<dyn Future<Output = ()> + Send>>,
    seat: Arc<Seat>,
    /// Whether others had a turn since the last message of a long answer.
    paused: bool,
}

pub(super) fn answer(
    reports: Incoming,
    session: QuotaSession,
    seat: Arc<Seat>,
    drain: Drain,
) -> Response<GrpcBody> {
    let stream = QuotaStream {
        reports,
        session,
        arrived: BytesMut::new(),
        held: seat.hold(),
        silence: Box::pin(tokio::time::sleep(SILENT_FOR)),
        drained: Box::pin(drain.requested()),
        seat,
        paused: false,
    };
    let mut response = Response::new(GrpcBody::Quotas(Box::new(stream)));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

impl QuotaStream {
    /// The next message; an error, or its absence, ends the stream.
    pub(super) fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        loop {
            if self.session.has_more() {
                if !self.paused {
                    // A long answer must not hold up the worker's other connections.
                    self.paused = true;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                self.paused = false;
                if let Some(answer) = self.session.answer() {
                    return Poll::Ready(Ok(Some(framed(&answer))));
                }
                continue;
            }
            match self.next_report() {
                Ok(Some(report)) => {
                    self.seat.progressed();
                    self.silence.as_mut().reset(Instant::now() + SILENT_FOR);
                    self.session.take(report)?;
                    // Its first part is answered at once.
                    self.paused = true;
                    continue;
                }
                Ok(None) => {}
                Err(status) => return Poll::Ready(Err(status)),
            }
            match Pin::new(&mut self.reports).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => self.arrive(frame)?,
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Err(Status::internal(error.to_string())));
                }
                Poll::Ready(None) => return Poll::Ready(Ok(None)),
                Poll::Pending => return self.poll_end(cx),
            }
        }
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        if self.drained.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(Status::unavailable("the server stops")));
        }
        if self.silence.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(Status::unavailable(format!("no report within {SILENT_FOR:?}"))));
        }
        Poll::Pending
    }

    fn arrive(&mut self, frame: Frame<Bytes>) -> Result<(), Status> {
        let Ok(data) = frame.into_data() else { return Ok(()) };
        if !self.held.grow(data.len()) {
            return Err(Status::resource_exhausted("there is no memory left for incomplete reports"));
        }
        self.arrived.extend_from_slice(&data);
        Ok(())
    }

    /// The next whole report, if it has arrived.
    fn next_report(&mut self) -> Result<Option<RateLimitQuotaUsageReports>, Status> {
        let Some(&[flag, length @ ..]) = self.arrived.first_chunk::<FRAME_HEAD>() else { return Ok(None) };
        if flag != 0 {
            return Err(compressed());
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_REPORT_BYTES {
            let problem = format!("the report has {length} bytes, more than {MAX_REPORT_BYTES}");
            return Err(Status::resource_exhausted(problem));
        }
        if self.arrived.len() < FRAME_HEAD + length {
            return Ok(None);
        }
        self.arrived.advance(FRAME_HEAD);
        let report = self.arrived.split_to(length).freeze();
        if self.arrived.is_empty() {
            // A long report leaves a long buffer.
            self.arrived = BytesMut::new();
            self.held = self.seat.hold();
        }
        let decoded = RateLimitQuotaUsageReports::decode(report);
        decoded
            .map(Some)
            .map_err(|error| Status::invalid_argument(format!("cannot decode the report: {error}")))
    }
}

/// The trailers of a stream that ended so.
pub(super) fn trailers(ended: Result<(), Status>) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    match ended {
        Ok(()) => {
            trailers.insert(GRPC_STATUS, OK);
        }
        Err(status) => {
            if status.add_header(&mut trailers).is_err() {
                trailers.insert(GRPC_STATUS, HeaderValue::from(status.code() as i32));
            }
        }
    }
    trailers
}
