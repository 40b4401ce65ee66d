//! What Redis itself says about an attack: keys that never expire, and scripts that held it for too long.

use std::time::Duration;

use super::{Kind, Violation};

/// The longest that one script may hold Redis, in time of its own, where [`Pace`] is 1.
const LONGEST_SCRIPT: Duration = Duration::from_millis(2);

/// How many times as long as usual a Redis takes for the same script, at least 1: what it may take is as much longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace(f64);

impl Pace {
    /// A script that always does the same.
    pub(crate) const SCRIPT: &str = "local sum = 0 for i = 1, 50000 do sum = sum + i % 7 end return sum";
    /// What it takes on a quiet machine of two cores, on which the scripts were measured.
    const USUAL: Duration = Duration::from_micros(450);

    /// By how long [`Pace::SCRIPT`] took, each time: other processes make it longer, never shorter.
    pub(crate) fn of(took: &[Duration]) -> Self {
        let best = took.iter().min().copied().unwrap_or_default();
        Pace((best.as_secs_f64() / Pace::USUAL.as_secs_f64()).max(1.0))
    }

    /// The slower of two.
    pub(crate) fn max(self, other: Self) -> Self {
        Pace(self.0.max(other.0))
    }
}

/// Keys that have no time to live; Redis says -1 of those.
pub(crate) fn keys_without_ttl(ttls: impl IntoIterator<Item = (String, i64)>) -> Vec<Violation> {
    let forever = ttls.into_iter().filter(|(_, ttl)| *ttl == -1);
    forever.map(|(key, _)| Violation::new(Kind::KeyWithoutTtl, key)).collect()
}

/// A script call in Redis's slow log.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// Between these two looks at the slow log, since 1970, it was over.
    pub(crate) logged: (Duration, Duration),
    pub(crate) took: Duration,
    pub(crate) words: String,
}

/// When Redis stood still through no fault of its own.
#[derive(Debug, Default)]
pub(crate) struct Schedule(pub(crate) Vec<Span>);

/// A span, short against a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// When it began and ended, since 1970.
    pub(crate) from: Duration,
    pub(crate) until: Duration,
    /// How long Redis waited for a core, or was stopped, meanwhile.
    pub(crate) waited: Duration,
}

impl Schedule {
    /// How long Redis stood still in a span, at most.
    fn waited(&self, from: Duration, until: Duration) -> Duration {
        let spans = self.0.iter().filter(|span| span.from <= until && from <= span.until);
        spans.map(|span| span.waited).sum()
    }
}

/// Scripts that took longer than they may, even if all that Redis waited for a core around then was theirs.
pub(crate) fn slow_scripts(scripts: &[Script], schedule: &Schedule, pace: Pace) -> Vec<Violation> {
    let slow = scripts.iter().filter(|script| {
        let (after, before) = script.logged;
        let waited = schedule.waited(after.saturating_sub(script.took), before);
        script.took.saturating_sub(waited) > LONGEST_SCRIPT.mul_f64(pace.0)
    });
    let told =
        |script: &Script| Violation::new(Kind::SlowScript, format!("{:?} for {}", script.took, script.words));
    slow.map(told).collect()
}
