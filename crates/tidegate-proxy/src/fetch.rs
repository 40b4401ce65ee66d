//! Fetches one small document from a server, for health checks.

use bytes::Bytes;
use http::header::{HeaderValue, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt, Limited};

use crate::body::RequestBody;
use crate::dial::{DialError, Dialed, Dialer, Wants};
use crate::exchange::Outgoing;
use crate::target::TargetError;

/// Why there is no document.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The address is not usable.
    #[error("the address cannot be used: {0}")]
    Address(TargetError),
    /// There is no connection.
    #[error("{0}")]
    Unreachable(String),
    /// The answer is not 2xx.
    #[error("the server answered {0}")]
    Status(StatusCode),
    /// The answer broke off, or is too large.
    #[error("the answer cannot be read: {0}")]
    Body(String),
}

/// Fetches `path` on a new connection: an answer on a pooled one says nothing about new ones.
pub(crate) async fn get(
    dialer: &Dialer,
    path: PathAndQuery,
    most_bytes: usize,
) -> Result<Vec<u8>, FetchError> {
    let host = HeaderValue::from_str(&dialer.target.authority())
        .map_err(|_| FetchError::Address(TargetError::NotAnAddress))?;
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, HeaderValue::from_static("tidegate"));
    let (body, upload, wants) = (RequestBody::empty(), None, Wants::Any);
    let question = Outgoing { method: Method::GET, path, host, headers, body, upload, wants };
    let broken = |error: hyper::Error| FetchError::Body(error.to_string());
    let answer = match dialer.dial(Wants::Any).await.map_err(unreachable)? {
        Dialed::Http1(mut sender) => sender.send_request(question.into_http1()).await.map_err(broken)?,
        Dialed::Http2(mut sender) => {
            sender.send_request(question.into_http2(dialer.scheme())).await.map_err(broken)?
        }
    };
    if !answer.status().is_success() {
        return Err(FetchError::Status(answer.status()));
    }
    let body = Limited::new(answer.into_body(), most_bytes).collect().await;
    let body: Bytes = body.map_err(|error| FetchError::Body(error.to_string()))?.to_bytes();
    Ok(body.to_vec())
}

fn unreachable(error: DialError) -> FetchError {
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    FetchError::Unreachable(format!("{error}{cause}"))
}
