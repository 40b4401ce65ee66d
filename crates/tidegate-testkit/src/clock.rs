//! The one place that reads a clock and sleeps: a real process tells nobody when it is ready, so we ask again.

use std::thread;
use std::time::{Duration, Instant};

/// Between two attempts of a poll: short against a server's start, long against the attempt.
const PAUSE: Duration = Duration::from_millis(5);

#[expect(clippy::disallowed_methods, reason = "the kit's one clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "waiting for another process, or being slow on request")]
pub(crate) fn sleep(span: Duration) {
    thread::sleep(span);
}

/// Tries until `attempt` gives something, at least once, and gives up after `within`.
pub fn poll<T>(within: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let start = now();
    loop {
        if let Some(value) = attempt() {
            return Some(value);
        }
        if start.elapsed() >= within {
            return None;
        }
        sleep(PAUSE);
    }
}

/// Waits until `holds` is true.
///
/// # Panics
/// When it is still false after `within`; the message ends with `what`.
#[track_caller]
pub fn eventually(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let held = poll(within, || holds().then_some(()));
    assert!(held.is_some(), "not within {within:?}: {what}");
}
