//! What the limiter needs to sleep and to run background tasks, behind a trait that a test can implement.
//!
//! This crate starts tasks and timers only through [`Runtime`], and reads the clock only through
//! [`Clock`](tidegate_store::Clock): a seeded test drives it all on one thread, in virtual time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tidegate_core::Micros;

/// A background task of the limiter.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Spawns tasks and timers.
pub trait Runtime: Send + Sync + 'static {
    /// Runs `task` to completion, even if its waiters are gone. If the runtime ends and drops it instead, its waiters fail.
    fn spawn(&self, task: Task);

    /// Ready once `span` has passed.
    fn sleep(&self, span: Micros) -> Task;
}

/// The output of `work`, or `None` if it takes longer than `span`. The timer is created only if `work` has to wait.
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

/// Tokio as the runtime: tasks go to the runtime in whose context the limiter is called. Outside any, a task is dropped.
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

/// One tokio runtime, wherever the limiter is called from: also on threads outside any runtime.
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

/// The thread that all probers of this process share, started on first use. If the system has none to give, probers run where
/// the limiter is called.
#[cfg(feature = "tokio")]
#[must_use]
pub fn prober_thread() -> std::sync::Arc<dyn Runtime> {
    use std::sync::{Arc, OnceLock};
    static THREAD: OnceLock<Option<tokio::runtime::Handle>> = OnceLock::new();
    let start = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name("tidegate-prober".to_owned());
        thread.spawn(move || runtime.block_on(std::future::pending::<()>())).ok().map(|_| handle)
    };
    match THREAD.get_or_init(start) {
        Some(handle) => Arc::new(TokioHandle(handle.clone())),
        None => Arc::new(TokioRuntime),
    }
}
