//! Reads a request's body whole, within a size and a time.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// Why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// More than the limit; the rest was not read.
    #[error("the body is larger than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// The peer took too long to send it.
    #[error("the body did not arrive within {within:?}")]
    TooSlow {
        /// The limit.
        within: Duration,
    },
    /// The connection broke, or the framing is wrong.
    #[error("the body could not be read")]
    Broken(#[source] hyper::Error),
}

/// Reads `body` to its end.
///
/// A body that came with its head, as most do, costs neither a timer nor a copy.
pub async fn read_body(body: Incoming, limit: usize, within: Duration) -> Result<Bytes, BodyError> {
    if body.size_hint().lower() > limit as u64 {
        return Err(BodyError::TooLarge { limit });
    }
    let mut collecting = pin!(collect(body, limit));
    let at_once = poll_fn(|cx| Poll::Ready(collecting.as_mut().poll(cx))).await;
    if let Poll::Ready(collected) = at_once {
        return collected;
    }
    tokio::time::timeout(within, collecting).await.unwrap_or(Err(BodyError::TooSlow { within }))
}

async fn collect(mut body: Incoming, limit: usize) -> Result<Bytes, BodyError> {
    let mut whole = Whole::Empty;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(BodyError::Broken)?.into_data() else { continue };
        if whole.len() + data.len() > limit {
            return Err(BodyError::TooLarge { limit });
        }
        whole = whole.and(data);
    }
    Ok(whole.into())
}

/// What has arrived: one piece is kept as it is, several are joined.
enum Whole {
    Empty,
    One(Bytes),
    Joined(BytesMut),
}

impl Whole {
    fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::One(piece) => piece.len(),
            Self::Joined(pieces) => pieces.len(),
        }
    }

    fn and(self, data: Bytes) -> Self {
        match self {
            _ if data.is_empty() => self,
            Self::Empty => Self::One(data),
            Self::One(first) => {
                let mut pieces = BytesMut::from(first);
                pieces.extend_from_slice(&data);
                Self::Joined(pieces)
            }
            Self::Joined(mut pieces) => {
                pieces.extend_from_slice(&data);
                Self::Joined(pieces)
            }
        }
    }
}

impl From<Whole> for Bytes {
    fn from(whole: Whole) -> Self {
        match whole {
            Whole::Empty => Self::new(),
            Whole::One(piece) => piece,
            Whole::Joined(pieces) => pieces.freeze(),
        }
    }
}
