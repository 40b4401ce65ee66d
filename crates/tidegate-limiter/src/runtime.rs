//! What the limiter needs of the world to wait and to go on in the background, so that a test can be that world.
//!
//! Nothing in this crate starts a task or a timer but through [`Runtime`], and nothing reads a clock but through
//! [`Clock`](tidegate_store::Clock): a seeded test drives it all on one thread, in virtual time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tidegate_core::Micros;

/// A task of the limiter's own.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs tasks and wakes sleepers.
pub trait Runtime: Send + Sync + 'static {
    /// Runs `task` to its end, whoever still waits for what it does. One that is dropped instead, because the runtime
    /// ends, lets those who wait fail.
    fn spawn(&self, task: Task);

    /// Ready once `span` has passed.
    fn sleep(&self, span: Micros) -> Task;
}

/// The answer of `work`, or nothing if it does not come within `span`. The timer is made only if there is a wait.
pub(crate) async fn within<T>(
    runtime: &dyn Runtime,
    span: Micros,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = std::pin::pin!(work);
    let mut timer: Option<Task> = None;
    std::future::poll_fn(|context: &mut Context<'_>| {
        if let Poll::Ready(answer) = work.as_mut().poll(context) {
            return Poll::Ready(Some(answer));
        }
        timer.get_or_insert_with(|| runtime.sleep(span)).as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Tokio as the runtime: tasks go to the one in whose context the limiter is asked. Outside any, a task is dropped.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioRuntime;

#[cfg(feature = "tokio")]
impl Runtime for TokioRuntime {
    fn spawn(&self, task: Task) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(task));
        }
    }

    fn sleep(&self, span: Micros) -> Task {
        Box::pin(tokio::time::sleep(span.into()))
    }
}

/// One tokio runtime, wherever the limiter is asked from: also on threads that belong to none.
#[cfg(feature = "tokio")]
#[derive(Clone, Debug)]
pub struct TokioHandle(pub tokio::runtime::Handle);

#[cfg(feature = "tokio")]
impl Runtime for TokioHandle {
    fn spawn(&self, task: Task) {
        drop(self.0.spawn(task));
    }

    fn sleep(&self, span: Micros) -> Task {
        let _within = self.0.enter();
        Box::pin(tokio::time::sleep(span.into()))
    }
}
