//! Runs the requests of one HTTP/2 connection on the connection's own task.
//!
//! hyper hands each request to an executor. A task per request costs an allocation, a queue and several wake-ups, and a
//! decision in memory needs none of them: it is ready at once. So requests are collected while frames are read, polled once
//! when the socket has no more, and their answers leave in one write. Only a request that must wait (for Redis, for more of
//! its body, for its peer to read the answer) becomes a task, and counts as in flight.
//!
//! A peer that does not read its answers has its next requests held back, undecided. Once these exceed the
//! connection's budget, further ones are reset: nothing was spent for them.

use crate::runtime::{Held, Seat};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

type Request = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a waiting request costs: its task or its place in the queue, its stream, a timer.
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
}

struct Arrived {
    request: Request,
    /// Its memory, if it is held back.
    held: Option<Held>,
}

impl Streams {
    pub(super) fn new(seat: Arc<Seat>) -> Self {
        Streams { shared: Arc::new(SharedStreams { arrived: Mutex::default(), seat }) }
    }

    /// Polls `connection`, then the requests that arrived on it, until there is nothing more to do for now.
    pub(super) fn drive<C: Future>(
        &self,
        mut connection: Pin<&mut C>,
        cx: &mut Context<'_>,
    ) -> Poll<C::Output> {
        loop {
            let polled = connection.as_mut().poll(cx);
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
        }
        if !arrived.is_empty() {
            self.hold_back(arrived, cx);
        }
        ran
    }

    /// Keeps requests until the peer has read answers.
    fn hold_back(&self, mut requests: VecDeque<Arrived>, cx: &mut Context<'_>) {
        let seat = &self.shared.seat;
        for request in &mut requests {
            request.held.get_or_insert_with(|| {
                let mut held = seat.hold();
                held.owe(WAITING_BYTES);
                held
            });
        }
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
