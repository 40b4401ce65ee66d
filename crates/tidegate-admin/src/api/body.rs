//! Bodies, queries and paths: parsed strictly, in bounded time; an error names the field.

use std::time::Duration;

use axum::RequestExt as _;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use bytes::BytesMut;
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::problem::Problem;
use super::replay_log;
use super::uploads::length;
use crate::low_priority::at_low_priority;

/// The longest time to receive a body. Connections are few, and a slow sender must not hold one: signing in needs no token.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Bodies of at least this size are parsed elsewhere: it takes long enough to delay requests on the same core.
const LARGE_BODY: usize = 64 << 10;

/// The most bytes taken before others have their turn.
const MOST_UNBROKEN: usize = 1 << 20;

/// A JSON body.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned + Send + 'static, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let kind =
            request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        // A cross-origin form can send any body, but not with this content type.
        if !kind.eq_ignore_ascii_case("application/json") {
            return Err(Problem::not_json());
        }
        let reading = timeout(BODY_TIMEOUT, read(request)).await;
        let bytes = reading.map_err(|_| Problem::too_slow())??;
        let value = match bytes.len() > LARGE_BODY {
            true => at_low_priority(move || parse(&bytes)).await,
            false => parse(&bytes),
        };
        value.map(Body)
    }
}

/// Reads a body into one buffer, so that its pieces are not held a second time while they are joined.
async fn read(request: Request) -> Result<BytesMut, Problem> {
    let length = length(request.headers()).unwrap_or(0);
    let mut pieces = request.into_limited_body().into_data_stream();
    let (mut whole, mut unbroken) = (BytesMut::new(), 0);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| Problem::too_large())?;
        // What was announced, once it has begun to come: the system gives the memory as it is filled.
        if whole.is_empty() && length > piece.len() {
            whole.reserve(length.min(replay_log::MOST_BYTES));
        }
        whole.extend_from_slice(&piece);
        // A body that is all there must not keep this thread to its end.
        unbroken += piece.len();
        if unbroken > MOST_UNBROKEN {
            unbroken = 0;
            yield_now().await;
        }
    }
    Ok(whole)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let (field, inner) = (error.path().to_string(), error.inner());
        if inner.is_syntax() || inner.is_eof() {
            return Problem::malformed(inner.to_string());
        }
        let told = inner.to_string();
        // The name of a Rust type means nothing to the author of the body.
        let told = match told.contains("expected struct") {
            true => format!("{}, expected an object", told.split(',').next().unwrap_or_default()),
            false => told,
        };
        Problem::field(if field == "." { "" } else { &field }, told)
    })?;
    reader.end().map_err(|error| Problem::malformed(error.to_string()))?;
    Ok(value)
}

/// A query string.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let read = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        read.map(|query| Query(query.0)).map_err(|error| {
            let told = error.body_text();
            let told = told.strip_prefix("Failed to deserialize query string: ").unwrap_or(&told);
            match told.split_once(": ") {
                // As the standard library says it of a number that is none, of no text, and of too many digits.
                Some((field, what)) if what.contains("invalid digit") || what.contains("empty string") => {
                    Problem::field(field, "expected a whole number in digits, such as 50")
                }
                Some((field, what)) if what.contains("too large to fit") => {
                    Problem::field(field, "the number is too large: write less, such as 50")
                }
                Some((field, what)) if !field.contains(' ') => Problem::field(field, what),
                _ => Problem::field("", told),
            }
        })
    }
}

/// Path parameters.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let read = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        read.map(|path| Path(path.0)).map_err(|_| Problem::not_found("the path names nothing that can be"))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::response::IntoResponse as _;
    use bytes::Bytes;
    use futures_util::stream;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_given_up() {
        let begun = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"{\"token\":"))]);
        let body = axum::body::Body::from_stream(begun.chain(stream::pending()));
        let request = Request::post("/").header(CONTENT_TYPE, "application/json").body(body).unwrap();
        let refused = Body::<serde_json::Value>::from_request(request, &()).await;
        let problem = refused.err().expect("it has no end").into_response();
        assert_eq!(problem.status(), axum::http::StatusCode::REQUEST_TIMEOUT);
    }
}
