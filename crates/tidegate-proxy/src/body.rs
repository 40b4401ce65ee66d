//! Streams bodies: never buffered whole, but not for ever either.
//!
//! hyper polls a body for more only after the previous data was written, so neither side can fill our memory. A body without
//! data for too long ends with an error, and so does the message: the other side sees that it was truncated.

use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tidegate_store::Clock;
use tokio::time::{Instant, Sleep};

use crate::balance::Chosen;
use crate::pool::LentConnection;
use crate::stall::Taking;
use tidegate_runtime::connection::BoxError;

/// Why a body was truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Cut {
    #[error("the body is larger than the limit")]
    TooLarge,
    #[error("the body stalled")]
    TooSlow,
    #[error("the body was cut off")]
    Broken,
}

/// The progress of a request's body, for the code that waits for the answer.
#[derive(Debug, Default)]
pub(crate) struct Upload {
    moved: AtomicBool,
    cut: AtomicU8,
    answered: AtomicBool,
}

impl Upload {
    /// Whether some of it was sent since the last call.
    pub(crate) fn moved(&self) -> bool {
        self.moved.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn cut(&self) -> Option<Cut> {
        match self.cut.load(Ordering::Relaxed) {
            1 => Some(Cut::TooLarge),
            2 => Some(Cut::TooSlow),
            3 => Some(Cut::Broken),
            _ => None,
        }
    }

    /// Records that the answer has begun: from here on both sides may stream, and no rate is required.
    pub(crate) fn set_answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    fn set_cut(&self, cut: Cut) {
        let number = match cut {
            Cut::TooLarge => 1,
            Cut::TooSlow => 2,
            Cut::Broken => 3,
        };
        self.cut.store(number, Ordering::Relaxed);
    }
}

/// A request's body on its way to the upstream.
pub(crate) struct RequestBody {
    coming: Option<Coming>,
}

struct Coming {
    body: Incoming,
    bytes_left: u64,
    pace: Pace,
    upload: Arc<Upload>,
}

impl RequestBody {
    /// No body at all.
    pub(crate) fn empty() -> Self {
        RequestBody { coming: None }
    }

    /// `body`, up to `most_bytes`, at least as fast as `pace` requires; no upload to watch if the body is empty.
    pub(crate) fn new(body: Incoming, most_bytes: u64, pace: Pace) -> (Self, Option<Arc<Upload>>) {
        if body.is_end_stream() {
            return (RequestBody::empty(), None);
        }
        let upload = Arc::new(Upload::default());
        let coming = Coming { body, bytes_left: most_bytes, pace, upload: Arc::clone(&upload) };
        (RequestBody { coming: Some(coming) }, Some(upload))
    }
}

impl Coming {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            let answered = self.upload.answered.load(Ordering::Relaxed);
            ready!(self.pace.poll_over(answered, cx));
            return Poll::Ready(Some(Err(Cut::TooSlow)));
        };
        self.pace.moved();
        self.upload.moved.store(true, Ordering::Relaxed);
        // Drops trailers: they were not there when the request was identified, and some servers treat them as headers.
        let frame = frame.filter(|frame| !frame.as_ref().is_ok_and(Frame::is_trailers));
        Poll::Ready(frame.map(|frame| {
            let frame = frame.map_err(|_| Cut::Broken)?;
            let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
            self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(Cut::TooLarge)?;
            self.pace.bytes += bytes;
            Ok(frame)
        }))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let Some(coming) = &mut self.coming else { return Poll::Ready(None) };
        let polled = coming.poll(cx);
        if let Poll::Ready(Some(Err(cut))) = &polled {
            coming.upload.set_cut(*cut);
            self.coming = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.coming.as_ref().is_none_or(|coming| coming.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.coming.as_ref().map_or(SizeHint::with_exact(0), |coming| coming.body.size_hint())
    }
}

/// An answer's body on its way to the client. Its resources are released when it ends, successfully or not.
pub(crate) struct ResponseBody {
    body: Incoming,
    patience: IdleTimer,
    state: ReadState,
    /// Returned to the pool if the answer was read to its end, closed if not.
    connection: Option<LentConnection>,
    /// `None` if the client has left.
    taking: Option<Taking>,
    clock: Arc<dyn Clock>,
    _target: Chosen,
}

impl ResponseBody {
    pub(crate) fn new(
        body: Incoming,
        idle: Duration,
        connection: Option<LentConnection>,
        target: Chosen,
        taking: Option<Taking>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let patience = IdleTimer::new(idle);
        ResponseBody { body, patience, state: ReadState::Open, connection, taking, clock, _target: target }
    }

