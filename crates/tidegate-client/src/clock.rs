//! The only file in this crate that reads the system's clock.

use std::time::Instant;

use tidegate_core::{Micros, Timestamp};

/// Time since it began. It never steps back, and means nothing to anybody else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uptime(Instant);

impl Uptime {
    #[expect(clippy::disallowed_methods, reason = "the one clock of the client")]
    pub(crate) fn begin() -> Self {
        Uptime(Instant::now())
    }

    pub(crate) fn now(self) -> Timestamp {
        // A second in, so that nothing is before its beginning.
        let micros = u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX);
        Timestamp::from_micros(micros.saturating_add(Micros::from_secs(1).get()))
    }
}
