//! The life of a limiter: in use while any handle exists, then ended in order.
//!
//! The background task holds a [`Lifecycle`], never a handle: otherwise it would keep alive what keeps it running. Ending the
//! limiter is recorded there, and the background task, which may be in the middle of a heartbeat, leaves when that is done. A
//! heartbeat that overtook the leave would put a limiter that is gone back into the fleet.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;

/// How far a limiter is on its way to its end.
#[derive(Default)]
pub(crate) struct Lifecycle(Mutex<State>);

#[derive(Default)]
struct State {
    end: Option<End>,
    /// Whether the background task runs.
    maintained: bool,
    /// Whether the background task stopped before the limiter ended, for example because its runtime ended first.
    abandoned: bool,
    /// Tasks that wait for either to change: the background task, and calls of `shutdown`.
    waiting: Vec<Waker>,
}

/// How a limiter ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The last handle was dropped: it leaves at once.
    Dropped,
    /// It was shut down, and first settles its debts.
    ShutDown,
}

/// Part of every handle. Dropping the last one ends the limiter.
pub(crate) struct Handle(pub(crate) Arc<Lifecycle>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.end(End::Dropped);
    }
}

/// Exists while the background task runs.
pub(crate) struct Maintaining<'l>(&'l Lifecycle);

impl Drop for Maintaining<'_> {
    fn drop(&mut self) {
        self.0.change(|state| {
            state.maintained = false;
            state.abandoned = state.end.is_none();
        });
    }
}

impl Lifecycle {
    /// Starts the background task; `None` if it already runs.
    pub(crate) fn maintain(&self) -> Option<Maintaining<'_>> {
        let mut state = self.0.lock();
        state.abandoned = false;
        (!std::mem::replace(&mut state.maintained, true)).then(|| Maintaining(self))
    }

    /// Whether the background task stopped though the limiter is in use.
    pub(crate) fn is_abandoned(&self) -> bool {
        let state = self.0.lock();
        state.abandoned && state.end.is_none()
    }

    /// Ends the limiter. The first call decides how.
    pub(crate) fn end(&self, how: End) {
        self.change(|state| state.end = state.end.or(Some(how)));
    }

    /// How it ends; `None` while it is in use.
    pub(crate) fn ending(&self) -> Option<End> {
        self.0.lock().end
    }

    /// Ready once the limiter ends.
    pub(crate) async fn until_ended(&self) {
        self.until(|state| state.end.is_some()).await;
    }

    /// Ready once the background task does not run.
    pub(crate) async fn until_unmaintained(&self) {
        self.until(|state| !state.maintained).await;
    }

    async fn until(&self, is_so: impl Fn(&State) -> bool) {
        poll_fn(|context| {
            let mut state = self.0.lock();
            if is_so(&state) {
                return Poll::Ready(());
            }
            if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                state.waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let waiting = {
            let mut state = self.0.lock();
            change(&mut state);
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_background_task_does_not_start_and_leaves_the_first_alone() {
        let life = Lifecycle::default();
        let running = life.maintain();
        assert!(running.is_some());
        assert!(life.maintain().is_none() && life.maintain().is_none());
        drop(running);
        assert!(life.maintain().is_some());
    }
}