    /// Whether there is nothing more to read.
    pub(crate) fn is_over(&self) -> bool {
        self.state != ReadState::Open || self.body.is_end_stream()
    }

    /// The same for a client that has left.
    pub(crate) fn forget_client(&mut self) {
        self.taking = None;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadState {
    Open,
    Ended,
    Broken,
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            self.taking.iter().for_each(Taking::upstreams_turn);
            ready!(self.patience.poll_over(cx));
            self.state = ReadState::Broken;
            return Poll::Ready(Some(Err(Cut::TooSlow.into())));
        };
        self.patience.renew();
        let now = self.clock.now();
        self.taking.iter().for_each(|taking| taking.clients_turn(now));
        self.state = match &frame {
            Some(Ok(_)) => ReadState::Open,
            Some(Err(_)) => ReadState::Broken,
            None => ReadState::Ended,
        };
        Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        // hyper does not poll for the end of a body with a known length.
        if (self.state == ReadState::Ended || self.body.is_end_stream())
            && let Some(connection) = self.connection.take()
        {
            connection.give_back(self.clock.now());
        }
    }
}

/// The required speed of a request's body: no pause longer than `idle`, and until the answer begins an average of at least
/// `rate`, after an initial `grace`. Only time spent waiting for the client counts. There is no timer until there is a wait.
pub(crate) struct Pace {
    idle: Duration,
    grace: Duration,
    bytes_per_second: u64,
    bytes: u64,
    waited: Duration,
    waiting: Option<Waiting>,
}

struct Waiting {
    since: Instant,
    over: Pin<Box<Sleep>>,
}

impl Pace {
    pub(crate) fn new(idle: Duration, grace: Duration, bytes_per_second: NonZeroU64) -> Self {
        let bytes_per_second = bytes_per_second.get();
        Pace { idle, grace, bytes_per_second, bytes: 0, waited: Duration::ZERO, waiting: None }
    }

    /// The remaining time to wait.
    fn patience(&self, answered: bool) -> Duration {
        if answered {
            return self.idle;
        }
        let earned = Duration::from_secs(self.bytes / self.bytes_per_second);
        self.idle.min((self.grace + earned).saturating_sub(self.waited))
    }

    /// Ready once the wait was too long.
    fn poll_over(&mut self, answered: bool, cx: &mut Context<'_>) -> Poll<()> {
        let patience = self.patience(answered);
        let waiting = self.waiting.get_or_insert_with(|| Waiting {
            since: Instant::now(),
            over: Box::pin(tokio::time::sleep(patience)),
        });
        ready!(waiting.over.as_mut().poll(cx));
        let end = waiting.since + patience;
        if end <= Instant::now() {
            return Poll::Ready(());
        }
        // The answer began meanwhile, so more time is allowed.
        waiting.over.as_mut().reset(end);
        waiting.over.as_mut().poll(cx)
    }

    fn moved(&mut self) {
        if let Some(Waiting { since, .. }) = self.waiting.take() {
            self.waited += since.elapsed();
        }
    }
}

/// Bounds a pause. There is no timer until there is a pause.
struct IdleTimer {
    idle: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl IdleTimer {
    fn new(idle: Duration) -> Self {
        IdleTimer { idle, timer: None }
    }

    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let idle = self.idle;
        self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(idle))).as_mut().poll(cx)
    }

    fn renew(&mut self) {
        self.timer = None;
    }
}
