//! The one place of this crate that reads a clock.

use std::time::Instant;

/// Now, on a clock that never goes back.
#[expect(clippy::disallowed_methods, reason = "this is the crate's clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
