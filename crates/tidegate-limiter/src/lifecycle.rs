//! The life of a limiter: it is in use for as long as somebody has a handle, and ends in order.
//!
//! The background holds a [`Lifecycle`], never a handle: else it would keep alive what keeps it running. Whoever ends the
//! limiter says so there, and the background, which may be in the middle of a heartbeat, takes leave when that is done. A
//! heartbeat that overtook the farewell would put a limiter back into the fleet that is gone.

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
    /// Whether somebody runs the background.
    maintained: bool,
    /// Whether the background was stopped before the limiter ended, as by a runtime that ended first.
    abandoned: bool,
    /// Those who wait for either to change: the background, and calls of `shutdown`.
    waiting: Vec<Waker>,
}

/// How a limiter ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Nobody has a handle any more: it leaves at once.
    Dropped,
    /// It was told to, and pays first what it owes.
    ShutDown,
}

/// In every handle. The last one ends the limiter.
pub(crate) struct Handle(pub(crate) Arc<Lifecycle>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.end(End::Dropped);
    }
}

/// While it lives, somebody runs the background.
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
    /// Begins to run the background; none if somebody does already.
    pub(crate) fn maintain(&self) -> Option<Maintaining<'_>> {
        let mut state = self.0.lock();
        state.abandoned = false;
        (!std::mem::replace(&mut state.maintained, true)).then_some(Maintaining(self))
    }

    /// Whether nobody runs the background any more though the limiter is in use.
    pub(crate) fn is_abandoned(&self) -> bool {
        let state = self.0.lock();
        state.abandoned && state.end.is_none()
    }

    /// Ends the limiter. The first to say how decides.
    pub(crate) fn end(&self, how: End) {
        self.change(|state| state.end = state.end.or(Some(how)));
    }

    /// How it ends; none while it is in use.
    pub(crate) fn ending(&self) -> Option<End> {
        self.0.lock().end
    }

    /// Ready once the limiter is to end.
    pub(crate) async fn until_ended(&self) {
        self.until(|state| state.end.is_some()).await;
    }

    /// Ready once nobody runs the background.
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
