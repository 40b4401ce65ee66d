//! Runs the requests of one HTTP/2 connection on the connection's own task.
//!
//! hyper hands each request to an executor. A task per request costs an allocation, a queue and several wake-ups, and a
//! decision in memory needs none of them: it is ready at once. So requests are collected while frames are read, polled once
//! when the socket has no more, and their answers leave in one write. Only a request that must wait (for Redis, for more of
//! its body, for its peer to read the answer) becomes a task, and counts as in flight.

use crate::runtime::Seat;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

type Request = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The requests of one connection.
#[derive(Clone)]
pub(super) struct Streams {
    shared: Arc<SharedStreams>,
}

struct SharedStreams {
    /// Requests since the last [`Streams::run`]; bounded by the connection's stream limit.
    arrived: Mutex<Vec<Request>>,
    seat: Arc<Seat>,
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
            if polled.is_ready() || !self.run() {
                return polled;
            }
        }
    }

    /// Polls every request that arrived, and returns whether there was any: their answers then wait to be written.
    fn run(&self) -> bool {
        let arrived =
            std::mem::take(&mut *self.shared.arrived.lock().unwrap_or_else(PoisonError::into_inner));
        if arrived.is_empty() {
            return false;
        }
        self.shared.seat.progressed();
        for mut request in arrived {
            // A no-op waker is enough for one poll: the task polls again with its own.
            if request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                self.go_on_with(request);
            }
        }
        true
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
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, request: F) {
        self.shared.arrived.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(request));
    }
}
