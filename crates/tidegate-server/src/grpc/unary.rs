//! The framing of one unary call: a message frame in, a message frame and trailers out.
//!
//! No compression: a rate limit request is smaller than its headers. A peer that compresses gets an error.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use hyper::body::Incoming;
use prost::Message;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tidegate_runtime::connection::{BodyError, HttpLimits, read_body};
use tidegate_runtime::{Drain, Seat};
use tonic::Status;

use super::quotas::{self, QuotaStream};

/// One byte for the compression flag, four bytes of length.
pub(super) const FRAME_HEAD: usize = 5;
pub(super) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
pub(super) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(super) const OK: HeaderValue = HeaderValue::from_static("0");
const UNAVAILABLE: HeaderValue = HeaderValue::from_static("14");

pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(GRPC.as_bytes()))
}

/// The gRPC specification requires this status for another content type.
pub(super) fn unsupported_media_type() -> Response<GrpcBody> {
    let mut response = Response::new(GrpcBody::default());
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}

/// Why there is no message.
#[derive(Debug)]
pub(super) enum Unread {
    /// It is larger than the limit.
    TooLarge,
    /// It is malformed, or came too slowly.
    Wrong(Status),
}

pub(super) async fn read<Q: Message + Default>(
    request: Request<Incoming>,
    limits: &HttpLimits,
    seat: &Seat,
) -> Result<Q, Unread> {
    if let Some(encoding) = request.headers().get(GRPC_ENCODING)
        && encoding != "identity"
    {
        return Err(Unread::Wrong(compressed()));
    }
    let limit = limits.max_body_bytes.saturating_add(FRAME_HEAD);
    let body = read_body(request.into_body(), limit, limits, seat).await.map_err(|error| match error {
        BodyError::TooLarge { .. } => Unread::TooLarge,
        BodyError::TooSlow { .. } => Unread::Wrong(Status::deadline_exceeded(error.to_string())),
        BodyError::NoRoom => Unread::Wrong(Status::resource_exhausted(error.to_string())),
        BodyError::Broken(_) => Unread::Wrong(Status::internal(error.to_string())),
    })?;
    decode(body).map_err(Unread::Wrong)
}

/// Byte fields of the message share `body` instead of copying from it.
fn decode<Q: Message + Default>(mut body: Bytes) -> Result<Q, Status> {
    let Some(&[flag, length @ ..]) = body.first_chunk::<FRAME_HEAD>() else {
        return Err(Status::internal("the call has no message"));
    };
    if flag != 0 {
        return Err(compressed());
    }
    body.advance(FRAME_HEAD);
    if u32::from_be_bytes(length) as usize != body.len() {
        return Err(Status::internal("the message's length is not what its frame says"));
    }
    Q::decode(body).map_err(|error| Status::invalid_argument(format!("cannot decode the message: {error}")))
}

pub(super) fn compressed() -> Status {
    let mut status = Status::unimplemented("compressed messages are not supported");
    status
        .metadata_mut()
        .insert("grpc-accept-encoding", tonic::metadata::MetadataValue::from_static("identity"));
    status
}

pub(super) fn reply<A: Message>(message: &A) -> Response<GrpcBody> {
    let mut response = Response::new(GrpcBody::Message(framed(message)));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// A message in its frame.
pub(super) fn framed<A: Message>(message: &A) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(FRAME_HEAD + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).expect("a reply is far below 4 GiB"));
    message.encode(&mut frame).expect("the buffer was made for this length");
    frame.freeze()
}

/// A reply's body.
#[derive(Default)]
pub(super) enum GrpcBody {
    /// A framed message, then the trailers of success.
    Message(Bytes),
    Trailers,
    #[default]
    End,
    /// The answer of a tonic service, until the server stops.
    Tonic(tonic::body::Body, Pin<Box<dyn Future<Output = ()> + Send>>),
    /// Assignments of quotas.
    Quotas(Box<QuotaStream>),
}

impl GrpcBody {
    /// The answer of a tonic service. It may be endless: at a drain the call ends as unavailable.
    pub(super) fn tonic(body: tonic::body::Body, drain: Drain) -> Self {
        GrpcBody::Tonic(body, Box::pin(drain.requested()))
    }
}

impl http_body::Body for GrpcBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let next = match &mut *self {
            Self::Tonic(body, drained) => {
                let polled = Pin::new(body).poll_frame(cx);
                if polled.is_ready() || drained.as_mut().poll(cx).is_pending() {
                    return polled;
                }
                *self = Self::End;
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(GRPC_STATUS, UNAVAILABLE);
                Some(Ok(Frame::trailers(trailers)))
            }
            Self::Quotas(stream) => {
                let ended = match ready!(stream.poll_message(cx)) {
                    Ok(Some(message)) => return Poll::Ready(Some(Ok(Frame::data(message)))),
                    Ok(None) => Ok(()),
                    Err(status) => Err(status),
                };
                *self = Self::End;
                Some(Ok(Frame::trailers(quotas::trailers(ended))))
            }
            Self::Message(frame) => {
                let frame = std::mem::take(frame);
                *self = Self::Trailers;
                Some(Ok(Frame::data(frame)))
            }
            Self::Trailers => {
                *self = Self::End;
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(GRPC_STATUS, OK);
                Some(Ok(Frame::trailers(trailers)))
            }
            Self::End => None,
        };
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Tonic(body, _) => body.is_end_stream(),
            Self::End => true,
            Self::Message(_) | Self::Trailers | Self::Quotas(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rls::RateLimitRequest;
    use tonic::Code;

    fn check_refused(body: &[u8], code: Code) {
        let body = Bytes::copy_from_slice(body);
        assert_eq!(decode::<RateLimitRequest>(body.clone()).unwrap_err().code(), code, "{body:?}");
    }

    #[test]
    fn a_frame_that_lies_about_its_length_is_refused() {
        check_refused(&[], Code::Internal);
        check_refused(&[0, 0, 0, 0], Code::Internal);
        check_refused(&[0, 0, 0, 0, 1], Code::Internal);
        check_refused(&[0, 255, 255, 255, 255, 1], Code::Internal);
        check_refused(&[0, 0, 0, 0, 0, 1], Code::Internal);
    }

    #[test]
    fn a_compressed_message_is_refused_as_unimplemented() {
        check_refused(&[1, 0, 0, 0, 1, 0], Code::Unimplemented);
    }

    #[test]
    fn bytes_that_are_no_request_are_the_callers_mistake() {
        check_refused(&[0, 0, 0, 0, 2, 0x0a, 0x7f], Code::InvalidArgument);
    }

    #[test]
    fn an_empty_message_is_a_request_of_defaults() {
        let body = Bytes::from_static(&[0; 5]);
        assert_eq!(decode::<RateLimitRequest>(body).unwrap(), RateLimitRequest::default());
    }
}
