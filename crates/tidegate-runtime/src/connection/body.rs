//! Reads a whole request body, within a size, a time, and the connection's memory budget.

use super::HttpLimits;
use super::streams::WAITING_BYTES;
use crate::{Held, Seat};
use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Incoming};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
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
    /// The memory budget for incomplete requests is used up, of this connection or of its worker.
    #[error("there is no memory left for incomplete requests")]
    NoRoom,
    /// The connection broke, or the framing is wrong.
    #[error("the body could not be read")]
    Broken(#[source] hyper::Error),
}

/// Reads `body` to its end, up to `limit` bytes.
///
/// A body that came with its head, as most do, costs neither a timer nor a copy, and none of the connection's budget.
pub async fn read_body(
    body: Incoming,
    limit: usize,
    limits: &HttpLimits,
    seat: &Seat,
) -> Result<Bytes, BodyError> {
    if body.size_hint().lower() > limit as u64 {
        return Err(BodyError::TooLarge { limit });
    }
    let mut collector = Collector { body, limit, whole: Whole::Empty, held: None };
    let at_once = poll_fn(|cx| Poll::Ready(collector.poll(cx))).await;
    if let Poll::Ready(collected) = at_once {
        return collected;
    }
    let within = limits.body_timeout;
    collector.wait_within(seat)?;
    let collected = tokio::time::timeout(within, poll_fn(|cx| collector.poll(cx))).await;
    collected.unwrap_or(Err(BodyError::TooSlow { within }))
}

struct Collector {
    body: Incoming,
    limit: usize,
    whole: Whole,
    /// The memory charged for `whole`, once it has to wait for more.
    held: Option<Held>,
}

impl Collector {
    /// Charges what has arrived from here on, and copies it: as a slice of the socket's read buffer, one byte would keep the
    /// whole buffer alive.
    fn wait_within(&mut self, seat: &Seat) -> Result<(), BodyError> {
        let mut held = seat.hold();
        if !held.grow(WAITING_BYTES + self.whole.len()) {
            return Err(BodyError::NoRoom);
        }
        self.held = Some(held);
        if let Whole::One(piece) = &self.whole {
            self.whole = Whole::Joined(BytesMut::from(&piece[..]));
        }
        Ok(())
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, BodyError>> {
        while let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            let Ok(data) = frame.map_err(BodyError::Broken)?.into_data() else { continue };
            if self.whole.len() + data.len() > self.limit {
                return Poll::Ready(Err(BodyError::TooLarge { limit: self.limit }));
            }
            if self.held.as_mut().is_some_and(|held| !held.grow(data.len())) {
                return Poll::Ready(Err(BodyError::NoRoom));
            }
            self.whole = std::mem::replace(&mut self.whole, Whole::Empty).and(data);
        }
        Poll::Ready(Ok(std::mem::replace(&mut self.whole, Whole::Empty).into()))
    }
}

/// The bytes so far: one piece is kept as it is, several are concatenated.
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
