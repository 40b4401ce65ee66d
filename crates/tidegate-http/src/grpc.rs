//! A refusal in the caller's protocol: a problem document, or a gRPC status.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::problem::{Kind, Problem};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Answers a request with these headers with `problem`, and `headers` beside it.
#[must_use]
pub fn or_http<B: From<Bytes>>(request: &HeaderMap, problem: &Problem, headers: HeaderMap) -> Response<B> {
    let mut response = if is_grpc(request) { status(problem) } else { problem.to_response() };
    response.headers_mut().extend(headers);
    response
}

fn is_grpc(request: &HeaderMap) -> bool {
    let kind = request.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.get(..GRPC.len()).is_some_and(|start| start.eq_ignore_ascii_case(GRPC))
        && matches!(kind.get(GRPC.len()), None | Some(b'+' | b';' | b'-' | b' '))
}

const GRPC: &[u8] = b"application/grpc";

/// A response without a body whose headers are its trailers, as in gRPC.
fn status<B: From<Bytes>>(problem: &Problem) -> Response<B> {
    let code = match problem.kind() {
        Kind::QuotaExceeded | Kind::AbnormalUsage => Code::ResourceExhausted,
        Kind::StoreUnavailable | Kind::Shed => Code::Unavailable,
        _ => Code::Internal,
    };
    let mut response = Response::new(B::from(Bytes::new()));
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, HeaderValue::from(code as u16));
    if let Ok(message) = HeaderValue::from_str(&escaped(&problem.detail)) {
        headers.insert(GRPC_MESSAGE, message);
    }
    response
}

/// gRPC status codes.
#[derive(Clone, Copy)]
enum Code {
    ResourceExhausted = 8,
    Internal = 13,
    Unavailable = 14,
}

/// Percent-encoded, as gRPC requires for messages.
fn escaped(message: &str) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b'%' | ..b' ' | 0x7f.. => drop(write!(text, "%{byte:02X}")),
            plain => text.push(char::from(plain)),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speaks_grpc(kind: &'static str) -> bool {
        is_grpc(&HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]))
    }

    #[test]
    fn grpc_is_known_by_its_media_type() {
        for kind in
            ["application/grpc", "application/grpc+proto", "Application/GRPC; x=y", "application/grpc-web"]
        {
            assert!(speaks_grpc(kind), "{kind}");
        }
        for kind in ["application/grpcs", "application/json", ""] {
            assert!(!speaks_grpc(kind), "{kind}");
        }
    }

    #[test]
    fn a_message_is_escaped_as_the_protocol_wants_it() {
        assert_eq!(escaped("50 % of é\n"), "50 %25 of %C3%A9%0A");
    }
}
