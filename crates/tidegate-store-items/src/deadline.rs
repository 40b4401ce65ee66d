//! How long a call may take, and how long a group that others were quicker than pauses.

use std::time::Duration;

use tokio::time::Instant;

/// Nothing is stored for a call so long after its deadline: by then no caller waits.
pub const BEGINS_WITHIN: Duration = Duration::from_millis(500);

/// The time that a call has.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// How long it was given.
    pub span: Duration,
    /// When that is over.
    pub at: Instant,
    /// How long after it an answer is still accepted.
    pub late: Duration,
}

impl Deadline {
    /// The deadline of a call that starts now.
    #[must_use]
    pub fn from_now(span: Duration, late: Duration) -> Self {
        Deadline { span, at: Instant::now() + span, late }
    }

    /// When no answer is accepted any more.
    #[must_use]
    pub fn last(&self) -> Instant {
        self.at + self.late
    }
}

/// Groups that met each other must not meet again: a random pause, growing with the turns from `first` to `longest`.
///
/// # Panics
/// When the system gives no random bytes.
#[must_use]
pub fn pause(turn: u32, first: Duration, longest: Duration) -> Duration {
    let most = (first * (1 << turn.min(5))).min(longest);
    let random = getrandom::u64().expect("the system has random bytes");
    most.mul_f64((random % 1_000) as f64 / 1_000.0)
}
