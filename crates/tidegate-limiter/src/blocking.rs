//! Waiting without an async runtime.

use std::error::Error;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tidegate_rules::UnknownDomain;
use tidegate_store::{Clock, SystemClock};

/// Why a blocking call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockingError {
    /// The rules have no such domain.
    UnknownDomain(UnknownDomain),
    /// This thread drives the limiter's runtime, so waiting for it would never end.
    RuntimeBlocked,
}

impl fmt::Display for BlockingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockingError::UnknownDomain(error) => error.fmt(f),
            BlockingError::RuntimeBlocked => f.write_str(
                "the limiter's runtime stands still while this thread waits for it: use the async call here, or \
                 tokio::task::spawn_blocking",
            ),
        }
    }
}

impl Error for BlockingError {}

impl From<UnknownDomain> for BlockingError {
    fn from(error: UnknownDomain) -> Self {
        BlockingError::UnknownDomain(error)
    }
}

/// Blocks this thread until `work` is done, for use of a [`Limiter`](crate::Limiter) outside an async runtime. A store in
/// memory answers at once.
pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    wait_for(work, None).expect("it waits for as long as it takes")
}

/// The answer of `work`, or `None` if it does not come within `patience`.
pub fn wait_for<T>(work: impl Future<Output = T>, patience: Option<Duration>) -> Option<T> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut work = pin!(work);
    // Most answers are there at once, and need neither waker nor clock.
    if let Poll::Ready(answer) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return Some(answer);
    }
    let clock = SystemClock::new();
    let (began, waker) = (clock.uptime(), Waker::from(Arc::new(Unpark(thread::current()))));
    loop {
        if let Poll::Ready(answer) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(answer);
        }
        match patience {
            None => thread::park(),
            Some(patience) => {
                let waited = Duration::from(clock.uptime().saturating_sub(began));
                thread::park_timeout(patience.checked_sub(waited)?);
            }
        }
    }
}
