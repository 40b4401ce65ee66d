//! Limits, a type per algorithm.

use std::time::Duration;

use super::text::{Text, WrittenFields};

/// One limit of a rule: one of the algorithms here, or the shorthand of a rule file, `"100/minute"`.
#[derive(Clone, Debug)]
pub struct Limit(pub(super) Text);

/// The limits of a tier, an experiment or a single key: one, several, or `"unlimited"`.
#[derive(Clone, Debug)]
pub struct Limits(pub(super) Text);

impl From<&str> for Limit {
    fn from(shorthand: &str) -> Self {
        Limit(Text::from(shorthand))
    }
}

impl From<&str> for Limits {
    fn from(text: &str) -> Self {
        match text {
            "unlimited" => Limits(Text::from(text)),
            shorthand => Limits::from([Limit::from(shorthand)]),
        }
    }
}

impl<L: Into<Limit>, const N: usize> From<[L; N]> for Limits {
    fn from(limits: [L; N]) -> Self {
        Limits(Text::list(limits.into_iter().map(|limit| limit.into().0)))
    }
}

impl From<Vec<Limit>> for Limits {
    fn from(limits: Vec<Limit>) -> Self {
        Limits(Text::list(limits.into_iter().map(|limit| limit.0)))
    }
}

/// A limit as a separate type, with an optional name in case one rule has two of a kind.
macro_rules! algorithm {
    ($(#[$doc:meta])* $type:ident, $name:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[must_use = "a limit does nothing until it is added to a rule"]
        pub struct $type {
            fields: WrittenFields,
        }

        impl $type {
            fn made<const N: usize>(given: [(&str, Text); N]) -> Self {
                let mut fields = WrittenFields::default();
                fields.set("algorithm", Text::from($name));
                given.into_iter().for_each(|(name, value)| fields.set(name, value));
                $type { fields }
            }

            /// Names the limit; its counters use the name.
            pub fn name(self, name: impl Into<String>) -> Self {
                self.with("name", Text::from(name.into()))
            }

            fn with(mut self, field: &str, value: Text) -> Self {
                self.fields.set(field, value);
                self
            }
        }

        impl From<$type> for Limit {
            fn from(limit: $type) -> Limit {
                Limit(Text::Map(limit.fields))
            }
        }

        impl From<$type> for Limits {
            fn from(limit: $type) -> Limits {
                Limits::from([limit])
            }
        }
    };
}

/// A number of hits per second, minute, hour, day, or duration.
macro_rules! per_span {
    ($type:ident) => {
        impl $type {
            /// This many per second.
            pub fn per_second(count: u64) -> Self {
                Self::per(count, Duration::from_secs(1))
            }

            /// This many per minute.
            pub fn per_minute(count: u64) -> Self {
                Self::per(count, Duration::from_secs(60))
            }

            /// This many per hour.
            pub fn per_hour(count: u64) -> Self {
                Self::per(count, Duration::from_secs(3_600))
            }

            /// This many per 24 hours.
            pub fn per_day(count: u64) -> Self {
                Self::per(count, Duration::from_secs(86_400))
            }
        }
    };
}

/// A number of hits per window.
macro_rules! per_window {
    ($type:ident) => {
        impl $type {
            /// This many per `window`.
            pub fn per(limit: u64, window: Duration) -> Self {
                $type::made([("limit", Text::from(limit)), ("window", Text::from(window))])
            }
        }

        per_span!($type);
    };
}

algorithm! {
    /// Refills at a rate, and saves up to `burst`: `TokenBucket::per_minute(100).burst(20)`.
    TokenBucket, "token_bucket"
}
algorithm! {
    /// Spaces requests evenly, and delays them: `LeakyBucket::per_second(5).max_delay(…)`.
    LeakyBucket, "leaky_bucket"
}
algorithm! {
    /// Starts from zero in every window.
    FixedWindow, "fixed_window"
}
algorithm! {
    /// Counts in a sliding window, at a cost that does not grow with the limit.
    SlidingWindow, "sliding_window"
}
algorithm! {
    /// Remembers every hit for the length of its window: exact, for small limits.
    SlidingLog, "sliding_log"
}
algorithm! {
    /// A number at once: each holds a lease until it is done.
    Concurrency, "concurrency"
}

per_window!(FixedWindow);
per_window!(SlidingWindow);
per_window!(SlidingLog);
per_span!(TokenBucket);
per_span!(LeakyBucket);

impl TokenBucket {
    /// This many per `period`.
    pub fn per(count: u64, period: Duration) -> Self {
        TokenBucket::made([("rate", Text::rate(count, period))])
    }

    /// The most hits that may be spent at once.
    pub fn burst(self, hits: u64) -> Self {
        self.with("burst", Text::from(hits))
    }
}

impl LeakyBucket {
    /// This many per `period`.
    pub fn per(count: u64, period: Duration) -> Self {
        LeakyBucket::made([("rate", Text::rate(count, period))])
    }

    /// The longest wait of a request; one that would wait longer is refused.
    pub fn max_delay(self, span: Duration) -> Self {
        self.with("max_delay", Text::from(span))
    }
}

/// A calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CalendarWindow {
    /// From midnight to midnight.
    Day,
    /// From Monday to Sunday.
    Week,
    /// From the first to the last.
    Month,
    /// From January to December.
    Year,
}

impl FixedWindow {
    /// This many per calendar day, week, month or year, in UTC unless [`FixedWindow::tz`] says otherwise.
    pub fn per_calendar(limit: u64, window: CalendarWindow) -> Self {
        let window = match window {
            CalendarWindow::Day => "day",
            CalendarWindow::Week => "week",
            CalendarWindow::Month => "month",
            CalendarWindow::Year => "year",
        };
        FixedWindow::made([("limit", Text::from(limit)), ("window", Text::from(window))])
    }

    /// The time zone of a calendar window, such as `Europe/Paris`.
    pub fn tz(self, zone: impl Into<String>) -> Self {
        self.with("tz", Text::from(zone.into()))
    }
}

impl SlidingLog {
    /// The minimum interval between two hits.
    pub fn min_interval(self, span: Duration) -> Self {
        self.with("min_interval", Text::from(span))
    }

    /// Counts refused requests too: a caller that keeps trying stays refused.
    pub fn count_refused(self) -> Self {
        self.with("count_refused", Text::from(true))
    }
}

impl Concurrency {
    /// This many at once.
    pub fn new(limit: u64) -> Self {
        Concurrency::made([("limit", Text::from(limit))])
    }

    /// The time to live of a lease that is not renewed.
    pub fn ttl(self, span: Duration) -> Self {
        self.with("ttl", Text::from(span))
    }

    /// Counts refused requests too: a caller that keeps trying stays refused.
    pub fn count_refused(self) -> Self {
        self.with("count_refused", Text::from(true))
    }

    /// Behind the proxy, frees the place of a client that hangs up at once, not when the service has answered.
    pub fn release_on_hangup(self) -> Self {
        self.with("on_hangup", Text::from("release".to_owned()))
    }
}
