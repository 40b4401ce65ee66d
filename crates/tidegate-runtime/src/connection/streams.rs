//! Runs the requests of one HTTP/2 connection on the connection's own task.
//!
//! hyper hands each request to an executor. A task per request costs an allocation, a queue and several wake-ups, and a
//! decision in memory needs none of them: it is ready at once. So requests are collected while frames are read, polled once
//! when the socket has no more, and their answers leave in one write. Only a request that must wait (for Redis, for more of
//! its body, for its peer to read the answer) becomes a task, and counts as in flight.
//!
//! A peer that does not read its answers has its next requests held back, undecided. Once these exceed the
//! connection's budget, further ones are reset: nothing was spent for them.

use crate::{Held, Seat};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

type Request = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What an HTTP/2 stream costs besides the request's future: h2's state of it, its frames, a task or a place in the queue.
pub(super) const STREAM_BYTES: usize = 4 * 1024;
/// What a request costs that waits for the rest of itself: its future, its stream, a timer.
pub(super) const WAITING_BYTES: usize = 6 * 1024;

/// The requests of one connection.
#[derive(Clone)]
pub(super) struct Streams {
    shared: Arc<SharedStreams>,
}

struct SharedStreams {
    /// Requests since the last [`Streams::run`], and those held back; bounded by the connection's stream limit.
    arrived: Mutex<VecDeque<Arrived>>,
    seat: Arc<Seat>,
    /// Whether the socket took not all of what there was for it.
    jammed: Arc<AtomicBool>,
}

struct Arrived {
    request: Request,
    /// Its memory, if it is held back.
    held: Option<Held>,
}

impl Streams {
    pub(super) fn new(seat: Arc<Seat>, jammed: Arc<AtomicBool>) -> Self {
        Streams { shared: Arc::new(SharedStreams { arrived: Mutex::default(), seat, jammed }) }
    }

    /// Polls `connection`, then the requests that arrived on it, until there is nothing more to do for now.
    pub(super) fn drive<C: Future>(
        &self,
        mut connection: Pin<&mut C>,
        cx: &mut Context<'_>,
    ) -> Poll<C::Output> {
        loop {
            let polled = connection.as_mut().poll(cx);
            if !self.shared.jammed.load(Ordering::Relaxed) {
                self.shared.seat.heads_are_written();
            }
            if polled.is_ready() || !self.run(cx) {
                return polled;
            }
        }
    }

    /// Polls the requests that arrived, and returns whether there was any: their answers then wait to be written.
    fn run(&self, cx: &mut Context<'_>) -> bool {
        let seat = &self.shared.seat;
        let mut arrived = std::mem::take(&mut *self.arrived());
        let before = arrived.len();
        while !seat.has_unread_answers()
            && let Some(Arrived { request, .. }) = arrived.pop_front()
        {
            self.start(request);
        }
        let ran = arrived.len() < before;
        if ran {
            seat.progressed();
            // The answers of those that ran may make room for the others as soon as they are written.
            *self.arrived() = arrived;
        } else if !arrived.is_empty() {
            self.hold_back(arrived, cx);
        }
        ran
    }

    /// Keeps requests until the peer has read answers, as many as the budget has room for.
    fn hold_back(&self, mut requests: VecDeque<Arrived>, cx: &mut Context<'_>) {
        let seat = &self.shared.seat;
        requests.retain_mut(|Arrived { request, held }| {
            let fits = held.is_some() || !seat.exceeds_budget();
            if fits && held.is_none() {
                held.insert(seat.hold()).owe(size_of_val(&**request) + STREAM_BYTES);
            }
            fits
        });
        *self.arrived() = requests;
        seat.wake_when_read(cx.waker());
        if !seat.has_unread_answers() {
            // Read just before it would have woken us.
            cx.waker().wake_by_ref();
        }
    }

    fn start(&self, mut request: Request) {
        // A no-op waker is enough for one poll: the task polls again with its own.
        if request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.go_on_with(request);
        }
    }

    fn go_on_with(&self, request: Request) {
        let under_way = self.shared.seat.begin();
        tokio::spawn(async move {
            let _under_way = under_way;
            request.await;
        });
    }

    /// A counter that changes when something happens.
    pub(super) fn progress(&self) -> u64 {
        self.shared.seat.progress()
    }

    pub(super) fn any_under_way(&self) -> bool {
        self.shared.seat.is_busy()
    }

    fn arrived(&self) -> MutexGuard<'_, VecDeque<Arrived>> {
        self.shared.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, request: F) {
        // A request that is dropped before its first poll was not looked at; hyper resets its stream.
        if !self.shared.seat.exceeds_budget() {
            self.arrived().push_back(Arrived { request: Box::pin(request), held: None });
        }
    }
}
