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
    pub(crate) took: Duration,
    pub(crate) words: String,
}

/// One look at the slow log. It empties the log, so every script in it ran after the look before, and before this one.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    /// From the look before to this one.
    pub(crate) span: Span,
    pub(crate) scripts: Vec<Script>,
}

/// Some time, since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) from: Duration,
    pub(crate) until: Duration,
    /// How long Redis waited for a core, or was stopped, meanwhile.
    pub(crate) waited: Duration,
}

/// Scripts that took longer than they may, even if all that Redis waited for a core or was stopped between two looks was
/// theirs. What several of them waited is waited once: together they may not have taken it all, one by one.
pub(crate) fn slow_scripts(looks: &[Look], stopped: &[Span], pace: Pace) -> Vec<Violation> {
    let longest = LONGEST_SCRIPT.mul_f64(pace.0);
    let slow = |look: &Look| {
        let Span { from, until, waited } = look.span;
        let stopped = stopped.iter().filter(|span| span.from <= until && from <= span.until);
        let waited = waited + stopped.map(|span| span.waited).sum::<Duration>();
        let mut scripts = look.scripts.clone();
        scripts.sort_by_key(|script| std::cmp::Reverse(script.took));
        let (mut took, mut may_take) = (Duration::ZERO, waited);
        let is_slow = scripts.iter().any(|script| {
            took += script.took;
            may_take += longest;
            took > may_take
        });
        let slowest = scripts.into_iter().next().filter(|_| is_slow)?;
        let Script { took, words } = slowest;
        let of = look.scripts.len();
        let what = format!("{took:?}, the slowest of {of} while Redis waited for {waited:?}: {words}");
        Some(Violation::new(Kind::SlowScript, what))
    };
    looks.iter().filter_map(slow).collect()
}
