//! Hits, spans and timestamps, as types that do not mix.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// The largest integer up to which a double, and so a Lua twin, holds every integer exactly.
pub const EXACT_MAX: u64 = 1 << 53;

/// The cost of a request: usually one, more for an expensive request, zero for a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hits(u64);

impl Hits {
    /// A look that spends nothing.
    pub const ZERO: Hits = Hits(0);
    /// An ordinary request.
    pub const ONE: Hits = Hits(1);

    /// `count` hits.
    #[must_use]
    pub const fn new(count: u64) -> Self {
        Hits(count)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum, saturating at `u64::MAX`, which no limit admits.
    #[must_use]
    pub const fn saturating_add(self, other: Hits) -> Hits {
        Hits(self.0.saturating_add(other.0))
    }

    /// The difference, at least zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Hits) -> Hits {
        Hits(self.0.saturating_sub(other.0))
    }
}

/// A span of whole microseconds.
///
/// Not nanoseconds: Redis Lua counts in doubles, and a nanosecond epoch passed 2^53 in April 1970. A microsecond epoch
/// lasts until 2255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

impl Micros {
    /// An empty span.
    pub const ZERO: Micros = Micros(0);
    /// The shortest non-empty span.
    pub const ONE: Micros = Micros(1);

    /// `micros` microseconds.
    #[must_use]
    pub const fn new(micros: u64) -> Self {
        Micros(micros)
    }

    /// `millis` milliseconds, saturating.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Micros(millis.saturating_mul(1_000))
    }

    /// `secs` seconds, saturating.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Micros(secs.saturating_mul(1_000_000))
    }

    /// The number of microseconds.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whole milliseconds, rounded up: waiting this long is long enough.
    #[must_use]
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Whole seconds, rounded up: waiting this long is long enough.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// The difference; zero if `other` is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Micros) -> Micros {
        Micros(self.0.saturating_sub(other.0))
    }
}

impl From<Micros> for Duration {
    fn from(span: Micros) -> Duration {
        Duration::from_micros(span.0)
    }
}

impl From<Duration> for Micros {
    /// Whole microseconds, rounded up, saturating.
    fn from(span: Duration) -> Micros {
        let part = u64::from(!span.subsec_nanos().is_multiple_of(1_000));
        Micros(u64::try_from(span.as_micros()).unwrap_or(u64::MAX).saturating_add(part))
    }
}

impl Add for Micros {
    type Output = Micros;

    fn add(self, other: Micros) -> Micros {
        Micros(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Micros {
    /// Formats with the largest exact unit: `1h`, `90s`, `250ms`, `7us`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units =
            [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms")];
        for (size, name) in units {
            if self.0 >= size && self.0.is_multiple_of(size) {
                return write!(f, "{}{name}", self.0 / size);
            }
        }
        write!(f, "{}us", self.0)
    }
}

/// A point in time: microseconds since the Unix epoch, always by the store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The last time that the Lua twins can represent: in the year 2255.
    pub const MAX: Timestamp = Timestamp(EXACT_MAX - 1);

    /// `micros` after the epoch, clamped to [`Timestamp::MAX`].
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        if micros < EXACT_MAX { Timestamp(micros) } else { Timestamp::MAX }
    }

    /// Microseconds since the epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The span since `earlier`; zero if `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Timestamp) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    /// The time `span` before this one, clamped to the epoch.
    #[must_use]
    pub const fn back(self, span: Micros) -> Timestamp {
        Timestamp(self.0.saturating_sub(span.0))
    }
}

impl Add<Micros> for Timestamp {
    type Output = Timestamp;

    fn add(self, span: Micros) -> Timestamp {
        Timestamp::from_micros(self.0.saturating_add(span.0))
    }
}

impl Sub<Timestamp> for Timestamp {
    type Output = Micros;

    fn sub(self, earlier: Timestamp) -> Micros {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_prints_in_the_largest_unit_that_is_exact() {
        for (micros, text) in
            [(7, "7us"), (250_000, "250ms"), (90_000_000, "90s"), (3_600_000_000, "1h"), (0, "0us")]
        {
            assert_eq!(Micros::new(micros).to_string(), text);
        }
    }

    #[test]
    fn time_beyond_the_exact_range_stands_still_instead_of_wrapping() {
        assert_eq!(Timestamp::from_micros(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::MAX + Micros::new(u64::MAX), Timestamp::MAX);
    }
}
