//! Work that requests must not wait for, on a separate low-priority thread.

use std::thread;

use rustix::process::nice;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Low enough that a worker that wakes up preempts it at once; not so low that rules never compile on a busy machine: it
/// still gets a tenth of a core that others fill.
const LOWER_BY: i32 = 10;

/// Runs `work` on a thread that yields to all others: compiling ten thousand rules takes a core for a while, and at equal
/// priority the requests on that core would wait for whole time slices.
///
/// # Panics
/// If `work` panics, or the system cannot start a thread.
pub async fn at_low_priority<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = oneshot::channel();
    let run = move || {
        // On Linux a thread has its own priority, and may always lower it. If that fails, the work still gets done.
        let _ = nice(LOWER_BY);
        let _ = sender.send(work());
    };
    thread::Builder::new()
        .name("low-priority".into())
        .spawn(run)
        .expect("a thread for work in the background");
    receiver.await.expect("work in the background does not panic")
}

/// Polls `future` on such a thread: of what a database or a store sends, megabytes may have to be copied or hashed. Connections
/// and timers stay with the runtime of the caller. Unlike other futures it goes on if its caller leaves.
pub(crate) async fn polled_at_low_priority<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    let runtime = Handle::current();
    at_low_priority(move || runtime.block_on(future)).await
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The nineteenth field after the name, which ends with the last bracket.
    fn niceness() -> i32 {
        let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
        stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap().parse().unwrap()
    }

    #[tokio::test]
    async fn work_is_done_at_a_lower_priority_and_nothing_else_is() {
        let before = niceness();
        let during = at_low_priority(niceness).await;
        assert!(during > before || during == 19, "{during}");
        assert_eq!(niceness(), before);
    }
}
