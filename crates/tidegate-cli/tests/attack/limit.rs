//! What a limit promises, as its documentation says it. Nothing here knows how a limit is kept.

use std::time::Duration;

/// A limit as a rule states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    TokenBucket {
        burst: u64,
        rate: Rate,
    },
    FixedWindow {
        limit: u64,
        window: Duration,
    },
    SlidingWindow {
        limit: u64,
        window: Duration,
    },
    SlidingLog {
        limit: u64,
        window: Duration,
        min_interval: Duration,
        count_refused: bool,
    },
    /// Asked over a protocol that cannot say "go later": a delay is a refusal.
    LeakyBucket {
        rate: Rate,
    },
    Concurrency {
        limit: u64,
        ttl: Duration,
        count_refused: bool,
    },
}

/// `count` hits every `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) count: u64,
    pub(crate) period: Duration,
}

impl Rate {
    /// Hits that come back in `span`, rounded down.
    pub(crate) fn hits_in(self, span: Duration) -> u64 {
        u64::try_from(span.as_micros() * u128::from(self.count) / self.period.as_micros()).unwrap_or(u64::MAX)
    }

    /// How long `hits` take to come back, rounded up.
    pub(crate) fn time_for(self, hits: u64) -> Duration {
        let micros = (self.period.as_micros() * u128::from(hits)).div_ceil(u128::from(self.count));
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

/// What attacked leaky buckets let others wait; over the Redis protocol nobody waits.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// Times are read by different processes, and numbers of milliseconds are rounded.
pub(crate) const ROUNDING: Duration = Duration::from_millis(2);

impl Limit {
    /// The most hits that may be admitted within `span`, as published; nothing where the documentation promises nothing
    /// about a span so long.
    pub(crate) fn most_in(&self, span: Duration, largest_cost: u64) -> Option<u64> {
        match *self {
            Limit::TokenBucket { burst, rate } => Some(burst + rate.hits_in(span + ROUNDING)),
            Limit::LeakyBucket { rate } => Some(largest_cost + rate.hits_in(span + ROUNDING)),
            Limit::FixedWindow { limit, window } => (span <= window).then_some(2 * limit),
            Limit::SlidingWindow { limit, window } => {
                (span <= window).then_some((2 * limit).saturating_sub(1).max(limit))
            }
            Limit::SlidingLog { limit, window, .. } => (span + ROUNDING <= window).then_some(limit),
            Limit::Concurrency { .. } => None,
        }
    }

    /// The most that one request may cost.
    pub(crate) fn capacity(&self) -> u64 {
        match *self {
            Limit::TokenBucket { burst, .. } => burst,
            Limit::LeakyBucket { rate } => 1 + rate.hits_in(MAX_DELAY),
            Limit::FixedWindow { limit, .. }
            | Limit::SlidingWindow { limit, .. }
            | Limit::SlidingLog { limit, .. }
            | Limit::Concurrency { limit, .. } => limit,
        }
    }

    /// The longest that a caller who is refused can have to wait, if nobody else asks.
    pub(crate) fn longest_wait(&self, largest_cost: u64) -> Duration {
        match *self {
            Limit::TokenBucket { burst, rate } => rate.time_for(burst),
            Limit::LeakyBucket { rate } => rate.time_for(largest_cost),
            Limit::FixedWindow { window, .. } => window,
            Limit::SlidingWindow { window, .. } => 2 * window,
            Limit::SlidingLog { window, min_interval, .. } => window.max(min_interval),
            Limit::Concurrency { ttl, .. } => ttl,
        }
    }

    /// Changes how much it allows, and nothing else.
    pub(crate) fn set_number(&mut self, number: u64) {
        match self {
            Limit::TokenBucket { burst: limit, .. }
            | Limit::FixedWindow { limit, .. }
            | Limit::SlidingWindow { limit, .. }
            | Limit::SlidingLog { limit, .. }
            | Limit::Concurrency { limit, .. } => *limit = number,
            Limit::LeakyBucket { .. } => {}
        }
    }

    /// Whether a refused request counts too.
    pub(crate) fn counts_refused(&self) -> bool {
        matches!(
            self,
            Limit::SlidingLog { count_refused: true, .. } | Limit::Concurrency { count_refused: true, .. }
        )
    }

    /// The limit as a rule file spells it.
    pub(crate) fn yaml(&self) -> String {
        let per = |rate: &Rate| format!("{}/{}", rate.count, spelled(rate.period));
        match self {
            Limit::TokenBucket { burst, rate } => {
                format!("{{ algorithm: token_bucket, rate: {}, burst: {burst} }}", per(rate))
            }
            Limit::LeakyBucket { rate } => {
                format!(
                    "{{ algorithm: leaky_bucket, rate: {}, max_delay: {} }}",
                    per(rate),
                    spelled(MAX_DELAY)
                )
            }
            Limit::FixedWindow { limit, window } => {
                format!("{{ algorithm: fixed_window, limit: {limit}, window: {} }}", spelled(*window))
            }
            Limit::SlidingWindow { limit, window } => {
                format!("{{ algorithm: sliding_window, limit: {limit}, window: {} }}", spelled(*window))
            }
            Limit::SlidingLog { limit, window, min_interval, count_refused } => {
                let interval = match min_interval.is_zero() {
                    true => String::new(),
                    false => format!(", min_interval: {}", spelled(*min_interval)),
                };
                format!(
                    "{{ algorithm: sliding_log, limit: {limit}, window: {}{interval}, count_refused: {count_refused} }}",
                    spelled(*window)
                )
            }
            Limit::Concurrency { limit, ttl, count_refused } => format!(
                "{{ algorithm: concurrency, limit: {limit}, ttl: {}, count_refused: {count_refused} }}",
                spelled(*ttl)
            ),
        }
    }
}

fn spelled(span: Duration) -> String {
    format!("{}ms", span.as_millis())
}
