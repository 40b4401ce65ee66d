//! Runs the requests of one HTTP/2 connection on the connection's own task.
//!
//! hyper hands each request to an executor. A task per request costs an allocation, a queue and several wake-ups,
//! and a decision in memory needs none of them: it is ready at once. So requests are collected while frames are read,
//! polled once when the socket has no more, and their answers leave in one write. Only a request that must wait (for
//! Redis, for more of its body) becomes a task.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

type Request = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The requests that arrived since the last [`Streams::run`]; bounded by the connection's stream limit.
#[derive(Clone, Default)]
pub(super) struct Streams {
    arrived: Arc<Mutex<Vec<Request>>>,
}

impl Streams {
    /// Polls `connection`, then what arrived on it, until there is nothing more to do for now.
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

    /// Polls every request that arrived, and says whether there was any: their answers then wait to be written.
    fn run(&self) -> bool {
        let arrived = std::mem::take(&mut *self.arrived.lock().unwrap_or_else(PoisonError::into_inner));
        let any = !arrived.is_empty();
        for mut request in arrived {
            // A waker that does nothing is enough for one look: the task polls again with its own.
            if request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                tokio::spawn(request);
            }
        }
        any
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, request: F) {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(request));
    }
}
