//! The one place that reads a clock: steps are timed for the summary, nothing is decided by it.

use std::time::Instant;

#[expect(clippy::disallowed_methods, reason = "the chores' one clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
