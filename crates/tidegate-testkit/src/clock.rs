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

/// How often something is tried that a machine which stands still for a moment makes fail.
const TRIES: usize = 3;

/// Tries again what a busy machine may make fail without being wrong, three times in all: a figure of speed, or a moment that was
/// missed. What is right or wrong is asserted inside, and never tried again: an error is returned only for the former.
///
/// # Panics
/// When it failed every time; the message is that of the last.
#[track_caller]
pub fn in_three_tries(mut attempt: impl FnMut() -> Result<(), String>) {
    let failed = (0..TRIES).map_while(|_| attempt().err()).collect::<Vec<_>>();
    assert!(failed.len() < TRIES, "three times in a row: {failed:#?}");
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
