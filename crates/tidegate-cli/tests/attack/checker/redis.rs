//! What Redis itself says about an attack: keys that never expire, and scripts that held it for too long.

use std::time::Duration;

use super::{Kind, Violation};

/// The longest that one script may hold Redis, in time of its own.
const LONGEST_SCRIPT: Duration = Duration::from_millis(2);

/// Keys that have no time to live; Redis says -1 of those.
pub(crate) fn keys_without_ttl(ttls: impl IntoIterator<Item = (String, i64)>) -> Vec<Violation> {
    let forever = ttls.into_iter().filter(|(_, ttl)| *ttl == -1);
    forever.map(|(key, _)| Violation::new(Kind::KeyWithoutTtl, key)).collect()
}

/// A script call in Redis's slow log.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// When it was over, since 1970, in whole seconds.
    pub(crate) logged: Duration,
    pub(crate) took: Duration,
    pub(crate) words: String,
}

/// Redis's slow log has whole seconds.
const SECOND: Duration = Duration::from_secs(1);

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
pub(crate) fn slow_scripts(scripts: &[Script], schedule: &Schedule) -> Vec<Violation> {
    let slow = scripts.iter().filter(|script| {
        let waited = schedule.waited(script.logged.saturating_sub(script.took), script.logged + SECOND);
        script.took.saturating_sub(waited) > LONGEST_SCRIPT
    });
    let told =
        |script: &Script| Violation::new(Kind::SlowScript, format!("{:?} for {}", script.took, script.words));
    slow.map(told).collect()
}
